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
    """Run a program and keep what it prints; one that cannot be started ends with 127."""
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
    except OSError as wrong:
        # Not executable, or cut short by a full disk: something to tell, and not a traceback.
        said = f"{words[0]}: {wrong.strerror or wrong}\n"
        return subprocess.CompletedProcess(list(words), 127, said)


def say(text: str) -> None:
    """Print at once, so that the log has things in their order."""
    print(text, flush=True)  # noqa: T201 - the log of the build
