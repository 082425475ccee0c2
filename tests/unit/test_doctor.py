import json
import shutil

import pytest

from rocbake import command, disk, doctor, engine, mirror
from rocbake.cache import Cache
from rocbake.errors import EngineError, RecipeError, RocbakeError
from rocbake.mirror import Mirrors
from rocbake.store import Store

SOUND = {
    "address": "unix:///s",
    "server": "26.1.5",
    "api": "1.24-1.45",
    "store": "io.containerd.snapshotter.v1",
    "rootless": False,
}


@pytest.fixture(autouse=True)
def _sound_machine(own_checkout, monkeypatch):
    monkeypatch.setattr(engine, "problems", list)
    monkeypatch.setattr(engine, "describe", lambda: SOUND)
    monkeypatch.setattr(engine, "versions", lambda: {"docker": "26.1.5", "buildx": "0.13.1"})
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(mirror, "load", lambda: Mirrors(archives={"debian": ("http://m.invalid",)}))
    monkeypatch.setattr(disk, "problems", lambda *_, **__: [])


@pytest.fixture
def examine(tmp_path):
    def examine():
        return doctor.examine(Store(tmp_path / "artifacts"), Cache(tmp_path / "cache"))

    return examine


def faults(found):
    return [(one.subject, one.exit_code, one.remedy) for one in found if one.exit_code]


def test_sound_machine_has_no_fault(examine):
    found = examine()

    assert faults(found) == []
    assert all(one.remedy is None for one in found)
    assert {one.subject for one in found} >= {
        "engine",
        "git",
        "recipes",
        "locks",
        "mirrors",
        "room",
    }
    assert "tool: 5 packages as of 20261030T080801Z" in [one.says for one in found]


def test_faults_of_the_engine_are_told(examine, monkeypatch):
    monkeypatch.setattr(engine, "problems", lambda: [("too old", "./bootstrap"), ("b", "c")])

    assert faults(examine()) == [("engine", 7, "./bootstrap"), ("engine", 7, "c")]


@pytest.mark.parametrize(("tool", "code"), [("mmdebstrap", 7), ("git", 4), ("apt-get", 0)])
def test_missing_tool_is_told(examine, monkeypatch, tool, code):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else name)

    found = examine()

    (one,) = [one for one in found if one.subject == tool]
    assert "not " in one.says
    assert one.exit_code == code


def test_faults_of_files_are_told(examine, checkout):
    checkout.edit("recipes/tool/recipe.yaml", "version", "vversion")
    checkout.edit("containers/sdk/container.yaml", "packages", "ppackages")

    found = faults(examine())

    assert len(found) == 4
    assert {one[:2] for one in found} == {("recipes", RecipeError.exit_code)}


def test_stale_locks_are_told(examine, checkout):
    checkout.edit("containers/sdk/container.yaml", "hipcc", "clang")

    found = examine()

    assert faults(found) == [("locks", 3, "invoke lock --name sdk")] * 2
    assert [one.says for one in found if one.subject == "locks"] == [
        "containers/sdk/lock.json: stale: packages: clang is wanted and not locked",
        "containers/sdk/lock.json: stale: packages: hipcc is locked and not wanted",
    ]


def test_archive_without_a_mirror_is_told(examine, monkeypatch):
    monkeypatch.setattr(mirror, "load", Mirrors)

    assert faults(examine()) == [
        ("mirrors", 4, "export ROCBAKE_MIRRORS=debian=<address of a mirror>")
    ]


def test_mirrors_that_cannot_be_read_are_told(examine, monkeypatch):
    def broken():
        raise RecipeError("mirrors.yaml:1:1: no")

    monkeypatch.setattr(mirror, "load", broken)

    assert faults(examine()) == [("mirrors", 2, "mend the file")]


def test_too_little_room_is_told(examine, monkeypatch):
    monkeypatch.setattr(disk, "problems", lambda *_, **__: ["store: full"])

    assert faults(examine()) == [("room", 7, "invoke clean")]


def test_room_asks_the_engine_in_vain(examine, monkeypatch):
    def silent(*_, **__):
        raise EngineError("none answers")

    monkeypatch.setattr(disk, "problems", silent)

    assert faults(examine()) == []


# The verb


def test_doctor_ends_well(capsys):
    command.doctor(as_json=False)

    out, err = capsys.readouterr()
    assert (err, "✗" in out) == ("", False)
    assert out.count("✓") == len(out.splitlines())


def test_doctor_ends_with_the_first_faults_code(monkeypatch, checkout, capsys):
    checkout.edit("containers/sdk/container.yaml", "hipcc, ", "")
    monkeypatch.setattr(mirror, "load", Mirrors)

    with pytest.raises(RocbakeError, match="2 things to mend, see above") as caught:
        command.doctor(as_json=False)

    assert caught.value.exit_code == 3
    assert caught.value.hint == "invoke lock --name sdk"
    assert capsys.readouterr().out.count("✗") == 2


def test_doctor_tells_a_program(monkeypatch, capsys):
    monkeypatch.setattr(engine, "problems", lambda: [("too old", "./bootstrap")])

    with pytest.raises(RocbakeError):
        command.doctor(as_json=True)

    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)[0] == {
        "subject": "engine",
        "says": "too old",
        "remedy": "./bootstrap",
        "exit_code": 7,
    }
