import json
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import report
from rocbake.report import Probe, Report, Subject

SUBJECT = Subject(
    name="tool",
    version="1.10",
    targets=("gfx1201",),
    key="a" * 64,
    image="rocbake/tool:gfx1201",
    image_config="sha256:1",
    archive_sha256="b" * 64,
)
GOOD = Probe(name="compute", verdict="passed", where="gpu", says="fine", seconds=1.5)
BAD = Probe(
    name="access", verdict="failed", says="no", remedy="do this", seconds=0.25, output="why"
)
LEFT = Probe(name="compute", verdict="skipped", says="not tried")


def made(verdict, probes=(), *, says="because", remedy=None, subject=SUBJECT):
    return Report(
        verdict=verdict,
        says=says,
        remedy=remedy,
        exit_code=report.exit_code(verdict, require_gpu=False),
        started_at="2026-12-01T01:02:03Z",
        seconds=2.0,
        subject=subject,
        machine={},
        probes=probes,
    )


ABSENT = made("no-gpu", says="no kfd", remedy="modprobe amdgpu", subject=None)


@pytest.mark.parametrize(
    ("verdict", "required", "code"),
    [
        ("pass", True, 0),
        ("host", False, 0),
        ("emulated", False, 0),
        ("fail", False, 9),
        ("no-gpu", False, 10),
        ("no-gpu", True, 9),
        ("misfit", True, 11),
    ],
)
def test_each_verdict_has_its_exit_code(verdict, required, code):
    assert report.exit_code(verdict, require_gpu=required) == code


def test_host_and_emulator_never_count_where_a_gpu_is_required():
    assert report.exit_code("host", require_gpu=True) == 9
    assert report.exit_code("emulated", require_gpu=True) == 9


def test_good_reports_end_well():
    assert report.failure([made("pass", (GOOD,)), made("host")], require_gpu=False) is None


def test_worst_report_decides_and_each_is_told_once():
    wrong = report.failure(
        [made("misfit"), made("fail", (BAD,), remedy="mend it"), made("fail", (BAD,))],
        require_gpu=False,
    )

    assert wrong.exit_code == 9
    assert wrong.hint == "mend it"
    assert str(wrong) == "rocbake/tool:gfx1201: because"


def test_absence_is_one_line():
    wrong = report.failure([ABSENT], require_gpu=False)

    assert (wrong.exit_code, wrong.for_humans()) == (10, "no GPU: no kfd; modprobe amdgpu")


def cases(text):
    root = ET.fromstring(text)
    assert root.tag == "testsuites"
    return root, root.findall(".//testcase")


def test_junit_counts_what_it_lists():
    root, (bad, left) = cases(report.junit([made("fail", (BAD, LEFT))], require_gpu=False))

    suite = root.find("testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")} == {
        "tests": "2",
        "failures": "1",
        "skipped": "1",
        "errors": "0",
    }
    assert suite.get("timestamp") == "2026-12-01T01:02:03"
    assert (bad.get("name"), bad.get("classname"), bad.get("time")) == (
        "access",
        "rocbake/tool:gfx1201",
        "0.250",
    )
    assert bad.find("failure").get("message") == "no"
    assert bad.find("failure").text == "no\ndo this"
    assert bad.find("system-out").text == "why"
    assert left.find("skipped").get("message") == "not tried"


def test_junit_says_where_it_computed():
    _, (case,) = cases(report.junit([made("pass", (GOOD,))], require_gpu=False))
    _, (host,) = cases(
        report.junit(
            [made("host", (GOOD.model_copy(update={"where": "host"}),))], require_gpu=False
        )
    )

    assert case.get("name") == "compute (on the GPU)"
    assert host.get("name") == "compute (on the host)"


def test_absence_is_skipped_unless_a_gpu_is_required():
    _, (skipped,) = cases(report.junit([ABSENT], require_gpu=False))
    _, (failed,) = cases(report.junit([ABSENT], require_gpu=True))

    assert skipped.find("skipped").get("message") == "no kfd"
    assert skipped.find("failure") is None
    assert failed.find("failure").get("message") == "no kfd"


@given(st.text(), st.text())
def test_whatever_a_program_prints_is_still_xml(says, output):
    probe = Probe(name="tool", verdict="failed", says=says, output=output)

    _, (case,) = cases(report.junit([made("fail", (probe,))], require_gpu=False))

    kept = case.find("system-out")
    # XML's own rule: a carriage return and a line feed are one line feed.
    if output.isprintable() and output:
        assert kept.text == output


def test_report_reads_back():
    one = made("fail", (BAD, LEFT))

    assert Report.model_validate_json(one.to_json()) == one
    assert json.loads(one.to_json())["schema"] == 1
