import gc
import json
import os
import re
import socketserver
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from docker.context.config import get_context_id

from rocbake import engine, oci, run
from rocbake.errors import BuildError, EngineError
from rocbake.gpu import DeviceNode, NodeKind
from rocbake.passthrough import RunPlan

VERSION = {"Version": "26.1.5+dfsg1", "ApiVersion": "1.45", "MinAPIVersion": "1.24"}
INFO = {
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    "Driver": "overlayfs",
    "DockerRootDir": "/nowhere",
    "SecurityOptions": ["name=seccomp,profile=builtin"],
}
BUILDER = "Name: default\nDriver: docker\n\nNodes:\nBuildkit:   v0.13.2\n"


class Engine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """An engine that says what a test wants, on a socket."""

    daemon_threads = True

    def __init__(self, path):
        self.path = path
        self.version, self.info = dict(VERSION), dict(INFO)
        self.requests, self.bodies = [], []
        self.answers = {}
        self.holds = threading.Event()
        super().__init__(str(path), Handler)

    def handle_error(self, *_):
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self):
        return "socket"

    def log_message(self, *_):
        pass

    def _answer(self):
        url = urlsplit(self.path)
        _, _, path = url.path.removeprefix("/v").partition("/")
        path = f"/{path}" if url.path.startswith("/v1.") else url.path
        self.server.requests.append((self.command, path, parse_qs(url.query)))
        self.server.bodies.append(self._body())
        usual = {
            "/version": (200, self.server.version),
            "/info": (200, self.server.info),
            "/_ping": (200, {}),
        }
        answers = usual | self.server.answers
        status, body = answers.get(path, (404, {"message": f"no {path}"}))
        if callable(body):
            body = body()
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        data = b"" if status == 204 else data
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Api-Version", self.server.version["ApiVersion"])
        if isinstance(body, str):
            # As an engine answers what takes a while, a line at a time.
            self.send_header("Transfer-Encoding", "chunked")
            data = (b"%x\r\n%s\r\n" % (len(data), data) if data else b"") + b"0\r\n\r\n"
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        whole = b""
        while size := int(self.rfile.readline(), 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - as the library has it


@pytest.fixture
def server(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("e") / "s"
    running = Engine(path)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    yield running
    running.holds.set()
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture
def buildx(monkeypatch):
    """Let buildx say what a test wants."""
    said = {"version": "github.com/docker/buildx v0.13.1 abc\n", "inspect": BUILDER}

    def fake(words, **options):
        assert words[:2] == ["docker", "buildx"]
        assert options["env"]["DOCKER_HOST"] == engine.address()
        if said[words[2]] is None:
            raise options["error"]("docker is not installed")
        return run.Result(0, said[words[2]], "")

    monkeypatch.setattr(engine.run, "run", fake)
    return said


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Return what sets the CLI's contexts."""
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)

    def write(current, *names):
        (folder / "config.json").write_text(json.dumps({"currentContext": current}))
        for name in names:
            meta = folder / "contexts/meta" / get_context_id(name) / "meta.json"
            meta.parent.mkdir(parents=True)
            host = {"Host": f"unix:///{name}.sock", "SkipTLSVerify": False}
            meta.write_text(
                json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": host}})
            )

    return write


# Which engine


def test_address_is_the_usual_one(config):
    assert engine.address() == "unix:///var/run/docker.sock"


def test_address_is_the_current_contexts(config):
    config("mine", "mine", "other")

    assert engine.address() == "unix:///mine.sock"


def test_address_is_that_of_the_context_named(config, monkeypatch):
    config("mine", "mine", "other")
    monkeypatch.setenv("DOCKER_CONTEXT", "other")

    assert engine.address() == "unix:///other.sock"


def test_address_is_the_one_named(config, monkeypatch):
    config("mine", "mine", "other")
    monkeypatch.setenv("DOCKER_CONTEXT", "other")
    monkeypatch.setenv("DOCKER_HOST", "unix:///named.sock")

    assert engine.address() == "unix:///named.sock"


def test_the_cli_is_bound_to_the_same_engine(config, monkeypatch):
    config("mine", "mine")
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")

    environment = engine._cli_environment()

    assert environment["DOCKER_HOST"] == "unix:///mine.sock"
    assert not {"DOCKER_CONTEXT", "SOURCE_DATE_EPOCH"} & set(environment)


# The SDK leaves a socket open that could not be connected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_engine_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    with pytest.raises(EngineError, match="no container engine answers at unix://") as caught:
        engine.images()

    assert caught.value.hint == "./bootstrap"
    assert engine.problems() == [(str(caught.value), "./bootstrap")]
    del caught
    gc.collect()


def test_address_that_is_none_is_told(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "nonsense://x")

    with pytest.raises(EngineError, match="no container engine answers at nonsense://x"):
        engine.images()


# Whether it will do


def test_engine_that_will_do(server, buildx):
    assert engine.problems() == []
    engine.require_usable()
    assert engine.versions() == {"docker": "26.1.5+dfsg1", "buildx": "0.13.1", "buildkit": "0.13.2"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s, b: s.version.update(Version="24.0.9"), "the engine is Docker 24.0.9, and 25"),
        (lambda s, b: s.info.update(DriverStatus=[["Backing Filesystem", "extfs"]]), "old store"),
        (lambda s, b: s.info.update(DriverStatus=None), "old store"),
        (lambda s, b: b.update(version="github.com/docker/buildx v0.12.1 x"), "buildx is v0.12.1"),
        (lambda s, b: b.update(version=None), "docker is not installed"),
        (lambda s, b: b.update(inspect=BUILDER.replace("0.13.2", "0.12.5")), "BuildKit 0.12.5"),
    ],
)
def test_engine_that_will_not_do(server, buildx, change, reason):
    change(server, buildx)

    ((told, remedy),) = engine.problems()

    assert reason in told
    assert remedy
    with pytest.raises(EngineError, match=re.escape(told)) as caught:
        engine.require_usable()
    assert caught.value.hint == remedy


