"""Which GCC's C++ library Clang is to take: tried, because a newer one may be beyond it."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from toolchain import ToolError, run, say

CLANG = Path("/usr/lib/llvm-18/bin/clang++")
WANTED = 15
_PROBE = """\
#include <algorithm>
#include <charconv>
#include <chrono>
#include <concepts>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <variant>
#include <vector>
int main() { return std::filesystem::path("a").string() + "b" == "ab" ? 0 : 1; }
"""
_STANDARDS = ("c++17", "c++20")
_KINDS = ("--copt", "--host_copt", "--linkopt", "--host_linkopt")


@dataclass(frozen=True)
class Choice:
    """What was decided, and why.

    Attributes:
        folder: The GCC to take, or None for the one that Clang takes by itself.
        why: A few words for the log.
    """

    folder: Path | None
    why: str


def flags() -> list[str]:
    """Return the words by which Bazel has Clang take the right GCC, and say why.

    Raises:
        ToolError: Clang can read the C++ library of none.
    """
    choice = choose()
    say(f"gcc: {choice.why}")
    if choice.folder is None:
        return []
    return [f"{kind}=--gcc-install-dir={choice.folder}" for kind in _KINDS]


def choose(clang: Path = CLANG, gcc: str = f"gcc-{WANTED}") -> Choice:
    """Compile the standard headers as Clang would by itself, and with GCC 15's if need be.

    Raises:
        ToolError: Neither works, with what Clang said.
    """
    by_itself = _complaint(clang)
    newest = _newest(clang)
    if by_itself is None and newest <= WANTED:
        return Choice(None, f"Clang takes {newest} by itself, and can read its headers")
    reason = (
        f"Clang would take {newest}, whose headers it cannot read: {by_itself}"
        if by_itself
        else f"{newest} is here as well, and what Clang takes may change with it"
    )
    place = folder(gcc)
    with_it = _complaint(clang, f"--gcc-install-dir={place}")
    if with_it is not None:
        raise ToolError(
            f"{clang.name} can read the C++ headers of no GCC here\n"
            f"  by itself: {by_itself or 'they compile'}\n  with {place}: {with_it}\n"
            f"add g++-{WANTED} to the container's packages, then invoke lock"
        )
    return Choice(place, f"{place}, because {reason}")


def folder(gcc: str = f"gcc-{WANTED}") -> Path:
    """Ask GCC where it is.

    Raises:
        ToolError: It is not installed, or has no C++ headers.
    """
    answer = run(gcc, "-print-libgcc-file-name")
    library = Path(answer.stdout.strip())
    if answer.returncode != 0 or not library.is_file():
        raise ToolError(f"{gcc} is not installed: add {gcc} to the packages, then invoke lock")
    place = library.parent
    # Where Clang looks for them: beside lib/gcc/<triple>/<version>, below include/c++/<version>.
    if not (place / "../../../../include/c++" / place.name).resolve().is_dir():
        raise ToolError(
            f"{place} has no C++ headers: add g++-{WANTED} to the packages, then invoke lock"
        )
    return place


def _newest(clang: Path) -> int:
    """Return the major version of the GCC that Clang takes by itself; 0 if it takes none."""
    said = run(clang, "-v", "-E", "-x", "c++", "/dev/null").stdout
    found = re.search(r"^Selected GCC installation: .*/(\d+)[\d.]*$", said, re.MULTILINE)
    return int(found[1]) if found else 0


def _complaint(clang: Path, *options: str) -> str | None:
    """Return the first complaint about the probe, or None if it compiles and links.

    Without the word that readers of logs look for: this one is expected.
    """
    with tempfile.TemporaryDirectory() as scratch:
        probe = Path(scratch) / "probe.cc"
        probe.write_text(_PROBE)
        for standard in _STANDARDS:
            result = run(clang, *options, f"-std={standard}", "-o", Path(scratch) / "probe", probe)
            if result.returncode != 0:
                rows = result.stdout.splitlines() or ["it says nothing"]
                first = next((row for row in rows if "error: " in row), rows[0])
                place, _, said = first.rpartition("error: ")
                where = Path(place.strip(" :")).name
                return f"{said} ({where})" if where else said
    return None
