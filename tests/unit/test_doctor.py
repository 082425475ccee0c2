import contextlib
import grp
import json
import os
import shutil
import threading
from types import SimpleNamespace

import jsonschema
import pytest

from rocbake import command, disk, doctor, engine, hardware, mirror, run, schema
from rocbake.cache import Cache
from rocbake.errors import EngineError, RecipeError, RocbakeError
from rocbake.mirror import Mirrors
from rocbake.passthrough import EngineFacts
from rocbake.run import Result
from rocbake.store import Store

SOUND = {
    "address": "unix:///s",
    "server": "26.1.5",
    "api": "1.24-1.45",
    "store": "io.containerd.snapshotter.v1",
    "rootless": False,
}
FACTS = EngineFacts(product="docker", version="26.1.5", address="unix:///s")
INFO = {
    "ID": "one",
    "Name": "here",
    "NCPU": 2,
    "MemTotal": 16 << 30,
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
}
EXAMINE_HARDWARE = hardware.examine


class Machine:
    """What the engine, and the docker command line, answer."""

    def __init__(self):
        self.info = dict(INFO)
        self.facts = FACTS
        self.command_line = Result(0, json.dumps(INFO), "")

    @contextlib.contextmanager
    def connect(self):
        if self.facts is None:
            raise EngineError("no container engine answers")
        yield SimpleNamespace(info=lambda: self.info)

    def tell_facts(self):
        if self.facts is None:
            raise EngineError("no container engine answers")
        return self.facts


@pytest.fixture(autouse=True)
def machine(own_checkout, monkeypatch, tmp_path):
    machine = Machine()
    monkeypatch.setattr(engine, "problems", list)
    monkeypatch.setattr(engine, "describe", lambda: SOUND)
    monkeypatch.setattr(engine, "versions", lambda: {"docker": "26.1.5", "buildx": "0.13.1"})
    monkeypatch.setattr(engine, "connect", machine.connect)
    monkeypatch.setattr(engine, "facts", machine.tell_facts)
    monkeypatch.setattr(engine, "root_dir", lambda: tmp_path)
    monkeypatch.setattr(run, "run", lambda *_, **__: machine.command_line)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(mirror, "load", lambda: Mirrors(archives={"debian": ("http://m.invalid",)}))
    monkeypatch.setattr(disk, "problems", lambda *_, **__: [])
    # What this very machine has is no business of these tests.
    monkeypatch.setattr(hardware, "examine", lambda *_, **__: [])
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    return machine


@pytest.fixture
def examine(tmp_path):
    def examine(**options):
        return doctor.examine(Store(tmp_path / "artifacts"), Cache(tmp_path / "cache"), **options)

    return examine


def of(found, subject):
    return [one for one in found if one.subject == subject]


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


def test_what_recipes_share_is_told_once(examine, checkout):
    shutil.copytree(checkout.root / "recipes/tool", checkout.root / "recipes/other")
    checkout.edit("containers/sdk/container.yaml", "hipcc", "clang")

    told = [one.says for one in of(examine(), "locks")]

    assert len(told) == len(set(told)) == 2


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


# The engine, and who decides which it is


@pytest.fixture
def closed_socket(monkeypatch, tmp_path):
    """A socket of a group that this user may be in."""
    (tmp_path / "socket").touch()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/socket")
    monkeypatch.setattr(engine, "problems", lambda: [("Permission denied", "./bootstrap")])
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(doctor, "_user_name", lambda: "alice")
    group = SimpleNamespace(gr_name="docker", gr_mem=["bob"])
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    return group


def test_user_who_may_not_ask_the_engine_is_told_how(examine, closed_socket):
    expected = 'sudo usermod -aG docker "$(id -un)"; then log in again'

    assert faults(examine()) == [("engine", 7, expected)]


def test_user_who_may_since_a_moment_ago_is_told_how(examine, closed_socket):
    closed_socket.gr_mem.append("alice")

    ((_, _, remedy),) = faults(examine())

    assert remedy.startswith("log in again")


def test_version_that_is_forced_upon_the_command_line_is_told(examine, monkeypatch):
    monkeypatch.setenv("DOCKER_API_VERSION", "1.35")

    assert [one.remedy for one in of(examine(), "engine")] == [None, "unset DOCKER_API_VERSION"]


