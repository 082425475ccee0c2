"""Smoke tests on the real engine: stand-in nodes for a GPU's, and images that lie."""

from __future__ import annotations

import dataclasses
import os
import threading

import pytest

from rocbake import engine, gpu, oci, passthrough, probes, smoke, store
from rocbake.errors import EngineError, FitError
from rocbake.passthrough import Wish
from rocbake.project import load
from rocbake.smoke_wish import SmokeCommand
from rocbake.store import Store

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can make device nodes"),
]


@pytest.fixture(scope="session")
def entry(built):
    """The artifact of hip-probe for gfx1201."""
    return built["hip-probe"]


@pytest.fixture
def place(workstation):
    return smoke.Place(workstation.root, gpu.discover(workstation.root), {})


@pytest.fixture
def planned(entry, place):
    return smoke.plan(entry, place, Wish())


def containers():
    with engine.connect() as client:
        return {one.id for one in client.containers.list(all=True)}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = containers()
    yield
    assert containers() <= before


def test_card_is_passed_alone_with_its_group(planned, place):
    card, integrated = place.gpus.cards

    assert planned.devices == ("/dev/kfd", card.render.path)
    assert planned.groups == (992,)
    assert [one.card for one in planned.hidden] == [integrated]
    assert "gfx1103" in planned.hidden[0].why


def opened(planned, place):
    nodes = (place.gpus.kfd, planned.card.render)
    ended = engine.attempt(
        planned, probes.open_nodes_command([one.path for one in nodes]), root=place.root
    )
    return probes.judge_access(ended, nodes, selinux_enforcing=False)


def test_process_in_the_container_opens_both_nodes(planned, place):
    found = opened(planned, place)

    assert found.verdict == "passed", found
    assert found.says == f"user 1000 opens /dev/kfd and {planned.card.render.path}"


def test_without_the_group_the_verdict_names_path_mode_owner_and_groups(planned, place):
    found = opened(dataclasses.replace(planned, groups=()), place)

    assert found.verdict == "failed"
    for part in ("/dev/kfd", "0:992", "0660", "user 1000", "groups 1000"):
        assert part in found.says
    assert "992" in found.remedy


def test_no_other_node_is_in_the_container(planned, place):
    ended = engine.attempt(planned, ["sh", "-c", "ls /dev/dri"], root=place.root)

    assert ended.stdout.split() == [planned.card.render.path.rpartition("/")[2]]


def test_stand_in_nodes_fail_at_the_runtime_and_not_before(entry, place):
    report = smoke.on_gpu(entry, load().recipes["hip-probe"], place, Wish(), hip_probes=[entry])

    assert report.verdict == "fail"
    assert [(one.name, one.verdict) for one in report.probes] == [
        ("nodes", "passed"),
        ("access", "passed"),
        ("device", "failed"),
        ("code", "skipped"),
        ("kernels", "skipped"),
        ("compute", "skipped"),
    ]
    assert report.card["target"] == "gfx1201"
    assert report.subject.image_config == entry.artifact.image.config


def test_commands_after_a_failure_make_no_image(entry, place, monkeypatch):
    def bring(_):
        pytest.fail("made for nothing")

    monkeypatch.setattr(smoke.testimage, "bring", bring)
    recipe = load().recipes["hip-probe"]
    own = SmokeCommand(name="own", run=("true",), gpu="ROCm")
    tried = recipe.file.smoke.model_copy(update={"commands": (own,)})
    recipe = dataclasses.replace(recipe, file=recipe.file.model_copy(update={"smoke": tried}))

    report = smoke.on_gpu(entry, recipe, place, Wish(), hip_probes=[entry])

    assert (report.probes[-1].name, report.probes[-1].verdict) == ("own", "skipped")


def test_artifact_without_code_for_any_card_does_not_fit(entry, make_tree):
    tree = make_tree()
    tree.cpu()
    tree.kfd()
    tree.card(target_version=110000)
    place = smoke.Place(tree.root, gpu.discover(tree.root), {})

    with pytest.raises(FitError, match="gfx1100"):
        smoke.plan(entry, place, Wish())
    report = smoke.on_gpu(entry, load().recipes["hip-probe"], place, Wish(), hip_probes=[])
    assert (report.verdict, report.exit_code, report.probes) == ("misfit", 11, ())