@pytest.mark.parametrize(
    "inspected",
    [
        BUILDER.replace("docker\n", "docker-container\n"),
        BUILDER.replace("v0.13.2", "0.0.0+unknown"),
        BUILDER.replace("Buildkit:", "BuildKit version:"),
        "Driver: docker-container\n",
    ],
)
def test_builder_of_its_own_needs_no_new_store(server, buildx, inspected):
    buildx["inspect"] = inspected
    if "docker-container" in inspected:
        server.info["DriverStatus"] = []

    assert engine.problems() == []


def test_engine_that_refuses_old_clients_is_spoken_to(server):
    server.version |= {"ApiVersion": "1.55", "MinAPIVersion": "1.50"}

    assert engine.describe() == {
        "address": f"unix://{server.path}",
        "server": "26.1.5+dfsg1",
        "api": "1.50-1.55",
        "store": "io.containerd.snapshotter.v1",
        "rootless": False,
    }


def test_root_dir_is_that_of_this_machine(server, tmp_path):
    assert engine.root_dir() is None

    server.info["DockerRootDir"] = str(tmp_path)
    assert engine.root_dir() == tmp_path

    server.info["DockerRootDir"] = ""
    assert engine.root_dir() is None


def test_failing_engine_is_told(server):
    server.answers["/images/json"] = (500, {"message": "disk on fire\nmore"})

    with pytest.raises(EngineError, match=r"the engine at unix://.* failed: disk on fire$"):
        engine.images()


# Images


def loads(server, answer):
    server.answers["/images/load"] = (200, answer)


def test_image_is_loaded(server, make_image):
    loads(server, '{"stream":"Loaded image: rocbake/x:1\\n"}\r\n')

    engine.load(oci.read(make_image({"a": b"1"}).folder), "rocbake/x:1")

    assert b"rocbake/x:1" in server.bodies[-1]
    assert server.requests[-1][:2] == ("POST", "/images/load")


def test_error_inside_a_good_answer_is_told(server, make_image):
    loads(server, '{"stream":"Loading"}\r\n{"errorDetail":{"message":"m"},"error":"no space"}\r\n')

    with pytest.raises(EngineError, match="the engine did not take rocbake/x:1: no space"):
        engine.load(oci.read(make_image({"a": b"1"}).folder), "rocbake/x:1")


def test_refused_image_is_told(server, make_image):
    server.answers["/images/load"] = (500, {"message": "not supported"})

    with pytest.raises(EngineError, match="failed: not supported"):
        engine.load(oci.read(make_image({"a": b"1"}).folder), "rocbake/x:1")


