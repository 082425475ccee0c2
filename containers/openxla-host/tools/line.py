"""The command line of Bazel: what the plan says, and what only this container knows.

The plan's part comes as JSON in the variable BAZEL, see rocbake/bazel.py.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import gcc
import jobs
from toolchain import say

HOME = Path("/rocbake/home")
# Apart from the home folder, so that a test can build a second time in another one.
OUTPUT_ROOT = Path(os.environ.get("BAZEL_OUTPUT_ROOT", "/rocbake/bazel"))
DISK_CACHE = Path("/rocbake/disk-cache")


@dataclass(frozen=True)
class Line:
    """The words behind `bazel build`, in the three parts that an upstream's make step knows.

    Attributes:
        before: Upstream's, that come first.
        flags: What is added.
        after: Upstream's, that come last, but for the label.
        target: The label.
    """

    before: list[str]
    flags: list[str]
    after: list[str]
    target: str

    @property
    def words(self) -> list[str]:
        """All of them, in their order."""
        return [*self.before, *self.flags, *self.after, self.target]


def planned() -> list[str]:
    """Return the words that the plan says, before anything of this container is known."""
    told = json.loads(os.environ["BAZEL"])
    return [*told["before"], *told["flags"], *told["after"]]


def line(*, offline: bool) -> Line:
    """Return what Bazel is told.

    Args:
        offline: Whether it builds, and does not download.

    Raises:
        ToolError: No compiler here can build with any GCC that is here.
    """
    told = json.loads(os.environ["BAZEL"])
    flags = [*told["flags"], *gcc.flags()]
    if offline:
        flags += [*told["offline"], *jobs.flags(), *json.loads(os.environ.get("REMOTE", "[]"))]
        if os.environ.get("CCACHE") == "1" and DISK_CACHE.is_dir():
            flags.append(f"--disk_cache={DISK_CACHE}")
    # For a log, and not for a terminal.
    flags += ["--color=no", "--curses=no", "--show_progress_rate_limit=5"]
    return Line(told["before"], flags, told["after"], told["target"])


def write_startup() -> None:
    """Write what Bazel is told before its verb, which a make step cannot hand on."""
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / ".bazelrc").write_text(f"startup --output_user_root={OUTPUT_ROOT}\n")
    say(f"bazel: home {HOME}, output below {OUTPUT_ROOT}")
