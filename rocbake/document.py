"""Strict YAML: every scalar stays text, and every fault is told with file, line and column.

Knows nothing of recipes or containers: it turns one file into one pydantic model.
"""

from __future__ import annotations

import difflib
import os
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from rocbake.errors import RecipeError

if typing.TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[str | int, ...]

_MAX_BYTES = 1 << 20
# Aliases share nodes, so a few lines can stand for a tree without end ("billion laughs").
_MAX_NODES = 100_000
# No model comes near it. The interpreter's own limit differs from one release to the next.
_MAX_DEPTH = 50
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}

# A person who writes YAML knows nothing of Python's types.
_WORDS = {
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "string_too_short": "expected some text",
    "string_type": "expected text",
    "too_short": "expected at least one item",
    "tuple_type": "expected a list",
}


@dataclass(frozen=True, order=True)
class Problem:
    """One fault in one file; line and column count from 1."""

    path: Path
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{shown(self.path)}:{self.line}:{self.column}: {self.message}"


class DocumentError(RecipeError):
    """All that is wrong with one or more files.

    Attributes:
        problems: The faults, in the order of files and lines.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(map(str, self.problems)))


def shown(path: Path) -> str:
    """Return the path as a person would type it: relative where it lies below this folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@dataclass(frozen=True)
class Document(Generic[Model]):
    """One file's content, and where each part of it stands."""

    path: Path
    value: Model
    _places: dict[Location, yaml.Mark]

    def problem(self, message: str, *at: str | int) -> Problem:
        """Tell of a fault in the value found by these keys; without any, in the whole file.

        What does not stand there is told of where the nearest value around it stands.
        """
        if not at:
            return Problem(self.path, 1, 1, message)
        mark = _nearest(self._places, at)
        return Problem(self.path, mark.line + 1, mark.column + 1, message)


def read(path: Path, model: type[Model]) -> Document[Model]:
    """Read one YAML file into a model.

    Raises:
        DocumentError: Everything that is wrong with the file, at once.
    """
    reader = _Reader(path)
    value = reader.read()
    if reader.problems:
        raise DocumentError(reader.problems)
    try:
        return Document(path, model.model_validate(value), reader.values)
    except ValidationError as invalid:
        problems = [
            reader.explain(error, model, value)
            for error in invalid.errors()
            # A list whose items are all wrong is not too short as well.
            if error["type"] != "too_short" or not error["input"]
        ]
        raise DocumentError(problems) from None


