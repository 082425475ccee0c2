"""Dockerfiles, read for what would let something unlocked in: told with file and line, early.

BuildKit refuses most of it as well, but only when it gets there, and in other words.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
import re
from typing import TYPE_CHECKING, NamedTuple

from dockerfile_parse import DockerfileParser

from rocbake.document import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# The frontend looks for its own name behind both marks, and in an object that opens the file.
_DIRECTIVE = re.compile(r"\s*(#|//)\s*(syntax|escape|check)\s*=", re.IGNORECASE)
_SHEBANG = re.compile(rb"#![^\n]*\n")
_MOUNTS = {"bind", "tmpfs"}
# Compiled objects, which make a second build faster and no other: `invoke verify` does without.
_CACHES = {"rocbake-ccache", "rocbake-bazel"}
# The one secret that a step with a network may be given.
_NETRC = "netrc"
_REMOTE = re.compile(r"^([a-z][a-z0-9+.-]*://|git@)", re.IGNORECASE)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S+))?(?:\s+|$)")
_SECRET = re.compile(r"(token|secret|passw|credential|api_?key|private_?key)", re.IGNORECASE)


class _Instruction(NamedTuple):
    line: int
    name: str
    flags: list[tuple[str, str]]
    words: list[str]


def problems(path: Path, *, contexts: Iterable[str], online: Iterable[str] = ()) -> list[Problem]:
    """Return what in a Dockerfile is not locked, or could reach a network.

    Args:
        path: The Dockerfile.
        contexts: The names that a plan gives it: of other layers and of folders of locked files.
        online: The stages whose steps may have a network.
    """
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        instructions = _read(content)
    except (OSError, ValueError, KeyError) as wrong:
        return [Problem(path, 1, 1, f"not a Dockerfile: {wrong}")]
    found = [
        Problem(
            path, number, 1, f"directive {line.strip()!r}: it would change what reads this file"
        )
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1)
        if _DIRECTIVE.match(line)
    ]
    if _SHEBANG.sub(b"", content, count=1).lstrip().startswith(b"{"):
        found.append(Problem(path, 1, 1, "JSON: it could name what reads this file"))
    known = {"scratch", *contexts}
    stage = ""
    for one in instructions:
        messages = _check(one, known, is_online=stage in set(online))
        found += [Problem(path, one.line, 1, message) for message in messages]
        if one.name == "FROM":
            stage = one.words[2] if len(one.words) == 3 else ""  # noqa: PLR2004 - FROM x AS stage
            known |= {stage} if stage else set()
    return found


def _read(content: bytes) -> list[_Instruction]:
    parsed = DockerfileParser(fileobj=io.BytesIO(content)).structure
    found = []
    for one in parsed:
        if one["instruction"] == "COMMENT":
            continue
        value, flags = one["value"].strip(), []
        while match := _FLAG.match(value):
            flags.append((match.group(1), match.group(2) or ""))
            value = value[match.end() :]
        found.append(
            _Instruction(one["startline"] + 1, one["instruction"].upper(), flags, _words(value))
        )
    return found


def _words(value: str) -> list[str]:
    """Return the words of a value, which may be a JSON list of them."""
    with contextlib.suppress(ValueError, RecursionError):
        listed = json.loads(value)
        if isinstance(listed, list) and all(isinstance(word, str) for word in listed):
            return listed
    return value.split()


def _check(one: _Instruction, known: set[str], *, is_online: bool) -> list[str]:
    names = f"known here are {', '.join(sorted(known))}"
    options = dict(one.flags)
    match one.name:
        case "FROM":
            return [
                f"FROM {image}: an image of a registry is not locked; {names}"
                for image in one.words[:1] or [""]
                if image not in known
            ]
        case "ADD" | "COPY":
            found = [
                f"{one.name} {word}: not locked; make it one of the recipe's sources"
                for word in one.words[:-1]
                if _REMOTE.match(word.strip("'\""))
            ]
            found += [
                f"{one.name} {word}: a variable could hold an address; write out what it stands for"
                for word in one.words[:-1]
                if "$" in word
            ]
            origin = options.get("from")
            if origin is not None and origin not in known:
                found.append(f"{one.name} --from={origin}: not locked; {names}")
            return found
        case "RUN":
            return _check_run(one, known, names, is_online=is_online)
        case "ONBUILD":
            return ["ONBUILD: would act in builds that nothing here has looked at"]
        case "ARG" | "ENV":
            return [
                f"{one.name} {word.partition('=')[0]}: would stay readable in the image's history"
                for word in one.words
                if _SECRET.search(word.partition("=")[0])
            ]
        case _:
            return []


def _check_run(one: _Instruction, known: set[str], names: str, *, is_online: bool) -> list[str]:
    found = []
    allowed = {"none", "default"} if is_online else {"none"}
    if not any(flag == "network" and setting in allowed for flag, setting in one.flags):
        found.append("RUN without --network=none: could fetch what is not locked")
    if any(flag == "security" for flag, _ in one.flags):
        found.append("RUN --security: rights that no build here needs")
    for value in (value for flag, value in one.flags if flag == "mount"):
        settings = _settings(value)
        is_cache = ("type", "cache") in settings and any(("id", one) in settings for one in _CACHES)
        is_netrc = is_online and {("type", "secret"), ("id", _NETRC)} <= set(settings)
        for key, setting in settings:
            if key == "from" and setting not in known:
                found.append(f"RUN --mount from={setting}: not locked; {names}")
            if key == "type" and setting not in _MOUNTS and not (is_cache or is_netrc):
                found.append(
                    f"RUN --mount type={setting}: state that is not locked, and that a second "
                    "build from nothing would not have; only bind and tmpfs are allowed, and "
                    f"the caches of compilers (id={' or '.join(sorted(_CACHES))})"
                )
    return found


def _settings(value: str) -> list[tuple[str, str]]:
    """Return the keys and values of a flag, which is a line of CSV."""
    try:
        fields = [field for row in csv.reader([value.strip("'")]) for field in row]
    except csv.Error:
        fields = [f"type={value}"]  # which no mount is of
    parts = [field.strip().partition("=") for field in fields]
    return [(key.lower(), setting) for key, _, setting in parts]
