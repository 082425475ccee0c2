import io
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import buildlog, log
from rocbake.buildlog import BuildLog
from rocbake.errors import BuildError

DATA = Path(__file__).parent.parent / "data" / "buildlog"
LOG = Path("build.log")
BUILD = "#5 [dist build 4/5] RUN --network=none     /rocbake/recipe/build.sh"
HIP = "Building HIP object ggml/src/ggml-hip/CMakeFiles/ggml-hip.dir/__/ggml-cuda"


class Terminal(io.StringIO):
    """A terminal that remembers every byte."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Let time pass only where a test says so."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(buildlog, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def terminal(monkeypatch):
    """Let stderr be a terminal; only when called, because pytest puts its own there before."""

    def terminal(columns):
        monkeypatch.setattr(sys, "stderr", Terminal())
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        return sys.stderr

    return terminal


@pytest.fixture
def typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["invoke", "build", "--target", "gfx1201"])


def feed(*lines):
    log = BuildLog()
    for line in lines:
        log.line(line)
    return log


def wait_for(claim):
    """Wait until something that another thread does is done."""
    deadline = time.monotonic() + 10
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def screen(text):
    """What a terminal shows in the end, up to the line where its cursor is."""
    lines, row, column = [""], 0, 0
    for code, char in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z])|(.)", text, re.DOTALL):
        if code == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d*A", code):
            row -= int(code[2:-1] or 1)
        elif code:
            assert code in {"\x1b[?25l", "\x1b[?25h"} or code.endswith("m"), repr(code)
        elif char == "\r":
            column = 0
        elif char == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1 :]
            column += 1
    assert not any(lines[row + 1 :])
    return [line.rstrip() for line in lines[: row + 1]]


def read(name):
    """Feed what BuildKit printed in a build that failed."""
    text = (DATA / name).read_text()
    log = BuildLog()
    for line in text.splitlines():
        log.line(line)
    return log, text


def test_steps_that_took_a_while_are_told(capsys):
    read("failed.txt")

    assert capsys.readouterr() == ("", "  [base 2/2] RUN sleep 1.2; echo fine  1.3 s\n")


def test_export_that_took_a_while_is_told(capsys):
    log = BuildLog()

    for line in ("#9 exporting to oci image format", "#9 exporting layers", "#9 DONE 12.34s"):
        log.line(line)

    assert capsys.readouterr().err == "  exporting to oci image format  12.3 s\n"


def test_quick_cached_and_internal_steps_are_not_told(capsys):
    log = BuildLog()

    for line in (
        "#1 [internal] load build definition from Dockerfile",
        "#1 DONE 5.0s",
        "#2 [base 1/1] RUN true",
        "#2 CACHED",
        "#3 [base 1/1] RUN false",
        "#3 DONE 0.9s",
        "#4 DONE 9.0s",
    ):
        log.line(line)

    assert capsys.readouterr().err == ""


def test_failed_step_its_first_error_and_its_end_are_told():
    log, text = read("failed.txt")

    lines = str(log.failure(text, LOG)).splitlines()

    assert lines[0].startswith('step failed: [fails 1/1] RUN echo "configuring"; echo "src/main')
    assert len(lines[0]) <= len("step failed: ") + 100
    assert lines[1] == ("first error: note: ERROR: is what a program may print, too")
    assert "  | src/main.hip:3:5: error: use of undeclared identifier 'x'" in lines
    assert not any("fine" in line for line in lines)
    assert lines[-1] == "whole log: build.log"


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (["0 errors", "main.c:1:1: error: x", "1 error generated."], "main.c:1:1: error: x"),
        (["cc -Werror x.c", "CMake Error at CMakeLists.txt:3"], "CMake Error at CMakeLists.txt:3"),
        (["Reading", "E: Unable to locate package x"], "E: Unable to locate package x"),
        (["fatal: not a git repository"], "fatal: not a git repository"),
        (["nothing to see"], None),
    ],
)
def test_first_error_is_what_the_step_printed(printed, expected):
    text = "\n".join(
        [
            "#3 [a 1/1] RUN make --error-limit=3",
            "#4 0.1 error: of another step",
            *(f"#3 0.123 {line}" for line in printed),
            '#3 ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 2',
        ]
    )
    log = BuildLog()
    for line in text.splitlines():
        log.line(line)

    lines = str(log.failure(text, LOG)).splitlines()

    told = [line for line in lines if line.startswith("first error: ")]
    assert told == ([f"first error: {expected}"] if expected else [])
    assert lines[0] == "step failed: [a 1/1] RUN make --error-limit=3"


def test_clipped_output_is_told():
    log, text = read("clipped.txt")

    said = str(log.failure(text, LOG))

    assert "  | line 69999 of a long log" in said
    assert "line 69980" not in said
    assert "BuildKit clipped this step's output" in said
    assert "clipped" not in str(log.failure((DATA / "failed.txt").read_text(), LOG))


def test_failure_before_any_step_is_told():
    error = BuildLog().failure("\nERROR: bake.json: cannot unmarshal\n\n", LOG)

    assert error.hint is None
    assert (
        str(error)
        == "the build failed\n  | ERROR: bake.json: cannot unmarshal\nwhole log: build.log"
    )


def test_step_that_was_never_named_is_told_by_its_number():
    assert str(BuildLog().failure("#7 ERROR: gone", LOG)).startswith("step failed: 7\n")


# Why it died


def test_want_of_memory_is_told_with_the_jobs_to_try(typed):
    log, text = read("out-of-memory.txt")

    error = log.failure(text, LOG)

    assert type(error) is BuildError
    assert str(error).splitlines()[:3] == [
        "step failed: [dist build 4/5] RUN /rocbake/recipe/build.sh",
        "cause: memory ran out while 8 jobs ran (8 cores, 7.7 GiB)",
        "first error: clang++: error: unable to execute command: Killed",
    ]
    assert str(error).splitlines()[-2].endswith("did not complete successfully: exit code: 1")
    assert "  | ..." not in str(error).splitlines()
    assert str(error).count("RUN ") == 1
    assert error.hint == "invoke build --jobs 4 --target gfx1201"


def test_a_step_that_was_killed_ran_out_of_memory(typed):
    killed = 'ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 137'

    error = feed(BUILD).failure(f"{BUILD}\n#5 {killed}", LOG)

    assert str(error).splitlines()[1] == "cause: memory ran out"
    assert error.hint == "invoke build --jobs 1 --target gfx1201"


def test_causes_are_looked_for_in_the_failed_step_alone():
    error = feed(BUILD).failure(
        f"{BUILD}\n#4 1.0 error: No space left on device\n#5 1.0 error: x\n#5 ERROR: no", LOG
    )

    assert "cause:" not in str(error)
    assert error.hint is None


def test_full_disk_outside_of_any_step_is_told():
    error = BuildLog().failure("ERROR: failed to solve: write /x: no space left on device", LOG)

    assert str(error).splitlines()[1].startswith("cause: the disk is full")
    assert "docker builder prune" in error.hint


def test_what_was_written_over_is_not_told():
    text = "#5 1.0 10 %\r50 %\rerror: \x1b[31mno\x1b[0m\x07 \ufffd\r\n#5 ERROR: x"

    lines = str(feed(BUILD).failure(text, LOG)).splitlines()

    assert lines[1:3] == ["first error: error: no \ufffd", "  | error: no \ufffd"]


# Progress, read off a terminal


def test_progress_is_told_every_half_minute(capsys, clock):
    log = feed(BUILD)
    clock.now = 1002.0
    log.line("#5 2.0 jobs: 2 (2 cores, 22.9 GiB)")

    for number in range(1, 101):
        clock.now = 1002.0 + number
        log.line(f"#5 {2 + number}.0 [{number}/200] {HIP}/a{number}.cu.o")

    assert capsys.readouterr() == (
        "",
        (
            "  30/200, 15 %  32 s, about 3 min left  a30.cu\n"
            "  60/200, 30 %  1 min 02 s, about 3 min left  a60.cu\n"
            "  90/200, 45 %  1 min 32 s, about 2 min left  a90.cu\n"
        ),
    )


def test_end_of_each_run_that_took_a_while_is_told(capsys, clock):
    feed(
        BUILD,
        "#5 10.0 ninja: Entering directory `/rocbake/build/tree'",
        f"#5 30.0 [1/2] {HIP}/a.cu.o",
        "#5 32.5 [2/2] Linking CXX shared library bin/libggml-hip.so",
        "#5 40.9 -- Configuring done",
        "#5 41.0 [0/1] Re-checking globbed directories...",
        "#5 41.5 [1/1] Linking CXX executable quick",
        "#5 41.6 [1/3] Building CXX object x.cpp.o",
        "#5 41.6 [2/3] Building CXX object y.cpp.o",
        "#5 49.9 [3/3] Linking CXX executable tests",
        "#5 DONE 50.0s",
    )

    assert capsys.readouterr().err == (
        "  2/2 compiled  22.5 s\n"
        "  3/3 compiled  8.4 s\n"
        "  [dist build 4/5] RUN /rocbake/recipe/build.sh  50.0 s\n"
    )


@pytest.mark.parametrize("end", ["#5 ERROR: process did not complete", "#5 CANCELED"])
def test_a_run_that_did_not_come_to_its_end_is_told(capsys, clock, end):
    feed(BUILD, f"#5 9.0 [1/400] {HIP}/a.cu.o", f"#5 20.0 [7/400] {HIP}/b.cu.o", end)

    assert capsys.readouterr().err == "  7/400 compiled  20.0 s\n"


def test_a_step_that_is_over_says_nothing_more(capsys, clock):
    log = feed(BUILD, "#5 CACHED", f"#5 9.0 [1/1] {HIP}/a.cu.o", f"#77 9.0 [1/1] {HIP}/a.cu.o")

    assert (log.status(), capsys.readouterr().err) == ("", "")


def test_a_total_that_changes_is_the_same_run(capsys, clock):
    feed(BUILD, f"#5 5.0 [1/9] {HIP}/a.cu.o", f"#5 6.0 [2/4] {HIP}/b.cu.o", f"#5 7.0 [4/4] {HIP}/c")

    assert capsys.readouterr().err == "  4/4 compiled  7.0 s\n"


# Progress, shown on a terminal


def test_nothing_runs_at_first():
    assert BuildLog().status() == ""


def test_step_that_says_nothing_is_shown_with_its_seconds(clock):
    log = feed(BUILD)

    clock.now += 75

    assert log.status() == "  1 min 15 s  [dist build 4/5] RUN /rocbake/recipe/build.sh"


def test_seconds_count_from_the_steps_own_beginning(clock):
    log = feed("#6 exporting to oci image format", BUILD, "#5 40.0 -- Detecting HIP")

    assert log.status() == "  40 s  [dist build 4/5] RUN /rocbake/recipe/build.sh"


def test_lines_of_configure_are_not_shown(clock, capsys):
    log = feed(BUILD, "#5 1.0 -- Looking for pthread.h - found")

    assert "pthread" not in log.status()
    assert capsys.readouterr().err == ""


def test_what_compiles_is_shown_before_what_else_runs(clock):
    export = "#6 [base] exporting to oci image format"
    log = feed(BUILD, f"#5 1.0 [1/400] {HIP}/a.cu.o", "#5 ...", export)

    assert log.status() == "  1/400, 0 %  1 s  a.cu"
    log.line("#5 DONE 2.0s")
    assert log.status() == "  0 s  [base] exporting to oci image format"
    log.line("#6 DONE 3.0s")
    assert log.status() == ""


def test_the_step_that_was_heard_last_is_shown(clock):
    log = feed("#6 [a 1/1] RUN x", "#7 [b 1/1] RUN y", "#6 1.0 hello")

    assert log.status() == "  1 s  [a 1/1] RUN x"


def test_the_step_is_shown_again_when_ninja_is_done(clock):
    log = feed(BUILD, f"#5 1.0 [1/2] {HIP}/a.cu.o", f"#5 2.0 [2/2] {HIP}/b.cu.o")

    assert log.status() == "  2 s  [dist build 4/5] RUN /rocbake/recipe/build.sh"


def test_objects_of_hip_that_are_announced_are_reckoned_with(clock):
    lines = [f"#5 {2 * number}.0 [{number}/100] Building C object x.o" for number in range(1, 41)]
    clock.now += 80

    assert ", about 2 min left" in feed(BUILD, *lines).status()
    assert ", about 9 min left" in feed(BUILD, "#5 0.0 hip objects: 50", *lines).status()


def test_progress_on_a_terminal_is_one_line_that_goes(terminal, clock):
    written = terminal(60)
    progress = BuildLog()
    progress.line(BUILD)
    with log.live(progress.status):
        for number in range(1, 151):
            progress.line(f"#5 {2 * number}.0 [{number}/200] {HIP}/a{number}.cu.o")
            if number in {3, 150}:
                progress.line("#6 [x 1/1] RUN z")
                progress.line("#6 DONE 1.0s")
        wait_for(lambda: "150/200" in screen(written.getvalue())[-1])
        during = screen(written.getvalue())
    after = screen(written.getvalue())

    assert during == [
        "  [x 1/1] RUN z  1.0 s",
        "  [x 1/1] RUN z  1.0 s",
        "  150/200, 75 %  5 min 00 s, about 2 min left  a150.cu",
    ]
    assert after == ["  [x 1/1] RUN z  1.0 s", "  [x 1/1] RUN z  1.0 s", ""]
    assert "\x1b[?25h" in written.getvalue().rpartition("\x1b[?25l")[2]


def test_a_narrow_terminal_shows_what_fits(terminal, clock):
    written = terminal(24)
    progress = feed(BUILD, f"#5 9.0 [1/400] {HIP}/fattn-tile-instance-dkq112.cu.o")

    with log.live(progress.status):
        log.say("-")
        wait_for(lambda: "1/400" in screen(written.getvalue())[-1])
        shown = screen(written.getvalue())

    assert shown == ["-", "  1/400, 0 %  9 s  fatt\u2026"]


# Whatever comes

FRAGMENTS = (
    *("#5 ", "#6 ", "1.5 ", "DONE 1.0s", "DONE .s", "DONE", "CACHED", "CANCELED", "ERROR: x"),
    *("[a 1/1] RUN x", "[internal] x", "exporting to x", "...", "[1/2] ", "[3/3] "),
    *("\r", "\n", "\x1b[", "\ufffd", "9" * 500, "jobs: 2 (2 cores, 1.0 GiB)", "hip objects: 4"),
    *("Killed", f"{HIP}/a.cu.o"),
)
fragments = st.sampled_from(FRAGMENTS)
anything = st.lists(st.one_of(st.lists(fragments | st.text(max_size=5)).map("".join), st.text()))


@given(anything)
def test_no_line_stops_the_reading(lines):
    told = io.StringIO()
    progress = BuildLog()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", told)
        for line in lines:
            progress.line(line)
            status = progress.status()
            assert status == "" or (status.isprintable() and status.startswith("  "))

    error = progress.failure("\n".join(lines), LOG)
    assert str(error).endswith("whole log: build.log")
    assert all(text.isprintable() for text in told.getvalue().split("\n"))
