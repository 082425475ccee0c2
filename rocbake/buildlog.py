"""BuildKit's plain progress, read: what a person is told of it, and what is told of a failure.

Its format: https://github.com/moby/buildkit/blob/master/util/progress/progressui/printer.go
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from rocbake import compiling, diagnosis, log
from rocbake.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

_STEP = re.compile(r"^#([0-9]+) \[([^\]]+)\] (.+)$")
_EXPORT = re.compile(r"^#([0-9]+) (exporting to .*)$")
# What a step prints has its seconds before it, so no program can look like the other lines.
_PRINTED = re.compile(r"^#([0-9]+) ([0-9]{1,9}\.[0-9]{1,9}) (.*)$")
_ENDED = re.compile(
    r"^#([0-9]+) (?:DONE ([0-9]{1,9}\.[0-9]{1,9})s|DONE|CACHED|CANCELED|ERROR: .*)$"
)
_FAILED = re.compile(r"^#([0-9]+) ERROR: ")
# Not where it is a word of a command line, such as -Wno-error.
_CAUSE = re.compile(r"(?<![-=\w])(error|fatal)\b|^E: ", re.IGNORECASE)
# What the containers' tools print before they compile, because only they know.
_HIP = re.compile(r"^hip objects: ([0-9]{1,7})$")
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?")
_LONGEST_NAME = 100
_TAIL_LINES = 20
_QUIET_SECONDS = 1.0
_TELL_SECONDS = 30.0


class BuildLog:
    """Reads BuildKit's plain progress: tells of each step that ended, remembers what failed."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._running: dict[str, _Step] = {}
        self._shown: _Step | None = None
        self._turn = threading.Lock()

    def line(self, text: str) -> None:
        """Take one line."""
        with self._turn:
            if printed := _PRINTED.match(text):
                step = self._running.get(printed[1])
                if step:
                    step.take(float(printed[2]), _visible(printed[3]))
                    self._choose(step)
            elif ended := _ENDED.match(text):
                self._end(ended[1], float(ended[2] or 0))
            else:
                self._begin(text)

    def status(self) -> str:
        """Return what goes on now, in one line; empty if nothing does. Waits for nobody."""
        shown = self._shown
        return shown.describe() if shown else ""

    def _begin(self, text: str) -> None:
        if step := _STEP.match(text):
            if step[2].endswith("internal"):
                return
            words = re.sub(r"--(network|mount)=\S+ ", "", " ".join(step[3].split()))
            self._names[step[1]] = _visible(f"[{step[2]}] {words}")[:_LONGEST_NAME]
        elif step := _EXPORT.match(text):
            self._names.setdefault(step[1], _visible(step[2])[:_LONGEST_NAME])
        else:
            return
        self._choose(self._running.setdefault(step[1], _Step(self._names[step[1]])))

    def _end(self, number: str, seconds: float) -> None:
        step = self._running.pop(number, None)
        if step:
            step.end()
            if seconds >= _QUIET_SECONDS:
                log.say(f"  {step.name}  {seconds:.1f} s")
        self._choose(next(reversed(self._running.values()), None))

    def _choose(self, heard: _Step | None) -> None:
        """Show the step that was heard last, unless another one compiles."""
        compiling = (one for one in self._running.values() if one.is_compiling)
        self._shown = next(compiling, heard)

    def failure(self, output: str, log_path: Path) -> BuildError:
        """Return an error: the failed step, its cause, its first error and its last lines."""
        # Not splitlines(): what a step printed may hold a lone carriage return.
        lines = [line for line in output.split("\n") if line.strip()]
        failed = next(filter(None, map(_FAILED.match, lines)), None)
        if failed:
            number = failed[1]
            parts = [f"step failed: {self._names.get(number, number)}"]
            # BuildKit says a step's name again where it comes back from another, after "...".
            own = [
                line
                for line in lines
                if line.startswith(f"#{number} ")
                and not (_STEP.match(line) or line == f"#{number} ...")
            ]
            said = [_visible(re.sub(rf"^#{number} ([0-9.]+ )?", "", line)) for line in own]
        else:
            parts = ["the build failed"]
            said = [_visible(line) for line in lines]
        cause = diagnosis.find(said)
        if cause:
            parts.append(f"cause: {cause.sentence}")
        if failed:
            printed = [line for line in said if not line.startswith(("[", "ERROR: "))]
            first = next(filter(_CAUSE.search, printed), None)
            if first:
                parts.append(f"first error: {first}")
        parts += [f"  | {line}" for line in said[-_TAIL_LINES:]]
        if any("output clipped" in line for line in lines):
            parts.append("BuildKit clipped this step's output: the cause may be missing above")
        parts.append(f"whole log: {log_path}")
        return BuildError("\n".join(parts), hint=cause.remedy if cause else None)


def _visible(text: str) -> str:
    """Return what a terminal would still show of a line: no colours, nothing written over."""
    text = _ESCAPE.sub("", text).rstrip("\r").rpartition("\r")[2]
    return "".join(filter(str.isprintable, text.expandtabs(4))).rstrip()


class _Step:
    """A step that runs. Its clock is BuildKit's: seconds since the step began."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._began = time.monotonic()
        self._heard = 0.0
        self._told = 0.0
        self._hip = 0
        self._run: compiling.Run | None = None

    @property
    def is_compiling(self) -> bool:
        """Whether Ninja or Bazel runs."""
        return self._run is not None

    def take(self, seconds: float, text: str) -> None:
        """Take what the step printed, and when."""
        # BuildKit holds back one step's lines for a while where several run.
        self._began = min(self._began, time.monotonic() - seconds)
        if finished := compiling.parse(text):
            self._compile(seconds, finished)
        elif hip := _HIP.match(text):
            self._hip = int(hip[1])
        self._heard = seconds

    def _compile(self, seconds: float, finished: compiling.Finished) -> None:
        if self._run and self._run.goes_on_with(finished):
            self._run.take(finished, seconds)
        else:
            # What was heard before the first object is finished is about its beginning.
            self._run = compiling.Run(self._heard, finished, seconds, hip=self._hip)
            self._told = self._heard
        if self._run.is_over:
            self.end()
        elif seconds - self._told >= _TELL_SECONDS and not log.is_terminal():
            log.say(self.describe())
            self._told = seconds

    def end(self) -> None:
        """Tell how far compiling came, if there was any."""
        run, self._run = self._run, None
        if run and run.seconds >= _QUIET_SECONDS:
            line = run.latest
            log.say(f"  {line.done}/{line.total} compiled  {run.seconds:.1f} s")

    def describe(self) -> str:
        """Return what it does now; what matters most comes first, for narrow terminals."""
        now = max(0.0, time.monotonic() - self._began)
        run = self._run
        if run is None:
            return f"  {compiling.span(now)}  {self.name}"
        line, left = run.latest, run.left(now)
        until = "" if left is None else f", about {compiling.about(left)} left"
        percent = 100 * line.done // line.total
        return f"  {line.done}/{line.total}, {percent} %  {compiling.span(now)}{until}  {line.name}"