def test_what_decides_which_engine_answers_is_told(examine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://me:secret@far.invalid:2375")

    (one,) = of(examine(), "context")

    assert (one.state, "secret" in one.says) == ("ok", False)
    assert one.says == (
        "tcp://***@far.invalid:2375, by DOCKER_HOST; the docker command line reaches the same"
    )


def test_two_engines_are_told(examine, machine):
    machine.command_line = Result(0, json.dumps(INFO | {"ID": "two", "Name": "there"}), "")

    assert faults(examine()) == [("context", 7, "docker context ls")]


def test_podman_makes_up_its_identifier(examine, machine):
    machine.facts = EngineFacts(product="podman", version="5.0", address="unix:///s")
    machine.command_line = Result(0, json.dumps(INFO | {"ID": "two"}), "")

    assert [one.state for one in of(examine(), "context")] == ["ok"]


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (Result(1, "", 'context "x": context not found\n'), "context not found"),
        (Result(0, "[]", ""), "says nothing"),
        (Result(0, '{"ID": ', ""), "says nothing"),
    ],
)
def test_command_line_that_is_lost_is_told(examine, machine, answer, part):
    machine.command_line = answer

    (one,) = of(examine(), "context")

    assert (one.state, part in one.says) == ("warn", True)


def test_context_without_effect_is_told(examine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///s")
    monkeypatch.setenv("DOCKER_CONTEXT", "far")

    (one,) = of(examine(), "context")

    assert (one.state, "DOCKER_CONTEXT, far, has no effect" in one.says) == ("warn", True)


# The rest


def test_group_without_a_name_is_its_number(examine, monkeypatch):
    monkeypatch.setattr(os, "getgroups", lambda: [4_000_000_000])

    (one,) = of(examine(), "user")

    assert one.says.endswith("4000000000")


def test_clock_before_the_locks_is_told(examine, monkeypatch):
    monkeypatch.setattr(doctor.time, "time", lambda: 1793347680.0)

    (one,) = of(examine(), "clock")

    assert (one.state, one.exit_code) == ("fail", 6)
    assert "2026-10-30 08:08:00 UTC is before the locks" in one.says


@pytest.fixture
def changed_at_once(checkout, monkeypatch):
    """Let the clock stand still, and everything have been changed at this very second."""
    now = 1800000000.0
    monkeypatch.setattr(doctor.time, "time", lambda: now)
    for path in checkout.root.rglob("*"):
        os.utime(path, (now, now))
    return now


@pytest.mark.parametrize(
    ("name", "after", "state"),
    [
        ("recipes/tool/build.sh", 3600, "warn"),
        ("recipes/tool/build.sh", 60, "ok"),
        (".venv/bin/python", 3600, "ok"),
    ],
)
def test_clock_before_the_last_change_is_told(examine, changed_at_once, name, after, state):
    path = doctor.project.ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (changed_at_once + after, changed_at_once + after))

    (one,) = of(examine(), "clock")

    assert one.state == state
    assert (name in one.says) == (state == "warn")


@pytest.mark.parametrize(
    "address", ["http://me:secret@proxy.invalid:3128", "me:secret@proxy.invalid:3128"]
)
def test_password_of_a_proxy_is_not_told(examine, monkeypatch, address):
    monkeypatch.setenv("https_proxy", address)
    monkeypatch.setenv("NO_PROXY", "localhost")

    (one,) = of(examine(), "proxy")

    assert one.state == "ok"
    assert "proxy.invalid:3128, but not for localhost" in one.says
    assert "secret" not in one.says


def test_two_proxies_are_told(examine, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://me:secret@one.invalid")
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@two.invalid")

    (one,) = of(examine(), "proxy")

    assert (one.state, one.remedy) == ("warn", "unset HTTP_PROXY")
    assert "secret" not in one.says


def test_proxies_of_docker_are_told(examine, tmp_path):
    (tmp_path / "docker").mkdir()
    config = {"proxies": {"default": {"httpProxy": "http://me:secret@proxy.invalid"}}}
    (tmp_path / "docker/config.json").write_text(json.dumps(config))

    (one,) = of(examine(), "proxy")

    assert "no build step gets it" in one.says
    assert "secret" not in one.says


@pytest.fixture
def containerd(monkeypatch, tmp_path):
    """A containerd of the machine's own, whose folder is on a full file system."""
    folder, socket = tmp_path / "containerd", tmp_path / "containerd.sock"
    folder.mkdir()
    socket.touch()
    monkeypatch.setattr(doctor, "_CONTAINERD_ROOT", str(folder))
    monkeypatch.setattr(doctor, "_CONTAINERD", str(socket))
    monkeypatch.setattr(doctor, "_free_bytes", lambda path: 0 if path == folder else 10**15)
    return SimpleNamespace(folder=folder, socket=socket)


@pytest.mark.parametrize("tells", [True, False])
def test_room_is_looked_at_where_images_are_written(examine, machine, containerd, tells):
    machine.info["Containerd"] = {"Address": str(containerd.socket)} if tells else None

    (one,) = of(examine(), "room")

    assert (one.exit_code, str(containerd.folder) in one.says) == (7, True)


def test_containerd_that_the_engine_started_writes_below_the_engine(examine, machine, containerd):
    machine.info["Containerd"] = {"Address": "/run/docker/containerd/containerd.sock"}

    assert [one.state for one in of(examine(), "room")] == ["ok"]


def test_engine_without_that_store_does_not_write_to_containerd(examine, machine, containerd):
    machine.info["DriverStatus"] = [["Backing Filesystem", "extfs"]]

    assert [one.state for one in of(examine(), "room")] == ["ok"]


def test_no_containerd_is_no_place(examine, containerd):
    containerd.socket.unlink()

    assert [one.state for one in of(examine(), "room")] == ["ok"]


def test_hardware_is_told_what_builds_may_take(examine, machine, monkeypatch, tmp_path, put):
    asked = {}
    monkeypatch.setattr(
        hardware, "examine", lambda _, here, **named: asked.update(named, here=here) or []
    )
    put(Store(tmp_path / "artifacts"), targets=("gfx1201",))
    root = tmp_path / "root"
    for name, text in {
        "lib/firmware/amdgpu/gc_12_0_1_pfp.bin": "",
        "sys/fs/selinux/booleans/container_use_dri_devices": "1 0",
    }.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)

    examine(root=root)

    assert (asked["here"].cpus, asked["here"].memory) == (2, 16 << 30)
    assert asked["around"].targets == {"gfx1201"}
    assert asked["around"].firmware == {"gc_12_0_1_pfp.bin"}
    assert asked["around"].may_use_dri is True
    assert asked["engine"] == FACTS


