"""Ninja's progress, read: how far a run of it is, and how long it will take.

Pure. Ninja tells of each object when it is finished, as NINJA_STATUS="[%f/%t] " has it:
https://ninja-build.org/manual.html#_environment_variables
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_FINISHED = re.compile(r"^\[([0-9]{1,7})/([0-9]{1,7})\] (.*)$")
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
    """A line of Ninja's.

    Attributes:
        done: How many objects are finished.
        total: How many there will be, as far as is known.
        name: The object's short name, such as acc.cu.
        is_hip: Whether it is device code, which takes long.
    """

    done: int
    total: int
    name: str
    is_hip: bool


def parse(text: str) -> Finished | None:
    """Return what a line says of Ninja's progress, or None if it says nothing of that.

    >>> parse("[12/197] Building HIP object ggml/src/CMakeFiles/ggml-hip.dir/acc.cu.o")
    Finished(done=12, total=197, name='acc.cu', is_hip=True)
    """
    match = _FINISHED.match(text)
    if not match:
        return None
    done, total = int(match[1]), int(match[2])
    if not 0 < total >= done:
        return None
    what = match[3].rstrip()
    last = what.rpartition(" ")[2]
    # CMake names the file at the end, "Building C object x.c.o"; others say a sentence.
    is_file = "/" in last or what.startswith(("Building ", "Linking "))
    name = last.rpartition("/")[2].removesuffix(".o") if is_file else what
    return Finished(done, total, name[:_LONGEST_NAME], what.startswith("Building HIP object "))


class Run:
    """One run of Ninja.

    Attributes:
        latest: The line that came last.
        seconds: How long it has taken up to that line.
    """

    def __init__(self, began: float, first: Finished, at: float, *, hip: int = 0) -> None:
        """Begin with the first line.

        Args:
            began: When Ninja was started, in seconds of any clock.
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
        return self.latest.done == self.latest.total

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
