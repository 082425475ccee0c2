"""Compiling: as many at once as fit, with progress that rocbake reads."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import TYPE_CHECKING

from toolchain import ToolError, ccache_environment, cores, jobs, memory, run, say

if TYPE_CHECKING:
    from pathlib import Path


def build(folder: Path, names: list[str]) -> None:
    """Build targets of a configured folder; all of them if none is named.

    Raises:
        ToolError: Ninja failed; what it said stands in the log.
    """
    count = jobs()
    # rocbake reads these two: what to say if memory runs out, and how long what is left takes.
    say(f"jobs: {count} ({cores()} cores, {memory() / 1024**3:.1f} GiB)")
    commands = json.loads((folder / "compile_commands.json").read_text())
    say(f"hip objects: {sum('-x hip' in one['command'] for one in commands)}")
    environment = ccache_environment()
    start = time.monotonic()
    code = subprocess.run(
        ["ninja", "-C", str(folder), "-j", str(count), *names],
        env=os.environ | environment | {"NINJA_STATUS": "[%f/%t] "},
        check=False,
    ).returncode
    if environment:
        say(run("ccache", "--show-stats", env=environment).stdout.rstrip())
    if code != 0:
        raise ToolError(f"ninja ended with exit code {code}")
    say(f"compiled in {time.monotonic() - start:.0f} s")
