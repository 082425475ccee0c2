"""Kernel tests: a kernel, what it is launched with, and what it must leave behind.

A recipe lists them. Nothing here knows how a kernel is run, or where.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from rocbake import expression
from rocbake.container import Name
from rocbake.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

_MOST_ELEMENTS = 1 << 24
_LONGEST_EXPRESSION = 400
_DIMENSIONS = 3
_MOST_WORK_ITEMS = 1024


class _Type(NamedTuple):
    """A type of elements: numpy's name of it, and the range of an integer one."""

    numpy: str
    lowest: int | None = None
    highest: int | None = None


_TYPES = {
    "u8": _Type("<u1", 0, 2**8 - 1),
    "i32": _Type("<i4", -(2**31), 2**31 - 1),
    "u32": _Type("<u4", 0, 2**32 - 1),
    "i64": _Type("<i8", -(2**63), 2**63 - 1),
    "u64": _Type("<u8", 0, 2**64 - 1),
    "f32": _Type("<f4"),
    "f64": _Type("<f8"),
}


def _check_expression(text: str) -> str:
    try:
        expression.check(text)
    except ValueError as wrong:
        raise PydanticCustomError("expression", "{what}", {"what": str(wrong)}) from wrong
    return text


Expression = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=_LONGEST_EXPRESSION),
    AfterValidator(_check_expression),
]


