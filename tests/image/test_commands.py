"""What the recipe says of itself, tried on the processor: no GPU is needed, and none is shown."""

from __future__ import annotations

import dataclasses

import pytest

from rocbake import engine, passthrough, probes


@pytest.fixture
def planned(subject):
    return passthrough.RunPlan(
        image=subject.tried, user=str(subject.layout.settings.get("User", "")), card=None
    )


def test_what_runs_on_the_processor_does(subject, planned, subtests):
    if not subject.commands:
        pytest.skip("nothing that runs on the processor")
    for command in subject.commands:
        with subtests.test(command.name):
            limited = dataclasses.replace(planned, seconds=command.seconds)
            ended = engine.attempt(limited, command.host)

            probe = probes.judge_command(ended, command, on_host=True)

            assert probe.verdict == "passed", f"{probe.says}\n{ended.stdout}\n{ended.stderr}"