def test_machine_without_a_gpu_is_in_order(examine, monkeypatch, make_tree):
    monkeypatch.setattr(hardware, "examine", EXAMINE_HARDWARE)
    monkeypatch.setattr(os, "environ", {})

    found = examine(root=make_tree().root)

    assert {one.state for one in found} == {"ok"}
    assert {"gpu", "driver", "memory", "firmware", "IOMMU"} <= {one.subject for one in found}


def test_hardware_is_examined_even_if_no_engine_answers(examine, machine, monkeypatch):
    asked = []
    monkeypatch.setattr(
        hardware, "examine", lambda *_, **named: asked.append(named["engine"]) or []
    )
    machine.facts = None

    found = examine()

    assert asked == [None]
    assert faults(found) == []


# Odd systems


@pytest.mark.parametrize("error", [PermissionError(13, "no"), ValueError("odd"), KeyError("x")])
def test_one_look_that_fails_leaves_the_others(examine, monkeypatch, error):
    def fail(_):
        raise error

    monkeypatch.setattr(shutil, "which", fail)

    found = examine()

    (one,) = of(found, "tools")
    assert (one.state, type(error).__name__ in one.says) == ("warn", True)
    assert {"engine", "recipes", "room"} <= {one.subject for one in found}


@pytest.fixture
def hang(monkeypatch):
    """Make something hang, until the test has ended."""
    ending = threading.Event()
    monkeypatch.setattr(doctor, "_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(doctor, "_ENGINE_SECONDS", 0.1)
    yield lambda where, name: monkeypatch.setattr(where, name, lambda *_: ending.wait(60))
    ending.set()


def test_engine_that_hangs_is_told_and_keeps_nothing_waiting(examine, hang):
    hang(engine, "facts")

    found = examine()

    assert faults(found) == [("engine", 7, "sudo systemctl restart docker")]
    assert [one.subject for one in found if one.state == "warn"] == ["room"]


def test_what_does_not_end_keeps_nothing_else_waiting(examine, hang):
    hang(mirror, "load")

    found = examine()

    assert [one.says for one in of(found, "mirrors")] == ["not looked at: no answer within 0.5 s"]
    assert [one.state for one in found if one.subject != "mirrors" and one.state != "ok"] == []


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
    printed = json.loads(out)
    assert (printed["schema"], printed["worst"]) == (1, "fail")
    assert printed["findings"][0] == {
        "subject": "engine",
        "says": "too old",
        "remedy": "./bootstrap",
        "exit_code": 7,
        "state": "fail",
    }


def test_one_thing_is_one_thing(monkeypatch, capsys):
    monkeypatch.setattr(mirror, "load", Mirrors)

    with pytest.raises(RocbakeError, match="1 thing to mend, see above"):
        command.doctor(as_json=False)


def test_what_stands_in_brackets_is_shown(monkeypatch, capsys):
    monkeypatch.setattr(engine, "problems", lambda: [("[red] of [b]", "write below [engine]")])

    with pytest.raises(RocbakeError):
        command.doctor(as_json=False)

    out = capsys.readouterr().out
    assert "[red] of [b]" in out
    assert "→ write below [engine]" in out


def test_what_is_printed_is_as_published(monkeypatch, capsys):
    monkeypatch.setattr(mirror, "load", Mirrors)

    with pytest.raises(RocbakeError):
        command.doctor(as_json=True)

    published = json.loads((schema.FOLDER / "doctor.json").read_text())
    jsonschema.validate(json.loads(capsys.readouterr().out), published)
