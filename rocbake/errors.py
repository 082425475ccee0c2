"""One class, and one exit code, for each kind of failure.

A message says what, where, and expected against got; a hint says what to type next.
They are raised where the fault is found and caught once, at the task boundary.
"""

from __future__ import annotations


class RocbakeError(Exception):
    """A failure that is explained to a person without a traceback.

    Attributes:
        exit_code: What the process ends with; one number a kind, listed in docs/exit-codes.md.
        hint: The next command to type, or None where nothing can be suggested.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def for_humans(self) -> str:
        """Return the message, and the hint on a line of its own."""
        return f"{self}\n  → {self.hint}" if self.hint else str(self)


class UsageError(RocbakeError):
    """An option or a combination of options that makes no sense."""

    exit_code = 2


class RecipeError(RocbakeError):
    """A recipe, container or configuration file that does not say what it must."""

    exit_code = 2


class LockError(RocbakeError):
    """A lock that is missing, stale, unreadable or cannot be made."""

    exit_code = 3


class FetchError(RocbakeError):
    """A source that could not be had, or was not what the lock says."""

    exit_code = 4


class BuildError(RocbakeError):
    """A build step, an image test or a check of the product failed."""

    exit_code = 5


class ReproError(RocbakeError):
    """A second build gave other bytes."""

    exit_code = 6


class EngineError(RocbakeError):
    """The container engine is missing, too old, set up wrongly or out of room."""

    exit_code = 7


class TargetError(RocbakeError):
    """A GPU target that is not known, or not usable with what was asked."""

    exit_code = 8


class SmokeError(RocbakeError):
    """A smoke test that failed: the GPU, or the way to it, does not do what it must."""

    exit_code = 9


class NoGpuError(RocbakeError):
    """There is no GPU here that could compute."""

    exit_code = 10


class FitError(RocbakeError):
    """An artifact that does not fit this machine."""

    exit_code = 11


class TrustError(RocbakeError):
    """A signature that is missing, or not made by a key that is trusted."""

    exit_code = 12
