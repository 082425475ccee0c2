import io
import re
import sys

import pytest

from rocbake import log


class Stream(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.fixture
def stderr(monkeypatch):
    """Let stderr be a terminal or not; only when called: pytest puts its own there before."""

    def stderr(*, is_terminal, term="xterm"):
        monkeypatch.setattr(sys, "stderr", Stream(is_terminal))
        monkeypatch.setenv("TERM", term)
        return sys.stderr

    return stderr


@pytest.mark.parametrize("how", [{"is_terminal": False}, {"is_terminal": True, "term": "dumb"}])
def test_no_line_is_shown_off_a_terminal(stderr, how):
    written = stderr(**how)

    with log.live(lambda: pytest.fail("nobody sees it")):
        log.say("hello")

    assert written.getvalue() == "hello\n"


@pytest.mark.parametrize("kind", [None, RuntimeError, KeyboardInterrupt, SystemExit])
def test_the_line_goes_however_the_block_ends(stderr, kind):
    written = stderr(is_terminal=True)
    before = sys.stderr, sys.stdout

    def end():
        with log.live(lambda: "going on"):
            log.say("hello")
            if kind:
                raise kind

    if kind:
        with pytest.raises(kind):
            end()
    else:
        end()

    text = written.getvalue()
    assert (sys.stderr, sys.stdout) == before
    assert "hello\n" in text
    # Gone up to the line where it began, and cleared it.
    assert re.search(r"going on\n\r?\x1b\[\?25h\r?\x1b\[1A\x1b\[2K$", text)


def test_stdout_is_left_alone(stderr, capsys):
    written = stderr(is_terminal=True)

    with log.live(lambda: "x"):
        sys.stdout.write("result\n")

    assert "result" not in written.getvalue()
    assert capsys.readouterr().out == "result\n"


def test_no_colour_is_heeded(stderr, monkeypatch):
    written = stderr(is_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")

    with log.live(lambda: "going on"):
        log.warn("hello")

    assert re.findall(r"\x1b\[[0-9;]*m", written.getvalue()) == []
    assert "! hello" in written.getvalue()


def test_brackets_are_text(stderr):
    written = stderr(is_terminal=True)

    with log.live(lambda: "[red][base 1/1] RUN x[/red]"):
        log.say("[b]hello[/b]")

    assert "[red][base 1/1] RUN x[/red]" in written.getvalue()
    assert "[b]hello[/b]" in written.getvalue()
