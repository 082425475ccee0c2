"""Bazel, the real one: downloads that are locked, builds that need no network, caches that agree.

The recipe is a small C++ workspace, tests/data/bazel; it goes through the stages that OpenXLA does.
Tests share its checkout, and come in the order in which a person would do these things.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocbake import engine, lock
from rocbake.cache import Cache
from rocbake.source import Deps
from tests.integration.conftest import ROOT, Checkout, make_checkout

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

DATA = ROOT / "tests" / "data" / "bazel"
TARGET = ("--target", "gfx1201")
# What Bazel says of the build when it has ended, such as "14 processes: 8 internal, 6 local."
PROCESSES = re.compile(r"INFO: [0-9]+ process(?:es)?: (.+)\.$", re.MULTILINE)
# Not the one that looks first at what the repository rules found out.
LINE = re.compile(r"bazel build (?!--nobuild ).*//lib:archive$", re.MULTILINE)
GCC_15 = "/usr/lib/gcc/x86_64-linux-gnu/15"

# Builds once more in another output root, then once more where nothing but GCC 15 is installed,
# and leaves what came out each time as a list of digests. The tar has the times of the moment.
THREE_TIMES = """\
#!/usr/bin/env bash
set -euo pipefail
umask 022
unset CCACHE
cp -r /rocbake/recipe/workspace /rocbake/build/workspace
cd workspace
mv bazelrc .bazelrc
build() {
    BAZEL_OUTPUT_ROOT="/rocbake/root-$1" python3 -B /rocbake/tools/bazel.py build .
    find -L bazel-bin/ -type f ! -name '*.tar.gz' -exec sha256sum {} + | sort -k 2 \\
        >"/rocbake/dist/$1"
    tar -xzOf bazel-bin/lib/greeting.tar.gz | sha256sum >>"/rocbake/dist/$1"
    sha256sum bazel-bin/lib/greeting.tar.gz >"/rocbake/dist/$1.tar"
}
mkdir -p /rocbake/dist/lib
build first
install -m 0755 bazel-bin/lib/greet /rocbake/dist/lib/
build second
rm -r /usr/lib/gcc/x86_64-linux-gnu/16 /usr/include/c++/16
build alone
"""


@dataclass
class Words:
    """A web server that has the one archive which the workspace downloads."""

    url: str
    archive: bytes
    asked: list[str] = field(default_factory=list)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.archive).hexdigest()


@pytest.fixture(scope="module")
def gateway():
    """The address by which steps of a build reach this machine."""
    with engine.connect() as client:
        told = client.networks.get("bridge").attrs["IPAM"]["Config"]
    address = told[0].get("Gateway") if told else None
    try:
        socket.create_server((address or "", 0)).close()
    except OSError:
        pytest.skip("the engine is on another machine")
    return address


@pytest.fixture(scope="module")
def words(gateway):
    made = Words("", packed("words.hpp"))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            made.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(made.archive)))
            self.end_headers()
            self.wfile.write(made.archive)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer((gateway, 0), Handler) as server:
        made.url = f"http://{gateway}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def packed(name):
    place = io.BytesIO()
    with tarfile.open(fileobj=place, mode="w") as tar:
        tar.add(DATA / name, name, filter=as_nobody)
    return place.getvalue()


def as_nobody(member):
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


@dataclass
class Greeting(Checkout):
    """A checkout with the recipe `greeting`, and the containers that it is built in."""

    @property
    def recipe(self) -> Path:
        return self.root / "recipes" / "greeting"

    def build(self, *words: str, **more: str) -> dict:
        done = self.invoke("build", *TARGET, "--json", *words, **more)
        return next(one for one in json.loads(done.stdout) if one["name"] == "greeting")


def log_of(built):
    return (Path(built["folder"]) / "build.log").read_text()


def spawned(log):
    """Return how many actions ran in which way, of the last run of Bazel in a log."""
    told = PROCESSES.findall(log)[-1]
    return {kind: int(number) for number, kind in
            (one.split(" ", 1) for one in told.split(", "))}  # fmt: skip


def content(built, name):
    archive = Path(built["folder"]) / built["archive"]["file_name"]
    with tarfile.open(archive) as tar:
        return tar.extractfile(f"greeting/{name}").read().decode()


@pytest.fixture(scope="module")
def greeting(tmp_path_factory, base, words):
    made = make_checkout(tmp_path_factory.mktemp("greeting") / "checkout")
    shutil.rmtree(made.recipe)
    for name in ("openxla-host", "openxla-debian"):
        shutil.copytree(
            ROOT / "containers" / name,
            made.root / "containers" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    shutil.copy(ROOT / "recipes" / "bazel.Dockerfile", made.root / "recipes")
    shutil.copytree(base, made.root / "artifacts" / "base", copy_function=os.link)
    shutil.copytree(DATA, made.root / "recipes" / "greeting")
    (made.root / "recipes" / "greeting" / "proverb.tar").write_bytes(packed("motto.txt"))
    workspace = made.root / "recipes" / "greeting" / "workspace" / "WORKSPACE"
    workspace.write_text(
        workspace.read_text().replace("@URL@", words.url).replace("@SHA256@", words.sha256)
    )
    return Greeting(made.root)


@pytest.fixture(scope="module")
def locked(greeting):
    """What the lock says of what Bazel downloads, recorded on this machine."""
    greeting.invoke("lock", "--name", "greeting", *TARGET)
    sources = json.loads((greeting.recipe / "lock.json").read_text())["sources"]
    return Deps.model_validate(sources[0])


@pytest.fixture(scope="module")
def built(greeting, locked):
    return greeting.build("--offline")


def test_what_nobody_recorded_stops_the_build_before_any_work(greeting):
    (greeting.recipe / "lock.json").write_text(
        json.dumps(
            {
                "schema": 1,
                "kind": "recipe",
                "wish": lock.recipe_wish(recipe_of(greeting)),
                "sources": [],
            }
        )
    )

    done = greeting.invoke("build", *TARGET, code=3)

    assert "greeting: what Bazel downloads" in done.stderr
    assert "→ invoke lock --name greeting --target gfx1201" in done.stderr


def recipe_of(greeting):
    from rocbake import project  # noqa: PLC0415 - of another root than the tests' own

    return project.load(greeting.root).recipes["greeting"]


def test_what_bazel_downloads_is_locked(locked, words):
    place = f"content_addressable/sha256/{words.sha256}/file"

    with tarfile.open(Cache().path(locked.sha256)) as tar:
        names = tar.getnames()
        kept = tar.extractfile(place).read()

    assert kept == words.archive
    assert words.asked.count("/words.tar") <= 1
    # Nobody vouched for these, so Bazel would not find them again: all of each is there.
    assert "repositories/motto/file/motto.txt" in names
    assert "repositories/proverb/motto.txt" in names
    assert not [name for name in names if name.startswith("repositories/words")]


def test_the_build_needs_no_network(greeting, built, words):
    before = list(words.asked)
    log = log_of(built)

    ended = engine.run_container("rocbake/greeting:gfx1201", ["greet"], timeout=60)

    assert words.asked == before
    assert "--repository_disable_download" in log
    assert "--override_repository=motto=/rocbake/deps/repositories/motto" in log
    for name in ("motto.txt", "proverb.txt"):
        assert content(built, name) == (DATA / "motto.txt").read_text()
    assert (ended.exit_code, ended.stdout) == (0, "hello again greeting.cpp\n")


def test_a_repository_rule_sees_the_targets_though_upstream_names_others(built):
    """`--repo_env` wins over a later `--action_env` for rules, and actions still see the latter."""
    assert content(built, "targets.txt") == "gfx1201\n"
    assert content(built, "action.txt") == "gfx90a,gfx942\n"


def test_clang_is_told_which_gcc_to_take_and_the_log_says_why(built):
    log = log_of(built)

    assert f"gcc: {GCC_15}, because Clang would take 16, whose headers it cannot read" in log
    (line,) = LINE.findall(log)
    for kind in ("copt", "host_copt", "linkopt", "host_linkopt"):
        assert f" --{kind}=--gcc-install-dir={GCC_15} " in line


def test_a_download_that_is_not_locked_is_refused(greeting, built, words):
    workspace = greeting.recipe / "workspace" / "WORKSPACE"
    before = workspace.read_text()
    workspace.write_text(before.replace(words.sha256, "0" * 64))

    try:
        done = greeting.invoke("build", *TARGET, code=5)
    finally:
        workspace.write_text(before)

    assert "cause: Bazel wants a file that its locked downloads do not hold" in done.stderr
    assert "Failed to download repository @@words: download is disabled" in done.stderr


def test_verify_builds_the_same_without_any_cache(greeting, built):
    done = greeting.invoke("verify", *TARGET, "--json")

    assert {one["difference"] for one in json.loads(done.stdout)} == {None}


def test_the_disk_cache_makes_the_second_build_faster_and_no_other(greeting, built):
    again = greeting.build("--force", "--jobs", "1")

    told = spawned(log_of(again))
    assert set(told) == {"disk cache hit", "internal"}
    assert "jobs: 1 " in log_of(again)
    assert again["archive"]["sha256"] == built["archive"]["sha256"]


@pytest.fixture(scope="module")
def three_times(greeting, built):
    """The digests of every output of three builds, and the log."""
    script = greeting.recipe / "build.sh"
    before = script.read_text()
    script.write_text(THREE_TIMES)
    try:
        made = greeting.build()
    finally:
        script.write_text(before)
    names = ("first", "second", "alone", "first.tar", "second.tar")
    return {name: content(made, name) for name in names}, log_of(made)


def test_two_output_roots_give_the_same_outputs(three_times):
    outputs, log = three_times

    assert outputs["first"] == outputs["second"]
    assert outputs["first"].count("\n") > 10
    for name in ("lib/greet", "lib/libgreeting.so", "greeting.pic.o"):
        assert name in outputs["first"]
    assert "/rocbake/root-first" in log
    assert "/rocbake/root-second" in log
    # Why archives of upstreams are packed again.
    assert outputs["first.tar"] != outputs["second.tar"]


def test_with_and_without_the_words_about_gcc_the_outputs_are_the_same(three_times):
    outputs, log = three_times
    chosen = re.findall(r" gcc: (.*)", log)
    lines = LINE.findall(log)

    assert chosen[2] == "Clang takes 15 by itself, and can read its headers"
    assert ["--gcc-install-dir=" in line for line in lines] == [True, True, False]
    # The linker's own command lines are files, too.
    alone, first = (
        [line for line in outputs[name].splitlines() if not line.endswith(".params")]
        for name in ("alone", "first")
    )
    assert alone == first


USER, PASSWORD = "bazel", "7c1e-not-in-a-log"
NGINX = """\
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    log_format short '$remote_user $request_method $status $uri';
    access_log {folder}/access.log short;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 0;
    server {{
        listen {gateway}:{ports[0]};
        listen {gateway}:{ports[1]};
        root {folder}/kept;
        auth_basic cache;
        auth_basic_user_file {folder}/users;
        location / {{
            dav_methods PUT;
            create_full_put_path on;
        }}
    }}
}}
"""


@dataclass
class RemoteCache:
    """A web server that takes files and gives them back, to who has a login, at two addresses.

    Two, so that BuildKit takes a second build for another, and runs it from nothing.
    """

    addresses: tuple[str, str]
    host: str
    folder: Path

    def requests(self):
        """Return the user, method and status of every request so far."""
        lines = (self.folder / "access.log").read_text().splitlines()
        return [tuple(line.split()[:3]) for line in lines]


def free_port(address):
    with socket.create_server((address, 0)) as taken:
        return taken.getsockname()[1]


def unpacked(folder):
    """Return nginx out of Debian's package, which is unpacked and not installed."""
    if not shutil.which("apt-get"):
        pytest.skip("nginx is not installed, and there is no apt-get to fetch it with")
    # Its libraries, OpenSSL and PCRE, come with any Debian that has apt and git.
    words = ["apt-get", "download", "-q", "nginx"]
    fetched = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if fetched.returncode != 0:
        pytest.skip(f"nginx is not installed, and apt-get cannot fetch it: {fetched.stderr}")
    (package,) = folder.glob("nginx_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder / "root"], check=True)
    return str(folder / "root/usr/sbin/nginx")


@pytest.fixture(scope="module")
def remote_cache(gateway, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nginx")
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or unpacked(folder)
    (folder / "kept").mkdir()
    (folder / "users").write_text(f"{USER}:{{PLAIN}}{PASSWORD}\n")
    ports = free_port(gateway), free_port(gateway)
    settings = folder / "nginx.conf"
    settings.write_text(NGINX.format(folder=folder, gateway=gateway, ports=ports))
    running = subprocess.Popen([program, "-e", str(folder / "error.log"), "-c", str(settings)])
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection((gateway, ports[1])).close()
                break
            except OSError:
                assert running.poll() is None, (folder / "error.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield RemoteCache(
            (f"http://{gateway}:{ports[0]}", f"http://{gateway}:{ports[1]}"), gateway, folder
        )
    finally:
        running.terminate()
        running.wait(timeout=10)


@pytest.fixture(scope="module")
def shared(greeting, built, remote_cache, tmp_path_factory):
    """The builds of two machines that have nothing in common but a remote cache.

    With each, the requests that it made.
    """
    login = tmp_path_factory.mktemp("login") / "netrc"
    login.write_text(f"machine {remote_cache.host} login {USER} password {PASSWORD}\n")
    login.chmod(0o600)
    found = []
    for address in remote_cache.addresses:
        before = len(remote_cache.requests())
        made = greeting.build("--force", "--bazel-remote-cache", address, NETRC=str(login))
        found.append((made, log_of(made), remote_cache.requests()[before:]))
    return found


def test_a_second_machine_takes_everything_from_the_remote_cache(shared):
    (_, first_log, first), (_, second_log, second) = shared

    assert set(spawned(first_log)) == {"local", "internal"}
    assert (USER, "PUT", "201") in first
    assert set(spawned(second_log)) == {"remote cache hit", "internal"}
    assert spawned(second_log)["remote cache hit"] == spawned(first_log)["local"]
    assert (USER, "GET", "200") in second
    assert not [method for _, method, _ in second if method == "PUT"]


def test_a_remote_cache_changes_neither_key_nor_bytes(built, shared):
    for made, _, _ in shared:
        assert made["key"] == built["key"]
        assert made["archive"]["sha256"] == built["archive"]["sha256"]


def test_the_login_is_nowhere(greeting, shared, remote_cache):
    with engine.connect() as client:
        history = client.images.get("rocbake/greeting:gfx1201").history()
    files = [path for path in greeting.root.rglob("*") if path.is_file()]

    # It was given, so it could have been left somewhere.
    assert {user for _, _, made in shared for user, _, _ in made} == {USER}
    assert PASSWORD not in json.dumps(history)
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_a_remote_cache_that_refuses_us_is_done_without(greeting, built, remote_cache, tmp_path):
    made = greeting.build(
        "--force",
        "--bazel-remote-cache",
        f"{remote_cache.addresses[0]}/refused",
        NETRC=str(tmp_path / "absent"),
    )

    assert "401" in log_of(made)
    assert set(spawned(log_of(made))) == {"local", "internal"}
    assert made["archive"]["sha256"] == built["archive"]["sha256"]


def test_an_executor_that_is_not_there_ends_the_build(greeting, built, gateway):
    """A build that was to be spread over many machines does not start on this one instead."""
    address = f"{gateway}:{free_port(gateway)}"

    greeting.invoke(
        "build", *TARGET, "--force", "--bazel-remote-executor", f"grpc://{address}", code=5
    )

    log = (greeting.root / "artifacts/.work/greeting-gfx1201/build.log").read_text()
    assert "Failed to query remote execution capabilities" in log
    assert address in log
    assert "local" not in spawned(log)


def test_the_toolchains_images_pass_their_tests(greeting, built):
    """They are only built in, so no build keeps them; what is looked at is what was built in."""
    for name in ("openxla-host", "openxla-debian"):
        path = greeting.root / "containers" / name / "container.yaml"
        path.write_text(path.read_text().replace("exported: false", "exported: true"))

    done = greeting.invoke("build", *TARGET, "--json", "--force", "--offline")

    made = {one["name"]: one for one in json.loads(done.stdout)}
    assert {"openxla-host", "openxla-debian"} <= made.keys()
    assert made["greeting"]["archive"]["tar_sha256"] == built["archive"]["tar_sha256"]
