"""The progress of compiling, read: how far Ninja or Bazel is, and how long it will take.

Pure. Ninja tells of each object when it is finished, as NINJA_STATUS="[%f/%t] " has it:
https://ninja-build.org/manual.html#_environment_variables
Bazel, where it writes to no terminal, tells every few seconds how many actions are done, of how
many that it knows of so far: "[9 / 14] Compiling a/b.cc; 1s local ... (2 actions, 1 running)".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_FINISHED = re.compile(r"^\[([0-9]{1,7})/([0-9]{1,7})\] (.*)$")
_OF_BAZEL = re.compile(r"^\[([0-9,]{1,9}) / ([0-9,]{1,9})\] ([^;(]*)")
_LONGEST_NAME = 60
# Measured on whisper.cpp for one target: 26.5 s of a core for an object of HIP, 5.0 s for another.
_HIP_FACTOR = 5.0
# Objects that are alike are compiled in a row, so earlier ones say little of the pace.
_REMEMBERED = 50
# Before that, nothing is said of the time left.
_FEW_PARTS = 0.04
_FEW_OBJECTS = 5
_FEW_SECONDS = 20.0
# Up to so many minutes, a guess is rounded up to a multiple of so many.
_STEPS = ((10, 1), (60, 5), (math.inf, 10))


@dataclass(frozen=True)
class Finished:
    """A line of Ninja's or Bazel's.

    Attributes:
        done: How many objects are finished.
        total: How many there will be, as far as is known.
        name: The object's short name, such as acc.cu.
        is_hip: Whether it is device code, which takes long.
        grows: Whether there may be more of them than is known, so that no count is the last.
    """

    done: int
    total: int
    name: str
    is_hip: bool
    grows: bool = False


def parse(text: str) -> Finished | None:
    """Return what a line says of the progress, or None if it says nothing of that.

    >>> parse("[12/197] Building HIP object ggml/src/CMakeFiles/ggml-hip.dir/acc.cu.o")
    Finished(done=12, total=197, name='acc.cu', is_hip=True, grows=False)
    >>> parse("[1,234 / 5,678] Compiling xla/literal.cc; 12s local ... (2 actions running)")
    Finished(done=1234, total=5678, name='literal.cc', is_hip=False, grows=True)
    """
    match = _FINISHED.match(text) or _OF_BAZEL.match(text)
    if not match:
        return None
    done, total = (int(number.replace(",", "") or 0) for number in match.group(1, 2))
    if not 0 < total >= done:
        return None
    is_bazel = match.re is _OF_BAZEL
    what = match[3].rstrip(" ." if is_bazel else None)
    last = what.rpartition(" ")[2]
    # CMake names the file at the end, "Building C object x.c.o"; others say a sentence.
    is_file = "/" in last or what.startswith(("Building ", "Linking "))
    name = last.rpartition("/")[2].removesuffix(".o") if is_file else what
    is_hip = what.startswith("Building HIP object ")
    return Finished(done, total, name[:_LONGEST_NAME], is_hip, grows=is_bazel)


class Run:
    """One run of Ninja or Bazel.

    Attributes:
        latest: The line that came last.
        seconds: How long it has taken up to that line.
    """

    def __init__(self, began: float, first: Finished, at: float, *, hip: int = 0) -> None:
        """Begin with the first line.

        Args:
            began: When it was started, in seconds of any clock.
            first: The first line.
            at: When it came, on the same clock.
            hip: How many objects of HIP there are; 0 if that is not known.
        """
        self._began = began
        self._hip = hip
        self._means: dict[bool, float] = {}
        self._counts = {True: 0, False: 0}
        self._left: float | None = None
        self.seconds = 0.0
        self.latest = Finished(0, 1, "", is_hip=False)
        self.take(first, at)

    @property
    def is_over(self) -> bool:
        """Whether every object is finished."""
        return self.latest.done == self.latest.total and not self.latest.grows

    def goes_on_with(self, line: Finished) -> bool:
        """Tell whether a line is of this run: the total may change, the count never falls."""
        return not self.is_over and line.done >= self.latest.done

    def take(self, line: Finished, at: float) -> None:
        """Take one more line."""
        seconds = max(self.seconds, at - self._began)
        new = line.done - self.latest.done
        if new:
            each = (seconds - self.seconds) / new
            known = self._means.get(line.is_hip, each)
            self._counts[line.is_hip] += new
            share = min(1.0, new / min(self._counts[line.is_hip], _REMEMBERED))
            self._means[line.is_hip] = known + (each - known) * share
        self.latest = line
        self.seconds = seconds
        self._left = self._estimate()

    def left(self, at: float) -> float | None:
        """Return about how many seconds are left, or None while too little is known.

        It counts down while nothing is heard, by no more than one object's part.
        """
        left, line = self._left, self.latest
        if left is None:
            return None
        least = left * (1 - 1 / max(1, line.total - line.done))
        return max(least, left - max(0.0, at - self._began - self.seconds))

    def _estimate(self) -> float | None:
        line = self.latest
        if line.done < max(_FEW_OBJECTS, _FEW_PARTS * line.total) or self.seconds < _FEW_SECONDS:
            return None
        if not self._means:
            return None
        remaining = line.total - line.done
        if not self._hip:
            # The mean that is right now: whether more of the other kind comes is not known.
            return remaining * self._means.get(line.is_hip, max(self._means.values()))
        hip = min(max(0, self._hip - self._counts[True]), remaining)
        usual = self._means.get(False, self._means.get(True, 0.0) / _HIP_FACTOR)
        dear = self._means.get(True, usual * _HIP_FACTOR)
        return hip * dear + (remaining - hip) * usual


def span(seconds: float) -> str:
    """Return a length of time as people say it.

    >>> span(43.4), span(723), span(3900)
    ('43 s', '12 min 03 s', '1 h 05 min')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def about(seconds: float) -> str:
    """Return a length of time that is only guessed, no finer than it can be known.

    >>> about(20), about(400), about(1400), about(3500), about(4000)
    ('1 min', '7 min', '25 min', '1 h 00 min', '1 h 10 min')
    """
    for limit, step in _STEPS:
        minutes = max(1, math.ceil(seconds / 60 / step) * step)
        if minutes <= limit:
            break
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
