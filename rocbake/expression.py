"""Expressions: a small language for numbers in YAML, which can compute and do nothing else.

Names, the index i, numbers, + - * / // % ** @, one comparison, parentheses, and the functions in
FUNCTIONS. Whole numbers are exact, however large; every other number is double precision.
A remainder has the sign of the divisor, as in Python; @ is the product of two matrices.
"""

from __future__ import annotations

import ast
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

INDEX = "i"

# What an expression may grow to: elements of an array, and bits of a power.
_MOST_ELEMENTS = 1 << 24
_MOST_BITS = 4096
_MATRIX = 2

_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
}

_SIGNS: dict[type[ast.unaryop], Any] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def check(text: str) -> None:
    """See that a text is an expression, whatever its names mean.

    >>> check("(x + 1) * reshape(y, 2, 2)")
    >>> check("x.shape")
    Traceback (most recent call last):
        ...
    ValueError: there is no Attribute here, at character 1

    Raises:
        ValueError: Telling what is wrong, and at which character.
    """
    _parsed(text)


def names(text: str) -> tuple[str, ...]:
    """Return the names in an expression that are no function's, each once.

    >>> names("sum(x) + x - i")
    ('x', 'i')
    """
    return tuple(
        dict.fromkeys(node.id for node in _nodes(_parsed(text)) if isinstance(node, ast.Name))
    )


def evaluate(text: str, values: Mapping[str, NDArray[Any]], count: int) -> NDArray[Any]:
    """Compute an expression; a single number stands for all elements of the result.

    Args:
        text: What check() lets pass.
        values: What the names in it mean, as exact() returns it.
        count: Elements of the result, which the index counts from 0.

    Returns:
        One dimension: Python's own whole numbers, or doubles.

    Raises:
        ValueError: If it cannot be computed, or gives another number of elements.
    """
    import numpy as np  # noqa: PLC0415 - costs 100 ms, and few commands need it

    known = {**values, INDEX: np.arange(count).astype(object)}
    try:
        with np.errstate(all="ignore"):
            value = _numbers(_value(_parsed(text), known))
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ValueError(f"{text}: {error}") from error
    if value.size not in (1, count):
        raise ValueError(f"{text}: expected {count} elements, got {value.size}")
    return np.broadcast_to(value.reshape(-1), (count,))


