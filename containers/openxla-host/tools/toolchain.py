"""What every tool here needs: programs run and heard, and what is said of it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class ToolError(Exception):
    """A message for a person; the build ends with it."""


def run(
    *words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and keep what it prints; a program that is not there ends with 127."""
    try:
        return subprocess.run(
            [str(word) for word in words],
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(list(words), 127, f"{words[0]}: not found\n")


def say(text: str) -> None:
    """Print at once, so that the log has things in their order."""
    print(text, flush=True)  # noqa: T201 - the log of the build
