"""The talk: steps with their seconds, warnings and progress, on stderr.

stdout belongs to results. One instance a process, because there is one stderr a process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress


def is_terminal() -> bool:
    """Tell whether a person watches stderr."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _styled(text: str, code: str) -> str:
    if not is_terminal() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def say(text: str) -> None:
    """Print one line of talk."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the one place that prints


def warn(text: str) -> None:
    """Print one line that should not be missed."""
    say(_styled(f"! {text}", "33"))


def fail(text: str) -> None:
    """Print why the work ended."""
    say(_styled(f"✗ {text}", "31"))


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step, and say when it ended and how many seconds it took."""
    say(_styled(f"‣ {title}", "1"))
    start = time.monotonic()
    try:
        yield
    except BaseException:
        say(_styled(f"✗ {title}  {time.monotonic() - start:.1f} s", "31"))
        raise
    say(_styled(f"✓ {title}  {time.monotonic() - start:.1f} s", "32"))


def progress() -> Progress:
    """Return a progress display for transfers: bytes, speed, time left; silent off a terminal."""
    from rich import progress as bars  # noqa: PLC0415 - costs 60 ms that a reused build has not
    from rich.console import Console  # noqa: PLC0415 - as above

    return bars.Progress(
        bars.TextColumn("  {task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(binary_units=False),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not is_terminal(),
        transient=True,
    )


@contextlib.contextmanager
def live(line: Callable[[], str]) -> Iterator[None]:
    """Show one line below the talk while the block runs; on a terminal alone, and nothing stays.

    Args:
        line: Asked twice a second what the line is now, from a thread of its own. It must not wait
            for anyone who may be talking, because that one waits for the terminal meanwhile.
    """
    if not is_terminal():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - costs 60 ms that a reused build has not
    from rich.live import Live  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    with Live(
        console=Console(stderr=True),
        get_renderable=lambda: Text(line(), no_wrap=True, overflow="ellipsis"),
        refresh_per_second=2,
        transient=True,
        redirect_stdout=False,
    ):
        yield