def _read_number(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        pass
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
        raise PydanticCustomError("number", "expected a number")
    return float(value)


def _check_dimensions(value: tuple[int, ...]) -> tuple[int, ...]:
    if len(value) != _DIMENSIONS:
        raise PydanticCustomError("dimensions", "expected three numbers, for x, y and z")
    return value


def _check_block(value: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(_check_dimensions(value)) > _MOST_WORK_ITEMS:
        what = f"expected at most {_MOST_WORK_ITEMS} work-items in a work-group"
        raise PydanticCustomError("dimensions", "{what}", {"what": what})
    return value


def _check_file(text: str) -> str:
    if not all(re.fullmatch(r"[^*?\[\]\\]+", part) for part in text.split("/")) or (
        {".", ".."} & set(text.split("/"))
    ):
        raise PydanticCustomError("file", "expected a relative path without . and .. or wildcards")
    return text


Number = Annotated[int | float, BeforeValidator(_read_number)]
_Count = Annotated[int, Field(ge=1, le=_MOST_ELEMENTS)]
_Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Argument(_Wish):
    """An argument of a kernel: one value, or the elements of a buffer."""

    name: _Identifier = Field(description="what expressions call it")
    type: Literal["i32", "u32", "i64", "u64", "f32", "f64", "u8"]
    value: Number | None = Field(default=None, description="passed by value")
    values: tuple[Number, ...] | None = Field(
        default=None, min_length=1, description="elements of the buffer, or of a struct by value"
    )
    fill: Expression | None = Field(
        default=None, description="each element of the buffer, by its index i"
    )
    count: _Count | None = Field(default=None, description="elements, with fill")

    @property
    def dtype(self) -> str:
        """What numpy calls the type of its elements; little-endian."""
        return _TYPES[self.type].numpy


class Expect(_Wish):
    """What a buffer must hold when the kernel has ended."""

    argument: _Identifier
    equals: Expression = Field(
        description="of the arguments as they were before, and of the index i"
    )
    within: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="largest absolute error; without it the result is exact"
    )


class KernelTest(_Wish):
    """A kernel out of the archive, a launch of it, and its result."""

    name: Name = Field(description="what it is called in reports")
    file: Annotated[str, AfterValidator(_check_file)] = Field(
        description="file in the archive, below its one folder, that holds the code"
    )
    symbol: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_.$][A-Za-z0-9_.$]*$")] = Field(
        description="name of the kernel, mangled if it is C++"
    )
    grid: Annotated[tuple[_Size, ...], AfterValidator(_check_dimensions)] = Field(
        description="work-groups in x, y and z"
    )
    block: Annotated[tuple[_Size, ...], AfterValidator(_check_block)] = Field(
        description="work-items of a work-group in x, y and z"
    )
    arguments: tuple[Argument, ...] = Field(description="in the kernel's own order")
    expect: tuple[Expect, ...] = Field(
        min_length=1, description="results; a buffer without one must stay as it was"
    )

    @model_validator(mode="after")
    def _check_whole(self) -> KernelTest:
        """Tell what only shows when its parts are seen together, each at its place."""
        details = [
            InitErrorDetails(
                type=PydanticCustomError("kernel", "{what}", {"what": what}), loc=at, input=got
            )
            for at, what, got in (*self._wrong_arguments(), *self._wrong_results())
        ]
        if details:
            raise ValidationError.from_exception_data("kernel", details)
        return self

    def _wrong_arguments(self) -> Iterator[_Fault]:
        seen = {expression.INDEX, *expression.FUNCTIONS}
        for index, one in enumerate(self.arguments):
            at = ("arguments", index)
            if one.name in seen:
                yield (*at, "name"), "the index, a function or an argument has this name", one.name
            seen.add(one.name)
            if [one.value, one.values, one.fill].count(None) != 2:  # noqa: PLR2004 - all but one
                yield at, "expected one of the keys value, values and fill", one.name
            elif (one.fill is None) != (one.count is None):
                yield at, "expected count with fill, and only there", one.name
            if one.fill is not None:
                yield from _unknown(one.fill, {expression.INDEX}, (*at, "fill"))
            if one.value is not None and (what := _misfit(one.value, one.type)):
                yield (*at, "value"), what, str(one.value)
            for place, number in enumerate(one.values or ()):
                if what := _misfit(number, one.type):
                    yield (*at, "values", place), what, str(number)

    def _wrong_results(self) -> Iterator[_Fault]:
        buffers = {one.name for one in self.arguments if one.value is None}
        known = {expression.INDEX} | {one.name for one in self.arguments}
        for index, one in enumerate(self.expect):
            at = ("expect", index)
            if one.argument not in buffers:
                what = "expected a buffer among the arguments, once"
                yield (*at, "argument"), what, one.argument
            buffers.discard(one.argument)
            yield from _unknown(one.equals, known, (*at, "equals"))

    def inputs(self) -> dict[str, NDArray[Any]]:
        """Return what each argument holds before the launch, in the types of the kernel.

        Raises:
            RecipeError: If an expression cannot be computed, or gives what the type cannot hold.
        """
        return {one.name: self._input(one) for one in self.arguments}

    def _input(self, argument: Argument) -> NDArray[Any]:
        import numpy as np  # noqa: PLC0415 - costs 100 ms, and few commands need it

        if argument.fill is None or argument.count is None:
            numbers = argument.values or (argument.value,)
            return np.array(numbers, dtype=argument.dtype)
        where = f"{self.name}: fill of {argument.name}"
        filled = _computed(argument.fill, {}, argument.count, where)
        for number in filled:
            if what := _misfit(number, argument.type):
                raise RecipeError(f"{where}: {what}; got {number}")
        return filled.astype(argument.dtype)

    def wrong(self, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> str:
        """Tell how the buffers after a launch differ from what they must hold; "" if they do not.

        Args:
            inputs: What inputs() returned.
            outputs: The same buffers after the launch.

        Raises:
            RecipeError: If an expression cannot be computed.
        """
        values = {name: expression.exact(array) for name, array in inputs.items()}
        # A value passed alone is a number in expressions, not a list of one.
        for argument in self.arguments:
            if argument.value is not None:
                values[argument.name] = values[argument.name].reshape(())
        for one in self.expect:
            got = outputs.get(one.argument)
            if got is None:
                return f"{one.argument} is passed by value, so no result can be in it"
            where = f"{self.name}: result of {one.argument}"
            wanted = _computed(one.equals, values, got.size, where)
            if told := _difference(one.argument, expression.exact(got), wanted, one.within):
                return told
        for name in outputs.keys() - {one.argument for one in self.expect}:
            if outputs[name].tobytes() != inputs[name].tobytes():
                # Zeros that differ in their sign are equal, and yet it was written to.
                told = _difference(name, outputs[name], inputs[name], None)
                return f"{told or name + ' was written to'}; nothing was to change there"
        return ""


def _computed(
    text: str, values: Mapping[str, NDArray[Any]], count: int, where: str
) -> NDArray[Any]:
    try:
        return expression.evaluate(text, values, count)
    except ValueError as wrong:
        raise RecipeError(f"{where}: {wrong}") from wrong


# Where a fault is, what it is, and what was found there.
_Fault = tuple[tuple[str | int, ...], str, str]


def _unknown(text: str, known: set[str], at: tuple[str | int, ...]) -> Iterator[_Fault]:
    for name in expression.names(text):
        if name not in known:
            yield at, f"there is no {name!r}; known are {', '.join(sorted(known))}", text


def _misfit(number: float, kind: str) -> str:
    """Tell why an element of this type cannot be the number; "" if it can."""
    lowest, highest = _TYPES[kind].lowest, _TYPES[kind].highest
    if lowest is None or highest is None:
        largest = 3.4028235e38 if kind == "f32" else 1.7976931348623157e308
        return "" if abs(number) <= largest else f"expected a finite {kind}"
    if not isinstance(number, int) or not lowest <= number <= highest:
        return f"expected a whole number from {lowest} to {highest}"
    return ""


def _difference(name: str, got: NDArray[Any], wanted: NDArray[Any], within: float | None) -> str:
    import numpy as np  # noqa: PLC0415 - as above

    with np.errstate(all="ignore"):
        if within is None:
            same = np.asarray(got == wanted, dtype=bool)
            tolerance = ""
        else:
            errors = np.abs(got.astype("f8") - wanted.astype("f8"))
            same = errors <= within
            tolerance = f" within {within:g}; the largest error is {np.max(errors):.3g}"
    wrong = np.flatnonzero(~same)
    if not wrong.size:
        return ""
    first = int(wrong[0])
    return (
        f"{name}[{first}] is {got[first]}, expected {wanted[first]}{tolerance}; "
        f"{wrong.size} of {got.size} elements differ"
    )
