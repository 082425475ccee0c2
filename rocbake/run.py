"""The one door to other programs: arguments as a list, output to a log, nothing left running."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from rocbake.errors import BuildError, RocbakeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_TAIL_LINES = 20
_GRACE_SECONDS = 10.0
# A program's background child may keep the pipe open for ever; its parent's end is our end.
_DRAIN_SECONDS = 2.0
_GLANCE_SECONDS = 1.0


# prctl(2): the signal that a process gets when the one that started it ends, however it ends.
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Result:
    """What a program printed and ended with; `returncode` is negative for a signal."""

    returncode: int
    stdout: str
    stderr: str


def run(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    log_path: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    check: bool = True,
    error: type[RocbakeError] = BuildError,
) -> Result:
    """Run a program to its end, without standard input, in a process group of its own.

    Args:
        arguments: The program and its arguments; never a shell line.
        cwd: The folder it runs in.
        env: Its whole environment; None passes ours on.
        timeout: Seconds after which the group is ended and `error` raised.
        log_path: A file that both output streams are appended to, line by line.
        on_line: Called with each line of either stream, from a thread of its own.
        check: Whether an exit code other than 0 raises `error`.
        error: The class raised on failure.

    Raises:
        RocbakeError: `error`, when the program is missing, fails or takes too long; the message
            holds the line to paste and the last lines of the output.
    """
    words = [os.fspath(argument) for argument in arguments]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(log_path.open("a", encoding="utf-8")) if log_path else None
        output = _Output(log, on_line)
        with _signals_held() as held:
            process = _start(words, cwd=cwd, env=env, error=error)
            readers = output.follow(process)
        try:
            for number in held:
                signal.raise_signal(number)
            _wait(process, timeout)
        except subprocess.TimeoutExpired as late:
            _end(process)
            raise error(
                f"took more than {timeout:g} s and was stopped: {shlex.join(words)}"
            ) from late
        except BaseException:
            _end(process)
            raise
        deadline = time.monotonic() + _DRAIN_SECONDS
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))
    result = Result(process.returncode, "".join(output.stdout), "".join(output.stderr))
    if check and result.returncode != 0:
        # Nothing tells which of the two streams came first; why it failed stands in the second.
        tail = [*output.stdout[-_TAIL_LINES:], *output.stderr[-_TAIL_LINES:]][-_TAIL_LINES:]
        raise error(_describe(words, result.returncode, tail, log_path))
    return result


@contextlib.contextmanager
def _signals_held() -> Iterator[list[int]]:
    """Hold back what would end us, and give it: a program that is just starting is nobody's yet."""
    held: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda number, _: held.append(number))
    try:
        yield held
    finally:
        for number, handler in before.items():
            if handler is not None:  # what was not set by Python cannot be set again by it
                signal.signal(number, handler)


def _start(
    words: list[str],
    *,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    error: type[RocbakeError],
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_us,  # noqa: PLW1509 - one system call, which takes no lock
        )
    except OSError as failed:
        if isinstance(failed, FileNotFoundError) and failed.filename == words[0]:
            raise error(
                f"{words[0]} is not installed, or not on PATH", hint="./bootstrap"
            ) from failed
        raise error(f"{words[0]} cannot be run: {failed}") from failed


def _wait(process: subprocess.Popen[bytes], timeout: float | None) -> None:
    """Wait for the program's end, but never in one system call that has none of its own.

    A Ctrl-C that comes after Python's last look at its signals and before waitpid(2) interrupts
    nothing: it would be heard only when the program ends.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _GLANCE_SECONDS if deadline is None else deadline - time.monotonic()
        try:
            process.wait(min(left, _GLANCE_SECONDS))
        except subprocess.TimeoutExpired:
            if left <= _GLANCE_SECONDS and deadline is not None:
                raise
        else:
            return


def _die_with_us() -> None:
    """Let the program that is being started not outlive us, even if SIGKILL ends us.

    A build that goes on by itself would write into the folder of the next one.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Output:
    """What a program prints: kept, logged and handed on, line by line, as it comes."""

    def __init__(self, log: IO[str] | None, on_line: Callable[[str], None] | None) -> None:
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._log = log
        self._on_line = on_line
        self._turn = threading.Lock()

    def follow(self, process: subprocess.Popen[bytes]) -> list[threading.Thread]:
        """Read both streams, each in a thread of its own, which is returned."""
        streams = ((process.stdout, self.stdout), (process.stderr, self.stderr))
        readers = [
            threading.Thread(target=self._read, args=(stream, kept), daemon=True)
            for stream, kept in streams
        ]
        for reader in readers:
            reader.start()
        return readers

    def _read(self, stream: IO[bytes], kept: list[str]) -> None:
        with stream:
            for raw in stream:
                line = raw.decode("utf-8", "replace")
                with self._turn:
                    kept.append(line)
                    if self._log:
                        with contextlib.suppress(ValueError):  # closed: we are past the end
                            self._log.write(line)
                            self._log.flush()
                if self._on_line:
                    self._on_line(line.rstrip("\n"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: first asked, then killed, also those that outlive the first of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    finally:
        # Also when a second Ctrl-C cuts the patience short.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _describe(words: list[str], code: int, tail: list[str], log_path: Path | None) -> str:
    end = f"exit code {code}" if code >= 0 else f"signal {-code}, {signal.strsignal(-code)}"
    lines = [f"{words[0]} failed ({end}): {shlex.join(words)}"]
    lines += [f"  | {line.rstrip()}" for line in tail]
    if log_path:
        lines.append(f"  whole log: {log_path}")
    return "\n".join(lines)
