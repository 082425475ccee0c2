"""BuildKit's plain progress, read: what a person is told of it, and what is told of a failure."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from rocbake import log

if TYPE_CHECKING:
    from pathlib import Path


class BuildLog:
    """Reads BuildKit's plain progress: tells of each step that ended, remembers what failed."""

    _STEP = re.compile(r"^#(\d+) \[([^\]]+)\] (.+)$")
    _DONE = re.compile(r"^#(\d+) (DONE ([0-9.]+)s|CACHED|ERROR: .*)$")
    # What a step prints has its seconds before it, so no program can look like this.
    _FAILED = re.compile(r"^#(\d+) ERROR: ")
    _CAUSE = re.compile(r"\b(error|fatal)\b|^E: ", re.IGNORECASE)
    _QUIET_SECONDS = 1.0

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._turn = threading.Lock()

    def line(self, text: str) -> None:
        """Take one line."""
        with self._turn:
            step = self._STEP.match(text)
            if step and not step.group(2).endswith("internal"):
                words = " ".join(step.group(3).split())
                words = re.sub(r"--(network|mount)=\S+ ", "", words)
                self._names[step.group(1)] = f"[{step.group(2)}] {words}"[:100]
            exporting = re.match(r"^#(\d+) (exporting to .*|\[.*\] exporting .*)$", text)
            if exporting:
                self._names.setdefault(exporting.group(1), exporting.group(2))
            done = self._DONE.match(text)
            if not done or done.group(1) not in self._names:
                return
            seconds = float(done.group(3) or 0)
            if done.group(3) and seconds >= self._QUIET_SECONDS:
                log.say(f"  {self._names[done.group(1)]}  {seconds:.1f} s")

    def failure(self, output: str, log_path: Path) -> str:
        """Return the failed step, its first error and its last lines."""
        lines = [line for line in output.splitlines() if line.strip()]
        failed = next(filter(None, map(self._FAILED.match, lines)), None)
        parts = []
        if failed:
            number = failed.group(1)
            parts.append(f"step failed: {self._names.get(number, number)}")
            said = [
                re.sub(rf"^#{number} ([0-9.]+ )?", "", line)
                for line in lines
                if line.startswith(f"#{number} ")
            ]
            printed = [line for line in said if not line.startswith(("[", "ERROR: "))]
            first = next(filter(self._CAUSE.search, printed), None)
            if first:
                parts.append(f"first error: {first}")
            parts += [f"  | {line}" for line in said[-20:]]
        else:
            parts.append("the build failed")
            parts += [f"  | {line}" for line in lines[-20:]]
        if any("output clipped" in line for line in lines):
            parts.append("BuildKit clipped this step's output: the cause may be missing above")
        parts.append(f"whole log: {log_path}")
        return "\n".join(parts)