def exact(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of any type as expressions compute with them."""
    return array.astype(object if array.dtype.kind in "iu" else "f8")


def _parsed(text: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        told = next((what for node in _nodes(tree) if (what := _refused(node))), "")
    except SyntaxError as wrong:
        told, tree = f"{wrong.msg}, at character {wrong.offset or 1}", None
    except (ValueError, RecursionError, MemoryError):
        told, tree = "nested too deeply, or no text", None
    if told or tree is None:
        raise ValueError(told)
    return tree


def _nodes(node: ast.expr) -> Iterator[ast.expr]:
    """Walk through an expression, past the names of its functions."""
    yield node
    inside = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    for part in inside:
        if isinstance(part, ast.expr):
            yield from _nodes(part)


def _refused(node: ast.expr) -> str:
    """Tell why a node is not of the language; "" if it is."""
    match node:
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            count = FUNCTIONS[name].arguments
            told = f"{name} takes {count} arguments, got {len(node.args)}"
            is_right = len(node.args) == count
        case ast.Call():
            told, is_right = f"the functions are {', '.join(FUNCTIONS)}", False
        case ast.Compare():
            told = "expected one of == != < <= > >=, once"
            is_right = len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS
        case ast.BinOp() | ast.UnaryOp():
            told = f"there is no {type(node.op).__name__} here"
            is_right = type(node.op) in (*_OPERATORS, *_SIGNS)
        case ast.Constant(value=value):
            told = f"expected a number, got {value!r:.40}"
            is_right = (type(value) is int) or (type(value) is float and math.isfinite(value))
        case _:
            told = f"there is no {type(node).__name__} here"
            is_right = isinstance(node, ast.Name)
    return "" if is_right else f"{told}, at character {node.col_offset + 1}"


def _value(node: ast.expr, known: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415 - as above

    match node:
        case ast.Name(id=name):
            found = known[name]
        case ast.UnaryOp(op=sign, operand=operand):
            number = _numbers(_value(operand, known))
            found = np.asarray(_SIGNS[type(sign)](number), dtype=number.dtype)
        case ast.BinOp(left=left, op=between, right=right):
            found = _operation(between, _value(left, known), _value(right, known))
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            one, other = _alike(_value(left, known), _value(right, known))
            found = np.asarray(_COMPARISONS[type(comparison)](one, other), dtype=bool)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            found = FUNCTIONS[name].compute(*(_value(one, known) for one in arguments))
        case ast.Constant(value=number):
            found = exact(np.array(number))
        case _:
            raise AssertionError(node)
    return found


def _operation(between: ast.operator, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415 - as above

    one, other = _numbers(left), _numbers(right)
    is_product = isinstance(between, ast.MatMult)
    is_floating = isinstance(between, ast.Div) or "f" in {one.dtype.kind, other.dtype.kind}
    if isinstance(between, ast.Pow) and not is_floating:
        is_floating = any(number < 0 for number in other.flat)
        bits = max((number.bit_length() for number in one.flat), default=0)
        if not is_floating and bits * max(other.flat, default=0) > _MOST_BITS:
            raise ValueError(f"a power of more than {_MOST_BITS} bits")
    if is_product:
        if (one.ndim, other.ndim) != (_MATRIX, _MATRIX):
            raise ValueError("@ takes two matrices: see reshape")
        _check_room((one.shape[0], other.shape[1]))
    else:
        _check_room(np.broadcast_shapes(one.shape, other.shape))
    if is_floating:
        one, other = one.astype("f8"), other.astype("f8")
    return np.asarray(_OPERATORS[type(between)](one, other), dtype=one.dtype)


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Turn truth into 0 and 1; leave numbers as they are."""
    return array.astype(int).astype(object) if array.dtype == bool else array


def _alike(left: NDArray[Any], right: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Make both whole numbers or both doubles."""
    import numpy as np  # noqa: PLC0415 - as above

    one, other = _numbers(left), _numbers(right)
    _check_room(np.broadcast_shapes(one.shape, other.shape))
    if "f" in {one.dtype.kind, other.dtype.kind}:
        return one.astype("f8"), other.astype("f8")
    return one, other


def _check_room(shape: tuple[int, ...]) -> None:
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError(f"a result of {' x '.join(map(str, shape))} elements")


def _by_element(name: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def compute(array: NDArray[Any]) -> NDArray[Any]:
        import numpy as np  # noqa: PLC0415 - as above

        function = getattr(np, name, None) or np.vectorize(getattr(math, name), otypes=["f8"])
        return np.asarray(function(_numbers(array).astype("f8")))

    return compute


def _sum(array: NDArray[Any]) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415 - as above

    numbers = _numbers(array)
    return np.asarray(np.sum(numbers), dtype=numbers.dtype)


def _abs(array: NDArray[Any]) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415 - as above

    numbers = _numbers(array)
    return np.asarray(np.abs(numbers), dtype=numbers.dtype)


def _minimum(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415 - as above

    one, other = _alike(left, right)
    return np.asarray(np.minimum(one, other), dtype=one.dtype)


def _maximum(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415 - as above

    one, other = _alike(left, right)
    return np.asarray(np.maximum(one, other), dtype=one.dtype)


def _where(condition: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415 - as above

    one, other = _alike(left, right)
    _check_room(np.broadcast_shapes(condition.shape, one.shape, other.shape))
    return np.where(condition.astype(bool), one, other)


def _reshape(array: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[Any]:
    shape = rows.item(), columns.item()
    if not all(isinstance(number, int) and number > 0 for number in shape):
        raise ValueError(f"expected numbers of rows and columns, got {shape[0]} and {shape[1]}")
    return _numbers(array).reshape(shape)


class _Function(NamedTuple):
    arguments: int
    compute: Callable[..., NDArray[Any]]


FUNCTIONS = {
    "sum": _Function(1, _sum),
    "exp": _Function(1, _by_element("exp")),
    "tanh": _Function(1, _by_element("tanh")),
    "erf": _Function(1, _by_element("erf")),
    "sqrt": _Function(1, _by_element("sqrt")),
    "abs": _Function(1, _abs),
    "minimum": _Function(2, _minimum),
    "maximum": _Function(2, _maximum),
    "where": _Function(3, _where),
    "reshape": _Function(3, _reshape),
}