@dataclass
class _Reader:
    path: Path
    problems: list[Problem] = field(default_factory=list)
    # Where each key and each value stands, by its place in the document.
    keys: dict[Location, yaml.Mark] = field(default_factory=dict)
    values: dict[Location, yaml.Mark] = field(default_factory=dict)
    nodes: int = 0

    def read(self) -> Any:  # noqa: ANN401 - a YAML document is any tree
        text = self._text()
        if text is None:
            return None
        try:
            documents = list(yaml.compose_all(text, Loader=yaml.CBaseLoader))
            if len(documents) == 1:
                return self._build(documents[0], ())
            self._report(None, f"expected one document, got {len(documents)}")
        except yaml.reader.ReaderError as wrong:
            self._report_byte(text.encode(), wrong.position, wrong.reason)
        except yaml.YAMLError as wrong:
            what = getattr(wrong, "problem", None) or str(wrong)
            self._report(getattr(wrong, "problem_mark", None), what)
        except RecursionError:
            self._report(None, "nested too deeply")
        return None

    def _text(self) -> str | None:
        try:
            data = self.path.read_bytes()
        except OSError as unreadable:
            self._report(None, f"cannot be read: {os.strerror(unreadable.errno or 0)}")
            return None
        if len(data) > _MAX_BYTES:
            self._report(None, f"expected at most {_MAX_BYTES} bytes, got {len(data)}")
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as wrong:
            self._report_byte(data, wrong.start, "expected UTF-8")
            return None

    def _report_byte(self, data: bytes, offset: int, message: str) -> None:
        before = data[:offset].decode("utf-8", "replace").split("\n")
        self.problems.append(Problem(self.path, len(before), len(before[-1]) + 1, message))

    def _report(self, mark: yaml.Mark | None, message: str) -> None:
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        self.problems.append(Problem(self.path, line, column, message))

    def _build(self, node: yaml.Node, at: Location) -> Any:  # noqa: ANN401 - see read
        self.values.setdefault(at, node.start_mark)
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            if self.nodes == _MAX_NODES + 1:
                self._report(node.start_mark, f"expected at most {_MAX_NODES} values")
            return None
        if len(at) > _MAX_DEPTH:
            self._report(node.start_mark, f"nested more than {_MAX_DEPTH} deep")
            return None
        if node.tag not in _PLAIN_TAGS:
            self._report(node.start_mark, f"tag {node.tag!r} is not used here")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, at)
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*at, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - there is no fourth kind
        nothing = node.value == "" and not node.style
        return None if nothing else node.value

    def _mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        # Merged keys first: the places of a mapping's own keys replace theirs.
        for key_node, value_node in sorted(node.value, key=lambda pair: not _is_merge(pair[0])):
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(key_node.start_mark, "expected text as a key")
                continue
            if _is_merge(key_node):
                merged |= self._merge(value_node, at)
                continue
            if key_node.tag not in _PLAIN_TAGS:
                self._report(key_node.start_mark, f"tag {key_node.tag!r} is not used here")
                continue
            key = key_node.value
            if key in first_lines:
                self._report(
                    key_node.start_mark,
                    f"key {key!r} stands here again; the first is in line {first_lines[key]}",
                )
                continue
            first_lines[key] = key_node.start_mark.line + 1
            self.keys[*at, key] = key_node.start_mark
            self.values[*at, key] = value_node.start_mark
            result[key] = self._build(value_node, (*at, key))
        return merged | result

    def _merge(self, node: yaml.Node, at: Location) -> dict[str, Any]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: dict[str, Any] = {}
        # YAML's merge: of several, the earlier wins.
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode):
                self._report(source.start_mark, "expected a mapping to merge")
                continue
            value = self._build(source, at)
            result |= value or {}
        return result

    def explain(self, error: ErrorDetails, model: type[BaseModel], value: object) -> Problem:
        """Turn one pydantic error into a sentence at a place."""
        at, fields = _walk(error["loc"], model, value)
        kind = error["type"]
        if kind == "extra_forbidden":
            mark = self.keys.get(at)
            message = _unknown_key(str(at[-1]), fields)
        elif kind == "missing":
            mark = self.values.get(at[:-1])
            message = f"{str(at[-1])!r} is missing"
        elif kind == "source_without_kind":
            mark = self.values.get(at)
            message = error["msg"]
        else:
            places = self.keys if error["loc"][-1:] == (_KEY,) else self.values
            mark = places.get(at)
            said = _WORDS.get(kind, error["msg"])
            name = ".".join(map(str, at))
            got = error["input"]
            message = f"{name}: {said}" if name else said
            if isinstance(got, (str, list, dict)) or got is None:
                message += f"; got {_brief(got)}"
        mark = mark or _nearest(self.values, at)
        return Problem(self.path, mark.line + 1, mark.column + 1, message)


# Pydantic's mark, behind a key, for what is wrong with the key itself.
_KEY = "[key]"


def _nearest(places: dict[Location, yaml.Mark], at: Location) -> yaml.Mark:
    while at not in places:
        at = at[:-1]
    return places[at]


def _is_merge(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.value == "<<" and not key.style


def _brief(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case str():
            return f"text {value!r}"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _unknown_key(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
    return f"unknown key {key!r}; {advice}"


def _walk(location: Location, model: type[BaseModel], value: object) -> tuple[Location, list[str]]:
    """Follow a pydantic location through the data.

    Returns the same place without pydantic's own marks (a union's tags), and the names of the
    fields of the model that holds it.
    """
    at: list[str | int] = []
    candidates: list[type[BaseModel]] = [model]
    here: object = value
    for part in location:
        if part == _KEY:
            break
        if isinstance(part, str) and len(candidates) > 1:
            # Where there are several models, the tag of one of them comes before its fields.
            candidates = [one for one in candidates if one.__name__.lower().startswith(part)]
            continue
        at.append(part)
        inside = (isinstance(here, dict) and part in here) or (
            isinstance(here, list) and isinstance(part, int) and part < len(here)
        )
        here = here[part] if inside else None  # type: ignore[index]
        if isinstance(part, str) and candidates and part in candidates[0].model_fields:
            candidates = _models_in(candidates[0].model_fields[part].annotation)
    return tuple(at), list(candidates[0].model_fields) if candidates else []


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]
