"""What Bazel downloaded without knowing what it would be: read from its log of repository rules.

The log is a sequence of WorkspaceEvent messages, each behind its length, in the encoding of
protocol buffers: https://protobuf.dev/programming-guides/encoding/. The messages:
https://github.com/bazelbuild/bazel/blob/7.7.1/src/main/java/com/google/devtools/build/lib/bazel/debug/workspace_log.proto
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from toolchain import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Numbers of fields: of WorkspaceEvent, then of the events that bring something from elsewhere.
_CONTEXT = 2
_EXECUTE = 3
_ARGUMENT = 2
_DOWNLOADS = {4: {"url": 1, "sums": (3, 5)}, 5: {"url": 1, "sums": (3, 6)}}
# Programs that rules run to download by themselves, past Bazel and its repository cache: those of
# git_repository and of Python's whl_library among them.
_DOWNLOADERS = {"cargo", "curl", "go", "npm", "pip", "pip3", "pnpm", "wget", "yarn"}
_GIT_VERBS = {"clone", "fetch", "pull", "submodule"}
_PYTHON_MODULE = re.compile(r"(^|\.)(pip|wheel_installer|whl_installer)(\.|$)")
_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}
_LONGEST_VARINT = 10


def without_checksum(log: bytes) -> dict[str, list[str]]:
    """Return where whatever has no checksum came from, by name of repository.

    That is the first address of a download, or the command of a rule that downloads by itself: it
    may compare something with something, but the repository cache has nothing of it.

    Raises:
        ToolError: The log is damaged, or such a thing belongs to no repository.
    """
    found: dict[str, list[str]] = {}
    position = 0
    while position < len(log):
        length, position = _varint(log, position)
        if position + length > len(log):
            raise ToolError("Bazel's log of repository rules ends within a message")
        context, urls = "", []
        for number, value in _fields(log[position : position + length]):
            if number == _CONTEXT:
                context = value.decode("utf-8", "replace")
            elif number in _DOWNLOADS:
                urls += _unsure(value, _DOWNLOADS[number])
            elif number == _EXECUTE:
                urls += _by_itself(value)
        if urls:
            name = re.fullmatch(r"repository @+([^/@]+)", context)
            if not name:
                # An extension of a module has no folder that could be kept.
                raise ToolError(f"{context or 'something'} downloads without a checksum: {urls[0]}")
            found.setdefault(name[1], []).extend(urls)
        position += length
    return {name: list(dict.fromkeys(urls)) for name, urls in sorted(found.items())}


def _unsure(event: bytes, numbers: dict[str, object]) -> list[str]:
    """Return the address of a download, unless its rule said what it must be."""
    fields = list(_fields(event))
    sums = [value for number, value in fields if number in numbers["sums"] and value]  # type: ignore[operator]
    urls = [
        value.decode("utf-8", "replace") for number, value in fields if number == numbers["url"]
    ]
    return [] if sums else urls[:1]


def _by_itself(event: bytes) -> list[str]:
    """Return the command of a rule, if it is one that downloads."""
    words = [
        value.decode("utf-8", "replace") for number, value in _fields(event) if number == _ARGUMENT
    ]
    program = PurePath(words[0]).name if words else ""
    # Python is run as `python3 -I -m pip install`, with any options before the module's name.
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    is_one = (
        program in _DOWNLOADERS
        or (program == "git" and not _GIT_VERBS.isdisjoint(words))
        or (program.startswith("python") and bool(_PYTHON_MODULE.search(module)))
    )
    return [" ".join(words)] if is_one else []


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Walk through the fields of a message; those that are no bytes or text come as empty."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        value = b""
        if kind == _VARINT:
            _, position = _varint(message, position)
        elif kind == _LENGTH:
            length, position = _varint(message, position)
            value = message[position : position + length]
            position += length
        elif kind in _FIXED:
            position += _FIXED[kind]
        else:
            raise ToolError(f"Bazel's log of repository rules has a field of kind {kind}")
        if position > len(message):
            raise ToolError("Bazel's log of repository rules ends within a field")
        yield key >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:  # noqa: PLR2004 - the last one has its highest bit clear
            return value, position + count + 1
    raise ToolError("Bazel's log of repository rules ends within a number")