def test_image_that_cannot_be_read_is_told(server, make_image):
    loads(server, '{"error":"unexpected EOF"}\r\n')
    layout = oci.read(make_image({"a": b"1"}).folder)
    layout.path(layout.layers[0]).unlink()

    with pytest.raises(BuildError, match="No such file") as caught:
        engine.load(layout, "rocbake/x:1")

    assert str(layout.path(layout.layers[0])) in str(caught.value)
    assert caught.value.hint == "invoke build --force"


def test_images_of_ours_are_told(server):
    # What is listed may be gone a moment later, so none is asked for again.
    labels = {"dev.rocbake.key": "k"}
    server.answers["/images/json"] = (
        200,
        [
            {"Id": "sha256:1", "RepoTags": ["rocbake/x:1"], "Size": 5, "Labels": labels},
            {"Id": "sha256:2", "RepoTags": None, "Size": 6, "Labels": labels},
            {"Id": "sha256:3", "RepoTags": ["<none>:<none>"], "Size": 7, "Labels": labels},
        ],
    )

    assert engine.images() == [
        engine.Image("sha256:1", ("rocbake/x:1",), 5, "k"),
        engine.Image("sha256:2", (), 6, "k"),
        engine.Image("sha256:3", (), 7, "k"),
    ]
    _, _, query = next(one for one in server.requests if one[1] == "/images/json")
    assert json.loads(query["filters"][0]) == {"label": ["dev.rocbake.key"]}


def test_name_that_nobody_has_is_taken_from_nobody(server):
    engine.untag("rocbake/none:1")
    engine.remove_container("none")


# Containers


@pytest.fixture
def container(server):
    attributes = {
        "Id": "c1",
        "Name": "/c1",
        "State": {"OOMKilled": False},
        "Config": {"Tty": False},
    }
    attributes["Image"] = "sha256:1"
    server.answers |= {
        "/containers/create": (201, {"Id": "c1"}),
        "/containers/c1/json": (200, attributes),
        "/containers/c1/start": (204, {}),
        "/containers/c1/wait": (200, {"StatusCode": 3}),
        "/containers/c1/logs": (200, ""),
        "/containers/c1": (204, {}),
    }
    return server


def removed(server):
    return ("DELETE", "/containers/c1") in [one[:2] for one in server.requests]