def test_host_path_runs_for_real_and_never_counts_for_a_gpu(entry, place):
    report = smoke.on_host(entry, load().recipes["hip-probe"], place)

    assert (report.verdict, report.exit_code) == ("host", 0)
    assert [(one.name, one.where) for one in report.probes] == [("compute", "host")]
    assert report.probes[0].says.startswith("on the host")


def test_program_that_computed_on_the_host_never_passes(planned, place):
    """The image does what an engine does that lost its GPU: right numbers, from the processor."""
    liar = SmokeCommand(
        name="sum", run=("sh", "-c", "echo '[2, 3, 4]'; echo device: Host"), gpu="device: ROCm",
        expect=r"\[2, 3, 4\]",
    )  # fmt: skip
    ended = engine.attempt(planned, liar.run, root=place.root)
    own = engine.attempt(planned, ["hip-probe", "--host"], root=place.root)

    found = probes.judge_command(ended, liar, on_host=False)
    assert found.verdict == "failed"
    assert found.says.startswith("computed on the host")
    found = probes.judge_compute(own, planned.card, target="gfx1201")
    assert (found.verdict, found.where) == ("failed", "host")


def test_hang_is_ended_in_time(planned, place):
    short = dataclasses.replace(planned, seconds=2.0)

    ended = engine.attempt(short, ["sleep", "600"], root=place.root)

    assert ended.timed_out
    assert 2 <= ended.seconds < 30
    assert "hung" in probes.judge_compute(ended, planned.card, target="gfx1201").says


def test_want_of_memory_shows_whatever_the_exit_code_is(planned, place):
    small = dataclasses.replace(planned, memory=32 << 20)
    eat = "$x = q(x) x (256 << 20); print length $x"
    if not engine.attempt(small, ["perl", "-e", eat], root=place.root).out_of_memory:
        pytest.skip("this engine does not tell of want of memory at all")

    # The engine hears of it a moment later, and of a container that has ended no more.
    ended = engine.attempt(
        small, ["sh", "-c", f"perl -e '{eat}'; sleep 2; exit 0"], root=place.root
    )

    assert (ended.exit_code, ended.out_of_memory) == (0, True)
    assert "memory" in probes.judge_compute(ended, planned.card, target="gfx1201").says


def test_container_that_somebody_removes_is_told_so(planned, place):
    before = containers()

    def remove():
        with engine.connect() as client:
            while not (fresh := containers() - before):
                threading.Event().wait(0.1)
            client.containers.get(fresh.pop()).remove(force=True)

    thief = threading.Thread(target=remove)
    thief.start()
    try:
        with pytest.raises(EngineError, match="somebody removed its container"):
            engine.attempt(planned, ["sleep", "60"], root=place.root)
    finally:
        thief.join()


def test_report_is_kept_beside_the_artifact(entry, place):
    kept = Store(entry.folder.parent.parent)
    report = smoke.no_gpu(smoke.Place(place.root, gpu.discover(place.root / "nothing"), {}))

    path = kept.put_report(entry, report.started_at, report.to_json())
    try:
        assert path.parent == entry.folder / store.SMOKE
        assert path.read_text() == report.to_json()
        assert entry.folder in [one.folder for one in kept.entries()]
    finally:
        path.unlink()


def test_image_names_an_unprivileged_user(entry, planned):
    assert oci.read(entry.folder / store.IMAGE).settings["User"] == planned.user == "rocbake"
    assert engine.user(entry.artifact.image.reference) == "rocbake"
    assert engine.layers(entry.artifact.image.reference) == entry.artifact.image.layers
    assert engine.layers("rocbake/none:none") == ()


def test_plan_is_what_a_person_can_paste(planned):
    assert "--device /dev/kfd" in passthrough.command_line(planned, "docker", ()).replace("=", " ")
