import pytest

from rocbake import engine, golden, gpu, smoke, trial
from rocbake.asked import Asked
from rocbake.errors import LockError, NoGpuError, UsageError
from rocbake.store import Store
from rocbake.trial import Trial


@pytest.fixture
def machine(monkeypatch, make_tree):
    """Let a fake machine be the one that is looked at."""

    def machine(*versions):
        tree = make_tree()
        tree.cpu()
        if versions:
            tree.kfd()
        for number, version in enumerate(versions):
            tree.card(target_version=version, render=128 + number, pci=f"0000:0{number + 3}:00.0")
        found = gpu.discover(tree.root, look=tree.stat)
        monkeypatch.setattr(gpu, "discover", lambda root: found)

    return machine


@pytest.fixture
def loaded(checkout, monkeypatch):
    """A project with one recipe, `tool`; what its locks name is what the store has."""
    monkeypatch.setattr(
        golden, "current_keys", lambda _, entries: {one.artifact.key for one in entries}
    )
    project = checkout.load()
    return lambda: project


@pytest.fixture
def kept(loaded):
    return Store(loaded().root / "artifacts")


@pytest.fixture
def tried(monkeypatch):
    """What is tried, and how; nothing is."""
    calls = []

    def record(how):
        def call(entry, recipe, place, *_, **named):
            calls.append((how, recipe.name, entry.artifact.targets, named))
            return smoke.no_gpu(smoke.Place(place.root, NOTHING, {}))

        return call

    for how in ("on_gpu", "on_host", "emulated"):
        monkeypatch.setattr(smoke, how, record(how))
    return calls


NOTHING = gpu.Gpus(
    kfd=gpu.DeviceNode("/dev/kfd", gpu.NodeKind.MISSING),
    absence=gpu.Absence("no-device", "nothing here", "go elsewhere"),
)


def never():
    raise AssertionError("the project was read")


def test_without_a_gpu_neither_project_nor_engine_is_asked(machine, monkeypatch):
    machine()
    monkeypatch.setattr(engine, "connect", never)

    (report,) = Trial(Asked(), {}).reports(never)

    assert (report.verdict, report.exit_code, report.subject) == ("no-gpu", 10, None)
    with pytest.raises(NoGpuError):
        Trial(Asked(), {}).plans(never)


def test_what_has_code_for_a_card_is_tried(machine, loaded, kept, put, tried):
    machine(120001)
    put(kept, tag="gfx1201", targets=("gfx1201",), key="a" * 64)
    put(kept, tag="gfx1100", targets=("gfx1100",), key="b" * 64)

    Trial(Asked(), {}).reports(loaded)

    assert [one[:3] for one in tried] == [("on_gpu", "tool", ("gfx1201",))]


def test_where_nothing_fits_one_is_tried_all_the_same_to_say_so(machine, loaded, kept, put, tried):
    machine(90010)
    put(kept, tag="gfx1100", targets=("gfx1100",))

    Trial(Asked(), {}).reports(loaded)

    assert [one[2] for one in tried] == [("gfx1100",)]


def test_target_that_is_asked_for_is_tried_whatever_the_card(machine, loaded, kept, put, tried):
    machine(120001)
    put(kept, tag="gfx1201", targets=("gfx1201",), key="a" * 64)
    put(kept, tag="gfx1100", targets=("gfx1100",), key="b" * 64)

    Trial(Asked(targets=["gfx1100"]), {}).reports(loaded)

    assert [one[2] for one in tried] == [("gfx1100",)]


def test_target_that_was_not_built_is_told_with_what_builds_it(machine, loaded, kept, put):
    machine(120001)
    put(kept, tag="gfx1201", targets=("gfx1201",))

    with pytest.raises(UsageError, match="no tool for gfx1100") as caught:
        Trial(Asked(targets=["gfx1201", "gfx1100"]), {}).reports(loaded)

    assert caught.value.hint == "invoke build --recipe tool --target gfx1100"


def test_empty_store_is_told_with_the_card_s_own_target(machine, loaded):
    machine(110000)

    with pytest.raises(UsageError, match="nothing of these locks to try: no tool") as caught:
        Trial(Asked(), {}).reports(loaded)

    assert caught.value.hint == "invoke build --target gfx1100"


def test_artifact_of_other_locks_is_not_tried(machine, loaded, kept, put, monkeypatch):
    machine(120001)
    put(kept)
    monkeypatch.setattr(golden, "current_keys", lambda *_: set())

    with pytest.raises(UsageError, match="nothing of these locks"):
        Trial(Asked(), {}).reports(loaded)


def test_stale_lock_ends_it(machine, loaded, monkeypatch):
    machine(120001)
    monkeypatch.setattr(golden, "current_keys", lambda *_: None)

    with pytest.raises(LockError, match="missing or stale"):
        Trial(Asked(), {}).reports(loaded)


def test_host_and_emulator_need_no_gpu(machine, loaded, kept, put, tried):
    machine()
    put(kept)

    Trial(Asked(host=True), {}).reports(loaded)
    Trial(Asked(emulator="tinygrad"), {}).reports(loaded)

    assert [one[0] for one in tried] == ["on_host", "emulated"]


def test_report_is_kept_beside_the_artifact(machine, loaded, kept, put, tried):
    machine(120001)
    entry = put(kept)

    Trial(Asked(), {}).reports(loaded)

    (path,) = (entry.folder / "smoke").glob("*")
    assert '"verdict": "no-gpu"' in path.read_text()
    assert [one.folder for one in kept.entries()] == [entry.folder]


def test_reports_stay_when_the_same_is_built_again(kept, put):
    entry = put(kept)
    path = kept.put_report(entry, "2026-12-01T01:02:03Z", "{}\n")

    put(kept, content=b"again")

    assert path.read_text() == "{}\n"
    assert path.name == "2026-12-01T010203Z.json"


def test_wrong_option_ends_it_before_anything_is_looked_at(monkeypatch):
    monkeypatch.setattr(gpu, "discover", never)

    with pytest.raises(UsageError, match="--memory"):
        trial.Trial(Asked(memory="much"), {})