def test_container_is_shut_in_and_gone_afterwards(container):
    ended = engine.run_container("image", ["true"], timeout=5)

    assert ended.exit_code == 3
    created = next(
        json.loads(body)
        for one, body in zip(container.requests, container.bodies, strict=True)
        if one[1] == "/containers/create"
    )
    assert created["HostConfig"]["NetworkMode"] == "none"
    assert created["HostConfig"]["CapDrop"] == ["ALL"]
    assert created["HostConfig"]["ReadonlyRootfs"] is True
    assert created["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]
    assert created["Labels"]["dev.rocbake.process"].endswith(f".{os.getpid()}")
    assert removed(container)


def test_container_that_takes_too_long_is_stopped_in_time(container):
    container.answers["/containers/c1/wait"] = (200, lambda: container.holds.wait(20) or {})
    start = time.monotonic()

    with pytest.raises(EngineError, match=r"image: took more than 0\.2 s and was stopped: sleep 9"):
        engine.run_container("image", ["sleep", "9"], timeout=0.2)

    assert time.monotonic() - start < 15
    assert removed(container)


def test_container_that_does_not_start_is_gone(container):
    container.answers["/containers/c1/start"] = (500, {"message": "no such program"})

    with pytest.raises(EngineError, match="no such program"):
        engine.run_container("image", ["x"], timeout=5)

    assert removed(container)


def test_interrupted_container_is_gone(container):
    with pytest.raises(KeyboardInterrupt), engine.started("image", ["x"]):
        raise KeyboardInterrupt

    assert removed(container)


@pytest.fixture
def processes():
    """What names a process that is gone, this one, and one of another machine."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    home = engine._home()
    return {
        "dead": f"{home}.{ended.pid}",
        "ours": f"{home}.{os.getpid()}",
        "elsewhere": f"other.{ended.pid}",
    }


def holds_containers(server, processes):
    """Let the engine hold a container of each process, and list one that is gone by then."""
    server.answers["/containers/json"] = (200, [{"Id": name} for name in [*processes, "gone"]])
    for name, process in processes.items():
        attributes = {"Id": name, "Name": f"/{name}", "Image": "sha256:1"}
        attributes["Config"] = {"Labels": {"dev.rocbake.process": process}}
        attributes["State"] = {"Status": "running"}
        server.answers[f"/containers/{name}/json"] = (200, attributes)
        server.answers[f"/containers/{name}"] = (204, {})


def test_containers_of_running_processes_are_not_left_over(server, processes):
    holds_containers(server, processes)

    assert engine.leftovers() == ["dead"]


def test_container_that_outlived_a_boot_is_left_over(server, processes):
    holds_containers(server, processes)
    for name in ("ours", "elsewhere"):
        _, attributes = server.answers[f"/containers/{name}/json"]
        attributes["State"] = {"Status": "exited"}

    assert engine.leftovers() == ["dead", "elsewhere"]


def test_only_what_dead_processes_of_this_boot_left_is_reaped(server, processes):
    holds_containers(server, processes)
    references = [f"rocbake/staging-x:{process}" for process in processes.values()]
    references.append("rocbake/x:gfx1201")
    server.answers["/images/json"] = (
        200,
        [{"Id": "sha256:1", "RepoTags": references, "Labels": {"dev.rocbake.key": "k"}}],
    )
    for reference in references:
        server.answers[f"/images/{reference}"] = (200, [])

    assert engine.reap() == 2

    assert [one[1] for one in server.requests if one[0] == "DELETE"] == [
        "/containers/dead",
        f"/images/rocbake/staging-x:{processes['dead']}",
    ]
    query = next(one[2] for one in server.requests if one[1] == "/containers/json")
    assert json.loads(query["filters"][0]) == {"label": ["dev.rocbake.process"]}
    assert query["all"] == ["1"]


def test_an_unfinished_image_is_in_use_while_its_process_runs(processes):
    assert engine.is_in_use(f"rocbake/staging-x:{processes['ours']}")
    assert engine.is_in_use(f"rocbake/staging-x:{processes['elsewhere']}")
    assert not engine.is_in_use(f"rocbake/staging-x:{processes['dead']}")
    assert not engine.is_in_use("rocbake/x:gfx1201")


# Building


def test_bake_lets_nothing_in(server, tmp_path, monkeypatch):
    seen = {}

    def fake(words, **options):
        seen.update(options, words=[str(word) for word in words])
        return run.Result(0, "", "")

    monkeypatch.setattr(engine.run, "run", fake)
    engine.bake(tmp_path / "bake.json", ["default"], log_path=tmp_path / "log")

    assert seen["words"] == ["docker", "buildx", "bake", "--progress", "plain", "--file",
                             str(tmp_path / "bake.json"), "default"]  # fmt: skip
    assert seen["cwd"] == tmp_path
    policy = json.loads(Path(seen["env"]["EXPERIMENTAL_BUILDKIT_SOURCE_POLICY"]).read_text())
    assert {rule["action"] for rule in policy["rules"]} == {"DENY"}
    assert seen["env"]["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"


def test_failed_bake_is_told(server, tmp_path, monkeypatch):
    said = "#3 [a 1/1] RUN false\n#3 0.1 error: no\n#3 ERROR: process did not complete\n"

    def fake(words, *, on_line, **options):
        for line in said.splitlines():
            on_line(line)
        return run.Result(1, "", said)

    monkeypatch.setattr(engine.run, "run", fake)

    with pytest.raises(BuildError, match=r"step failed: .a 1/1. RUN false\nfirst error: error: no"):
        engine.bake(tmp_path / "bake.json", ["default"], log_path=tmp_path / "log")


# Run plans


def planned(**changes):
    nodes = tuple(
        DeviceNode(path, NodeKind.CHARACTER, 0o660, 0, 992, 1, 3)
        for path in ("/dev/kfd", "/dev/dri/renderD128")
    )
    return RunPlan(
        **{"image": "image", "user": "1000", "card": None, "nodes": nodes, "groups": (105, 992)}
        | changes
    )


def created(server):
    return next(
        json.loads(body)
        for one, body in zip(server.requests, server.bodies, strict=True)
        if one[1] == "/containers/create"
    )


def test_plan_is_what_the_engine_is_told(container, tmp_path):
    ended = engine.attempt(planned(environment={"A": "b"}), ["true"], root=tmp_path)

    told = created(container)
    host = told["HostConfig"]
    assert (ended.exit_code, ended.timed_out) == (3, False)
    assert host["Devices"] == [
        {"PathOnHost": f"{tmp_path}{path}", "PathInContainer": path, "CgroupPermissions": "rw"}
        for path in ("/dev/kfd", "/dev/dri/renderD128")
    ]
    assert host["GroupAdd"] == ["105", "992"]
    assert host["Memory"] == host["MemorySwap"] == 8 << 30
    assert (host["ShmSize"], host["PidsLimit"]) == (1 << 30, 4096)
    assert (host["NetworkMode"], host["IpcMode"]) == ("none", "private")
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["ReadonlyRootfs"] is True
    assert not host.get("Privileged")
    assert told["Env"] == ["A=b"]
    assert "User" not in told or told["User"] in {"", None}
    assert removed(container)


@pytest.mark.parametrize(
    ("relaxed", "key", "value"),
    [
        ("privileged", "Privileged", True),
        ("seccomp", "SecurityOpt", ["no-new-privileges", "seccomp=unconfined"]),
        ("ipc", "IpcMode", "host"),
        ("network", "NetworkMode", "host"),
    ],
)
def test_each_relaxation_gives_up_one_thing(container, relaxed, key, value):
    engine.attempt(planned(relaxed=(relaxed,)), ["true"])
    given_up = created(container)["HostConfig"]
    container.requests.clear()
    container.bodies.clear()
    engine.attempt(planned(), ["true"])
    usual = created(container)["HostConfig"]

    assert given_up[key] == value
    changed = {name for name in given_up | usual if given_up.get(name) != usual.get(name)}
    assert changed == {key} | ({"ShmSize"} if relaxed == "ipc" else set())


def test_time_that_is_up_is_told_with_what_was_printed(container):
    container.answers["/containers/c1/wait"] = (200, lambda: container.holds.wait(20) or {})
    container.answers["/containers/c1/kill"] = (204, {})

    ended = engine.attempt(planned(seconds=0.2), ["sleep", "9"])

    assert (ended.timed_out, ended.exit_code) == (True, -1)
    assert ("POST", "/containers/c1/kill") in [one[:2] for one in container.requests]
    assert removed(container)


def test_engine_that_stops_in_the_middle_is_no_time_that_is_up(container):
    def stop():
        raise ConnectionAbortedError

    container.answers["/containers/c1/wait"] = (200, stop)

    with pytest.raises(
        EngineError,
        match=f"the engine at unix://{container.path} went away in the middle: Remote end closed",
    ):
        engine.attempt(planned(), ["sleep", "9"])


@pytest.mark.parametrize("status", [404, 409])
def test_container_that_is_gone_is_told_so(container, status):
    container.answers["/containers/c1/logs"] = (status, {"message": "marked for removal"})

    with pytest.raises(EngineError, match="somebody removed its container while it ran: true"):
        engine.attempt(planned(), ["true"])


def test_container_that_cannot_be_ended_is_named(container, capsys):
    container.answers["/containers/c1"] = (500, {"message": "could not kill: D state"})

    engine.attempt(planned(), ["true"])

    assert "cannot be ended: could not kill: D state" in capsys.readouterr().err


# What a run plan must know


@pytest.mark.parametrize(
    ("version", "info", "facts"),
    [
        ({}, {}, {"product": "docker", "rootless": False, "runtime": "runc", "is_local": True}),
        (
            {"Components": [{"Name": "Podman Engine", "Version": "5.4"}]},
            {"Rootless": True, "DefaultRuntime": "crun"},
            {"product": "podman", "rootless": True, "runtime": "crun"},
        ),
        ({}, {"SecurityOptions": ["name=seccomp", "name=rootless"]}, {"rootless": True}),
        ({}, {"SecurityOptions": ["name=userns"]}, {"remapped": True, "rootless": False}),
        ({}, {"OperatingSystem": "Docker Desktop"}, {"is_desktop": True}),
        ({}, {"KernelVersion": "5.10.0-other"}, {"is_local": False}),
    ],
)
def test_facts_are_read_from_what_the_engine_says(server, version, info, facts):
    server.version |= version
    server.info = {**server.info, "KernelVersion": os.uname().release, **info}

    known = engine.facts()

    assert {name: getattr(known, name) for name in facts} == facts
    assert known.address == f"unix://{server.path}"
