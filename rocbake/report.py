"""Reports of smoke tests: what was tried, what came of it, and where it was computed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal
from xml.etree import ElementTree as ET

from pydantic import BaseModel, ConfigDict, Field

from rocbake import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

Where = Literal["gpu", "host", "emulated"]
ProbeVerdict = Literal["passed", "failed", "skipped"]
Verdict = Literal["pass", "host", "emulated", "fail", "no-gpu", "misfit"]

_EXIT_CODES: dict[Verdict, int] = {
    "pass": 0,
    "host": 0,
    "emulated": 0,
    "fail": errors.SmokeError.exit_code,
    "no-gpu": errors.NoGpuError.exit_code,
    "misfit": errors.FitError.exit_code,
}
# How the three ways to compute are said to people, everywhere.
WHERE: dict[Where, str] = {"gpu": "on the GPU", "host": "on the host", "emulated": "emulated"}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Probe(_Model):
    """One thing tried."""

    name: str
    verdict: ProbeVerdict
    where: Annotated[Where | None, Field(description="where it computed, if it did")] = None
    says: Annotated[str, Field(description="one sentence: what was found")]
    remedy: Annotated[str | None, Field(description="what to type or do about it")] = None
    seconds: float = 0.0
    output: Annotated[str, Field(description="end of what it printed, where that helps")] = ""


class Subject(_Model):
    """The artifact that was tried."""

    name: str
    version: str
    targets: tuple[str, ...]
    key: str
    image: Annotated[str, Field(description="its name in the engine")]
    image_config: Annotated[str, Field(description="digest of the image's configuration")]
    archive_sha256: str | None = None


class Report(_Model):
    """One smoke test of one artifact; of none, where there is no GPU to try one on."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    verdict: Verdict
    says: Annotated[str, Field(description="one sentence: why")]
    remedy: str | None = None
    exit_code: int
    started_at: Annotated[str, Field(description="ISO 8601, UTC")]
    seconds: float
    subject: Subject | None
    card: Annotated[dict[str, Any] | None, Field(description="GPU that was passed")] = None
    machine: Annotated[dict[str, Any], Field(description="kernel, driver, firmware, memory")]
    plan: Annotated[dict[str, Any] | None, Field(description="how the container was run")] = None
    probes: tuple[Probe, ...] = ()
    kernel_log: Annotated[
        tuple[str, ...], Field(description="what the kernel said of amdgpu meanwhile")
    ] = ()

    def to_json(self) -> str:
        """Return the document of schema 1."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=2) + "\n"


def exit_code(verdict: Verdict, *, require_gpu: bool) -> int:
    """Return what the process ends with.

    Args:
        verdict: Of the report.
        require_gpu: Whether everything that a GPU did not compute is a failure.
    """
    if require_gpu and verdict in {"no-gpu", "host", "emulated"}:
        return errors.SmokeError.exit_code
    return _EXIT_CODES[verdict]


def failure(reports: Sequence[Report], *, require_gpu: bool) -> errors.RocbakeError | None:
    """Return what to end with: the worst of the reports that are not good, as one error."""
    wrong = [one for one in reports if exit_code(one.verdict, require_gpu=require_gpu)]
    if not wrong:
        return None
    if all(one.verdict == "no-gpu" for one in wrong):
        # One line, for the many machines where this is no fault.
        error = errors.RocbakeError(f"no GPU: {wrong[0].says}; {wrong[0].remedy}")
    else:
        said = dict.fromkeys(f"{_title(one)}: {one.says}" for one in wrong)
        hint = next((one.remedy for one in wrong if one.remedy), None)
        error = errors.RocbakeError("\n".join(said), hint=hint)
    # A failure outweighs what merely does not fit, and that a machine without a GPU.
    error.exit_code = min(exit_code(one.verdict, require_gpu=require_gpu) for one in wrong)
    return error


def _title(report: Report) -> str:
    return report.subject.image if report.subject else "smoke"


def junit(reports: Sequence[Report], *, require_gpu: bool) -> str:
    """Return reports as JUnit XML, as CI systems read it.

    The elements and attributes are those of
    https://github.com/windyroad/JUnit-Schema/blob/master/JUnit.xsd; a machine without a GPU is
    a skipped test, or with `require_gpu` a failed one.
    """
    root = ET.Element("testsuites", name="rocbake smoke")
    for report in reports:
        root.append(_suite(report, require_gpu=require_gpu))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(report: Report, *, require_gpu: bool) -> ET.Element:
    name = _title(report)
    probes = report.probes or (_as_probe(report, require_gpu=require_gpu),)
    suite = ET.Element(
        "testsuite",
        name=_clean(name),
        timestamp=report.started_at.rstrip("Z"),
        time=f"{report.seconds:.3f}",
        tests=str(len(probes)),
        failures=str(sum(one.verdict == "failed" for one in probes)),
        skipped=str(sum(one.verdict == "skipped" for one in probes)),
        errors="0",
    )
    properties = ET.SubElement(suite, "properties")
    facts: dict[str, object] = {"verdict": report.verdict}
    if report.subject:
        facts |= {
            "image": report.subject.image_config,
            "archive": report.subject.archive_sha256 or "none",
        }
    if report.card:
        facts |= {"card": report.card["product"], "target": report.card["target"]}
    for key, value in facts.items():
        ET.SubElement(properties, "property", name=key, value=_clean(str(value)))
    for probe in probes:
        suite.append(_case(probe, name))
    return suite


def _as_probe(report: Report, *, require_gpu: bool) -> Probe:
    """Return what ended a report before anything was tried as a probe of its own."""
    absent = report.verdict == "no-gpu" and not require_gpu
    return Probe(
        name="gpu",
        verdict="skipped" if absent else "failed",
        says=report.says,
        remedy=report.remedy,
        seconds=report.seconds,
    )


def _case(probe: Probe, suite: str) -> ET.Element:
    where = f" ({WHERE[probe.where]})" if probe.where else ""
    case = ET.Element(
        "testcase",
        name=_clean(f"{probe.name}{where}"),
        classname=_clean(suite),
        time=f"{probe.seconds:.3f}",
    )
    if probe.verdict != "passed":
        tag = "failure" if probe.verdict == "failed" else "skipped"
        outcome = ET.SubElement(case, tag, message=_clean(probe.says))
        if probe.verdict == "failed":
            outcome.set("type", "smoke")
            outcome.text = _clean("\n".join(filter(None, (probe.says, probe.remedy))))
    if probe.output:
        ET.SubElement(case, "system-out").text = _clean(probe.output)
    return case


def _clean(text: str) -> str:
    """Return text without characters that XML 1.0 cannot hold (https://www.w3.org/TR/xml/#charsets)."""
    return "".join(
        one if one in "\t\n\r" or (one >= " " and not "\ud800" <= one <= "\udfff"
                                   and one not in "\ufffe\uffff") else "\ufffd"
        for one in text
    )  # fmt: skip
