import pytest

from rocbake import gpu, machine, passthrough, probes


@pytest.fixture(scope="module")
def has_hip_probe(attempt):
    if attempt("sh", "-c", "command -v hip-probe").exit_code:
        pytest.skip("hip-probe is not in this image")


def require(probe):
    assert probe.verdict == "passed", f"{probe.says}\n{probe.remedy}\n{probe.output}"


def test_nodes_open_as_the_image_s_own_user(plan, attempt):
    nodes = (gpu.discover().kfd, plan.card.render)

    ended = attempt(*probes.open_nodes_command([node.path for node in nodes]))

    enforcing = machine.read().selinux == "enforcing"
    require(probes.judge_access(ended, nodes, selinux_enforcing=enforcing))


def test_runtime_sees_the_card_that_was_passed(has_hip_probe, plan, attempt):
    require(probes.judge_devices(attempt("hip-probe", "--list"), plan.card))


def test_gpu_computes(has_hip_probe, plan, attempt):
    found = probes.judge_compute(attempt("hip-probe"), plan.card, target=passthrough.seen_as(plan))

    require(found)
    assert found.where == "gpu"
