"""An Elixir package's make step, run without Elixir: its variables, and what it would run.

elixir-nx/xla hands its words to make in the variables BUILD_FLAGS and BUILD_INTERNAL_FLAGS, which
its Makefile puts behind words of its own. What it would run is read from `make -n` and compared,
word by word, so that a release that runs something else is noticed and not built.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from toolchain import ToolError, run

if TYPE_CHECKING:
    from pathlib import Path

    from line import Line


def words(told: Line, workspace: Path, package: Path, archive: Path) -> list[str]:
    """Return the command line of make.

    Args:
        told: What Bazel is to be told.
        workspace: The workspace, where the Makefile expects it: xla-<revision>.
        package: The Elixir package.
        archive: What is to be made.
    """
    revision = workspace.name.removeprefix("xla-")
    variables = {
        "ROOT_DIR": str(package),
        "BUILD_CACHE_DIR": str(workspace.parent),
        "BUILD_ARCHIVE": str(archive),
        "BUILD_ARCHIVE_DIR": str(archive.parent),
        "OPENXLA_GIT_REV": revision,
        "BUILD_FLAGS": _quoted(told.flags),
        "BUILD_INTERNAL_FLAGS": _quoted(told.after),
    }
    return [
        "make",
        "--no-print-directory",
        *(f"{name}={value}" for name, value in variables.items()),
        str(archive),
    ]


def _quoted(several: list[str]) -> str:
    """Return words as make hands them on to a shell: it replaces what a dollar sign begins."""
    return shlex.join(several).replace("$", "$$")


def require_same(told: Line, make: list[str]) -> None:
    """Check that make would run Bazel with the very words that the plan says.

    Raises:
        ToolError: It would not, with the first word that differs.
    """
    answer = run(make[0], "--dry-run", *make[1:], cwd=_package(make))
    if answer.returncode != 0:
        raise ToolError(f"make cannot say what it would do:\n{answer.stdout.rstrip()}")
    said = answer.stdout.replace("\\\n", " ")
    if re.search(r"\bgit (init|fetch|clone)\b", said):
        raise ToolError(
            "upstream's make step would fetch OpenXLA by itself: the recipe names another revision "
            "than its Makefile, or the workspace is not where that expects it"
        )
    found = re.search(r"\bbazel build (.*?)(?:&&|;|$)", said, re.DOTALL)
    if not found:
        raise ToolError("upstream's make step runs no `bazel build`:\n" + said.rstrip())
    got, wanted = shlex.split(found[1]), told.words
    for number in range(max(len(got), len(wanted))):
        here = got[number] if number < len(got) else "nothing"
        plan = wanted[number] if number < len(wanted) else "nothing"
        if here != plan:
            raise ToolError(
                f"upstream's make step tells Bazel something else than recipe.yaml says, "
                f"word {number + 1}:\n  expected {plan}\n  got      {here}"
            )


def _package(make: list[str]) -> Path:
    from pathlib import Path  # noqa: PLC0415 - only types need it otherwise

    root = next(word for word in make if word.startswith("ROOT_DIR="))
    return Path(root.removeprefix("ROOT_DIR="))
