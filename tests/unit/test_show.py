import io
import sys

import pytest

from rocbake import show
from rocbake.verify import Comparison


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_234_567, "1.2 MB"),
        (5_600_000_000, "5.6 GB"),
        (1_234_000_000_000, "1234.0 GB"),
    ],
)
def test_size_is_for_people(count, text):
    assert show.size(count) == text


def test_line_is_never_wrapped_for_a_program(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")

    show.comparisons([Comparison("rocbake/tool:gfx1201", "3 layers", "x" * 90)], as_json=False)

    assert "x" * 90 in capsys.readouterr().out


def test_no_colour_reaches_a_program(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "")

    show.targets(as_json=False)

    assert "\x1b" not in capsys.readouterr().out


def test_reader_that_left_is_for_the_boundary(monkeypatch):
    class Left(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Left())

    with pytest.raises(BrokenPipeError):
        show.targets(as_json=False)


def test_comparison_and_its_detail_are_shown(capsys):
    show.comparisons(
        [Comparison("one", "1 layer"), Comparison("two", "2 layers", "a file", "--- a\n+++ b")],
        as_json=False,
    )

    out = capsys.readouterr().out
    assert "reproduced" in out
    assert out.endswith("--- a\n+++ b\n")
