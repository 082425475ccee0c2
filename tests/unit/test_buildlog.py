from pathlib import Path

import pytest

from rocbake.buildlog import BuildLog

DATA = Path(__file__).parent.parent / "data" / "buildlog"
LOG = Path("build.log")


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

    lines = log.failure(text, LOG).splitlines()

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

    lines = log.failure(text, LOG).splitlines()

    told = [line for line in lines if line.startswith("first error: ")]
    assert told == ([f"first error: {expected}"] if expected else [])
    assert lines[0] == "step failed: [a 1/1] RUN make --error-limit=3"


def test_clipped_output_is_told():
    log, text = read("clipped.txt")

    said = log.failure(text, LOG)

    assert "  | line 69999 of a long log" in said
    assert "line 69980" not in said
    assert "BuildKit clipped this step's output" in said
    assert "clipped" not in log.failure((DATA / "failed.txt").read_text(), LOG)


def test_failure_before_any_step_is_told():
    said = BuildLog().failure("\nERROR: bake.json: cannot unmarshal\n\n", LOG)

    assert said == "the build failed\n  | ERROR: bake.json: cannot unmarshal\nwhole log: build.log"


def test_step_that_was_never_named_is_told_by_its_number():
    assert BuildLog().failure("#7 ERROR: gone", LOG).startswith("step failed: 7\n")
