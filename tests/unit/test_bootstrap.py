"""./bootstrap on machines made of stubs: what it says, installs, starts and leaves alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
TOOLS = "cat chmod chown cp cut date dirname env find grep head mkdir mktemp rm sed sh sha256sum"
TOOLS += " sort tail tr"
REAL = {name: Path(shutil.which(name) or name) for name in TOOLS.split()}
RELEASES = {
    "debian12": 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n',
    "debian13": 'ID=debian\nVERSION_ID="13"\n',
    "ubuntu2404": 'ID=ubuntu\nVERSION_ID="24.04"\n',
    "ubuntu2204": 'ID=ubuntu\nVERSION_ID="22.04"\n',
    "fedora": "ID=fedora\nVERSION_ID=43\n",
}
STORE = {"features": {"containerd-snapshotter": True}}
DOCKER = """
case "$*" in
    info*) [ -e "$STATE/up" ] && cat "$STATE/up" && exit ;;
    'buildx version') [ ! -e "$STATE/buildx" ] || cat "$STATE/buildx"; exit ;;
esac
cat "$STATE/down" >&2
exit 1
"""
DOCKERD = """
case "$*" in --version) echo 'Docker version 26.1.5, build 0'; exit ;; esac
[ ! -e "$STATE/dockerd-fails" ] || { echo 'no space left'; exit 1; }
cp "$STATE/new-up" "$STATE/up"
"""
# Keeps what stood in the sources and pins of the moment, for they are gone afterwards.
APT = """
for word; do
    case $word in
        Dir::Etc::SourceParts=* | Dir::Etc::PreferencesParts=*)
            cat "${word#*=}"/* >>"$STATE/apt-files" ;;
    esac
done
case "$*" in
    indextargets*) echo 'http://mirror.example/debian/' ;;
    *' -s '*) case "$*" in *docker*) cat "$STATE/simulation" ;; esac ;;
    *' install '*docker*) cp "$STATE/staged/"* "$STUBS" ;;
esac
[ ! -e "$DAEMON_JSON" ] || echo 'daemon.json is there' >>"$CALLS"
"""
# The real one is called for what only it can do, the merge of daemon.json: it takes long to start.
PYTHON = f"""
case "$*" in
    '-m venv --clear .venv') rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    '-m pip '*)
        [ ! -e "$STATE/pip-fails" ] || exit 1
        echo >.venv/bin/invoke
        chmod +x .venv/bin/invoke ;;
    --version) echo 'Python 3.11.2' ;;
    *setsid*) shift 2; exec "$@" ;;
    '-c import sys; print('*) echo 'python 3.11' ;;
    '-c import sys, venv, ensurepip;'*) ;;
    '- '*) exec {sys.executable} -S "$@" ;;
    *) exit 99 ;;
esac
"""
FROM_13 = """\
Inst containerd (1.6.20~ds1-1+deb12u3 Debian:12.15/oldstable [amd64])
Inst docker.io (26.1.5+dfsg1-9 Debian:13.8/stable [amd64])
Inst docker-buildx (0.13.1+ds1-3 Debian:13.8/stable [amd64])
Inst docker-cli [20.10.24] (26.1.5+dfsg1-9 Debian:13.8/stable [amd64])
Conf docker.io (26.1.5+dfsg1-9 Debian:13.8/stable [amd64])
"""


class Machine:
    """A folder that plays a machine: its system files, its programs, and a checkout."""

    def __init__(self, folder: Path):
        self.root = folder / "root"
        self.stubs = folder / "stubs"
        self.state = folder / "state"
        self.checkout = folder / "checkout"
        self.calls = self.state / "calls"
        self.tmp = folder / "tmp"
        self.daemon_json = self.root / "etc/docker/daemon.json"
        for made in (
            self.root / "etc/apt/sources.list.d",
            self.root / "etc/apt/preferences.d",
            self.root / "var/lib/apt/lists",
            self.stubs,
            self.state / "staged",
            self.checkout,
            self.tmp,
        ):
            made.mkdir(parents=True)
        (self.root / "etc/apt/sources.list").write_text(
            "deb http://mirror.example/debian bookworm main\n"
        )
        for name in ("bootstrap", "requirements.txt"):
            shutil.copy(CHECKOUT / name, self.checkout)
        for name, program in REAL.items():
            (self.stubs / name).symlink_to(program)
        for file in (
            "etc/ssl/certs/ca-certificates.crt",
            "usr/share/keyrings/debian-archive-keyring.gpg",
        ):
            (self.root / file).parent.mkdir(parents=True)
            (self.root / file).touch()
        for name in (
            "mmdebstrap",
            "zstd",
            "git",
            "gpgv",
            "mountpoint",
            "mount",
            "systemctl",
            "sleep",
        ):
            self.stub(name)
        self.stub("timeout", 'shift; exec "$@"')
        self.stub("python3", PYTHON)
        self.stub("apt-get", APT)
        self.user(0)
        self.release("debian13")
        self.put("down", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
        self.put("new-up", "26.1.5+dfsg1|[[driver-type io.containerd.snapshotter.v1]]\n")
        self.put("buildx", "github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3\n")
        self.put("simulation", FROM_13)
        for name, body in (("docker", DOCKER), ("dockerd", DOCKERD)):
            self.stub(name, body, self.state / "staged")

    def stub(self, name: str, body: str = "", folder: Path | None = None) -> None:
        file = (folder or self.stubs) / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >>"$CALLS"\n{body}\n')
        file.chmod(0o755)

    def put(self, name: str, text: str) -> None:
        (self.state / name).write_text(text)

    def release(self, name: str) -> None:
        (self.root / "etc/os-release").write_text(RELEASES[name])

    def user(self, number: int) -> None:
        self.stub("id", f"echo {number}")

    def without(self, *names: str) -> None:
        for name in names:
            (self.stubs / name).unlink()

    def with_docker(
        self, up: str = "26.1.5+dfsg1|[[driver-type io.containerd.snapshotter.v1]]\n"
    ) -> None:
        """Install Docker; an empty answer stands for one that does not run."""
        for file in (self.state / "staged").iterdir():
            shutil.copy(file, self.stubs)
        if up:
            self.put("up", up)

    def with_daemon_json(self, text: str) -> None:
        self.daemon_json.parent.mkdir(parents=True)
        self.daemon_json.write_text(text)

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess:
        self.calls.write_text("")
        paths = {
            "PATH": self.stubs,
            "ROCBAKE_SYSROOT": self.root,
            "TMPDIR": self.tmp,
            "STUBS": self.stubs,
            "STATE": self.state,
            "CALLS": self.calls,
            "DAEMON_JSON": self.daemon_json,
        }
        return subprocess.run(
            [self.checkout / "bootstrap", *args],
            env={name: str(path) for name, path in paths.items()} | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def called(self, *words: str) -> list[str]:
        """Give the recorded calls that hold all the words, in order."""
        return [
            line for line in self.calls.read_text().splitlines() if all(w in line for w in words)
        ]

    def tree(self) -> dict[Path, bytes]:
        """Give all that a run could change."""
        return {
            path: path.read_bytes() if path.is_file() else b""
            for top in (self.root, self.checkout, self.stubs)
            for path in top.rglob("*")
        }


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize("script", ["bootstrap", ".ci/run"])
def test_shellcheck_finds_nothing(script):
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [shellcheck, CHECKOUT / script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("script", ["bootstrap", ".ci/run"])
def test_may_be_run(script):
    assert os.access(CHECKOUT / script, os.X_OK)


def test_help_goes_to_stdout_and_touches_nothing(machine):
    before = machine.tree()
    done = machine.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ./bootstrap")
    assert machine.tree() == before
    assert machine.called() == []


@pytest.mark.parametrize("args", [["--nope"], ["build"], ["--check", "--check"], [""]])
def test_unknown_arguments_are_refused(machine, args):
    done = machine.run(*args)
    assert done.returncode == 2
    assert "does not know: " + " ".join(args) in done.stderr
    assert done.stdout == ""
    assert machine.called() == []


def test_with_a_usable_engine_it_only_makes_the_venv(machine):
    machine.with_docker()
    machine.user(1000)
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith(
        " s: Docker 26.1.5+dfsg1, buildx 0.13.1+ds1, Python 3.11.2"
    )
    assert done.stdout.splitlines()[1] == "next: .venv/bin/invoke build --target gfx1201"
    assert machine.called(
        "-m pip install", "--require-hashes", "--only-binary :all:", "-r requirements.txt"
    )
    assert not machine.called("apt-get")
    assert not machine.daemon_json.exists()


def test_second_run_does_nothing_more(machine):
    machine.with_docker()
    machine.run()
    before = machine.tree()
    done = machine.run()
    assert done.returncode == 0
    assert "python    .venv: ready" in done.stderr
    assert machine.tree() == before
    assert not machine.called("-m venv")
    assert not machine.called("-m pip")


@pytest.mark.parametrize("change", ["requirements", "stamp", "program", "place"])
def test_venv_is_made_anew_after(machine, change):
    machine.with_docker()
    machine.run()
    venv = machine.checkout / ".venv"
    if change == "requirements":
        (machine.checkout / "requirements.txt").write_text("# other\n")
    elif change == "stamp":
        stamp = venv / "rocbake-stamp"
        stamp.write_text(stamp.read_text().replace("python 3.", "python 2."))
    elif change == "program":
        (venv / "bin/invoke").unlink()
    else:
        machine.checkout = machine.checkout.rename(machine.checkout.with_name("elsewhere"))
    assert machine.run().returncode == 0
    assert machine.called("-m venv --clear .venv")
    assert machine.called("-m pip install")


def test_venv_that_failed_is_not_taken_for_ready(machine):
    machine.with_docker()
    machine.put("pip-fails", "")
    assert machine.run().returncode == 1
    (machine.state / "pip-fails").unlink()
    done = machine.run()
    assert done.returncode == 0
    assert machine.called("-m pip install")


def test_check_says_a_missing_venv_and_makes_none(machine):
    machine.with_docker()
    before = machine.tree()
    assert machine.run("--check").returncode == 1
    assert machine.tree() == before
    machine.run()
    done = machine.run("--check")
    assert (done.returncode, done.stdout) == (0, "ready\n")


WANTED = [
    (
        "debian12",
        "--no-install-recommends mmdebstrap git\n",
        "fits Debian 12: docker.io docker-cli docker-buildx\n",
    ),
    (
        "debian13",
        "--no-install-recommends mmdebstrap git docker.io docker-cli docker-buildx\n",
        "sudo ./bootstrap\n",
    ),
    (
        "ubuntu2404",
        "--no-install-recommends mmdebstrap git docker.io docker-buildx\n",
        "sudo ./bootstrap\n",
    ),
]


@pytest.mark.parametrize("run", [("1000",), ("0", "--check")])
@pytest.mark.parametrize(("release", "packages", "more"), WANTED)
def test_without_root_or_to_check_it_names_the_packages_alone(
    machine, release, packages, more, run
):
    machine.release(release)
    machine.user(run[0])
    machine.without("mmdebstrap", "git")
    before = machine.tree()
    done = machine.run(*run[1:])
    assert done.returncode == 7
    assert packages in done.stderr
    assert more in done.stderr
    assert "nothing was changed" in done.stderr
    assert done.stdout == ""
    assert machine.tree() == before
    assert not machine.called("apt-get")


@pytest.mark.parametrize("release", ["ubuntu2204", "fedora"])
def test_other_systems_are_advised_and_left_alone(machine, release):
    machine.release(release)
    machine.without("zstd")
    before = machine.tree()
    done = machine.run()
    assert done.returncode == 7
    assert "this system's package manager: zstd\n" in done.stderr
    assert machine.tree() == before
    assert not machine.called("apt-get")


def test_any_system_will_do_when_nothing_is_missing(machine):
    machine.release("fedora")
    machine.with_docker()
    assert machine.run().returncode == 0


def test_no_python_asks_for_the_package(machine):
    machine.with_docker()
    machine.stub("python3", "exit 1")
    machine.user(1000)
    done = machine.run()
    assert done.returncode == 7
    assert "--no-install-recommends python3-venv\n" in done.stderr


@pytest.mark.parametrize(
    ("release", "packages"),
    [("debian13", "docker.io docker-cli docker-buildx"), ("ubuntu2404", "docker.io docker-buildx")],
)
def test_root_installs_from_the_own_release_and_starts(machine, release, packages):
    machine.release(release)
    machine.without("git")
    done = machine.run()
    assert done.returncode == 0, done.stderr
    (tools, docker) = [
        call for call in machine.called("apt-get", " install ") if " -s " not in call
    ]
    assert tools.endswith("install --no-install-recommends git")
    assert docker.endswith("install --no-install-recommends " + packages)
    assert not machine.called("Dir::Etc::SourceParts")
    assert json.loads(machine.daemon_json.read_text()) == STORE
    assert machine.called(f"dockerd --pidfile {machine.root}/run/rocbake/dockerd.pid")
    # The package may start Docker at once, so the right store must be switched on by then.
    recorded = machine.called()
    assert "daemon.json is there" in recorded[: recorded.index(docker) + 2]


def test_debian_12_takes_docker_alone_from_trixie(machine):
    machine.release("debian12")
    machine.without("git")
    system = {
        path: data
        for path, data in machine.tree().items()
        if machine.root / "etc/apt" in path.parents
    }
    done = machine.run()
    assert done.returncode == 0, done.stderr
    (tools, docker) = [
        call for call in machine.called("apt-get", " install ") if " -s " not in call
    ]
    assert "Dir::Etc::SourceParts" not in tools
    assert "Dir::Etc::SourceParts" in docker
    assert "Dir::State::Lists" in docker
    assert docker.endswith("install --no-install-recommends docker.io docker-cli docker-buildx")
    seen = (machine.state / "apt-files").read_text()
    assert "deb http://mirror.example/debian bookworm main" in seen
    assert "debian-archive-keyring.gpg] http://mirror.example/debian/ trixie main" in seen
    assert "Package: *\nPin: release n=trixie\nPin-Priority: -1\n" in seen
    after = machine.tree()
    assert {path: after.get(path) for path in system} == system
    assert not list(machine.tmp.iterdir())


@pytest.mark.parametrize(
    ("release", "simulation", "word"),
    [
        ("debian12", FROM_13 + "Inst libc6 [2.36] (2.41-12 Debian:13.8/stable [amd64])\n", "libc6"),
        (
            "debian12",
            FROM_13 + "Inst libx (1 Debian-Security:13/stable-security [amd64]) []\n",
            "libx",
        ),
        ("debian12", FROM_13.replace("Debian:13.8/stable", "Debian:12.15/oldstable"), "refused"),
        ("debian12", FROM_13 + "Remv podman-docker [4.3.1]\n", "podman-docker"),
        ("debian13", FROM_13 + "Remv podman-docker [4.3.1]\n", "podman-docker"),
    ],
)
def test_installs_nothing_if_apt_would_do_more(machine, release, simulation, word):
    machine.release(release)
    machine.put("simulation", simulation)
    done = machine.run()
    assert done.returncode == 7
    assert word in done.stderr
    assert "refused" in done.stderr
    assert all(" -s " in call for call in machine.called("apt-get", " install "))


def test_daemon_json_keeps_its_other_keys(machine):
    old = '{"bridge": "none", "features": {"cdi": true}}'
    machine.with_daemon_json(old)
    machine.daemon_json.chmod(0o600)
    assert machine.run().returncode == 0
    merged = json.loads(machine.daemon_json.read_text())
    assert merged == {"bridge": "none", "features": {"cdi": True, "containerd-snapshotter": True}}
    assert machine.daemon_json.stat().st_mode & 0o777 == 0o600
    assert machine.daemon_json.with_name("daemon.json.before-rocbake").read_text() == old


def test_daemon_json_that_fits_is_not_written(machine):
    machine.with_daemon_json('{"features":\n\t{"containerd-snapshotter" : true}}')
    before = machine.daemon_json.read_text()
    assert machine.run().returncode == 0
    assert machine.daemon_json.read_text() == before
    assert not machine.daemon_json.with_name("daemon.json.before-rocbake").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read as a JSON object"),
        ("[]", "cannot be read as a JSON object"),
        ('{"features": 1}', "cannot be read as a JSON object"),
        (
            '{"features": {"containerd-snapshotter": false}}',
            "switches the containerd image store off",
        ),
        ('{"storage-driver": "overlay2"}', "storage-driver belongs to the old image store"),
    ],
)
def test_daemon_json_that_cannot_be_merged_stops_all(machine, text, reason):
    machine.with_daemon_json(text)
    before = machine.tree()
    done = machine.run()
    assert done.returncode == 7
    assert f"{machine.daemon_json} is in the way" in done.stderr
    assert reason in done.stderr
    assert machine.tree() == before
    assert not machine.called("apt-get")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            "26.1.5|[[Backing Filesystem extfs] [Supports d_type true]]\n",
            "not with the containerd image store",
        ),
        (
            "24.0.7|[[driver-type io.containerd.snapshotter.v1]]\n",
            "Docker 24.0.7 answers; 25 or later",
        ),
    ],
)
def test_running_engine_of_the_user_is_left_alone(machine, answer, reason):
    machine.with_docker(answer)
    before = machine.tree()
    done = machine.run()
    assert done.returncode == 7
    assert reason in done.stderr
    assert "it is left alone" in done.stderr
    assert json.dumps(STORE) in done.stderr
    assert machine.tree() == before
    assert not machine.called("apt-get")
    assert not machine.called("systemctl")


@pytest.mark.parametrize("version", ["", "github.com/docker/buildx v0.12.1 30feaa1\n"])
def test_buildx_alone_is_installed_and_the_engine_left_running(machine, version):
    machine.with_docker()
    machine.put("buildx", version)
    machine.stub(
        "apt-get",
        APT + f"[ \"$STATE\" = '' ] || cp {machine.state}/good-buildx {machine.state}/buildx",
    )
    machine.put("good-buildx", "github.com/docker/buildx v0.20.0 abc\n")
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.called("install --no-install-recommends docker-buildx")
    assert not machine.called("dockerd --pidfile")
    assert not machine.daemon_json.exists()


def test_buildx_that_stays_too_old_is_said(machine):
    machine.with_docker()
    machine.put("buildx", "github.com/docker/buildx 0.12.1 0.12.1-0ubuntu1\n")
    done = machine.run()
    assert done.returncode == 7
    assert "docker buildx is 0.12.1; 0.13 or later is needed" in done.stderr


def test_stopped_engine_with_images_in_the_old_store_is_left_alone(machine):
    machine.with_docker(up="")
    image = machine.root / "var/lib/docker/image/overlay2/imagedb/content/sha256/0a"
    image.parent.mkdir(parents=True)
    image.write_text("{}")
    before = machine.tree()
    done = machine.run()
    assert done.returncode == 7
    assert "images in its old image store" in done.stderr
    assert machine.tree() == before


def test_docker_host_that_does_not_answer_is_the_users(machine):
    machine.with_docker(up="")
    done = machine.run(DOCKER_HOST="tcp://builder.example:2376")
    assert done.returncode == 7
    assert "DOCKER_HOST is tcp://builder.example:2376" in done.stderr
    assert not machine.called("dockerd --pidfile")


def test_a_user_outside_the_docker_group_is_told(machine):
    machine.with_docker(up="")
    machine.put("down", "permission denied while trying to connect to the Docker daemon socket\n")
    machine.user(1000)
    done = machine.run()
    assert done.returncode == 7
    assert "sudo usermod -aG docker" in done.stderr
    assert "apt-get" not in done.stderr


def test_stopped_engine_is_started_despite_stale_pid_files(machine):
    machine.with_docker(up="")
    stale = [
        machine.root / "run/rocbake/dockerd.pid",
        machine.root / "run/docker/containerd/containerd.pid",
    ]
    for file in stale:
        file.parent.mkdir(parents=True)
        file.write_text("1")  # runs, and is neither
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert not any(file.exists() for file in stale)
    assert machine.called("dockerd --pidfile")
    assert not machine.called("apt-get")


@pytest.mark.parametrize(("groups", "told"), [("staff", True), ("staff docker", False)])
def test_under_sudo_the_user_is_told_of_the_group(machine, groups, told):
    machine.with_docker()
    machine.stub("id", f'case "$*" in "-nG kim") echo {groups} ;; *) echo 0 ;; esac')
    done = machine.run(SUDO_USER="kim")
    assert done.returncode == 0
    assert ("usermod -aG docker kim" in done.stderr) is told


def test_init_system_starts_the_engine_where_there_is_one(machine):
    machine.with_docker(up="")
    (machine.root / "run/systemd/system").mkdir(parents=True)
    machine.stub("systemctl", 'cp "$STATE/new-up" "$STATE/up"')
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.called("systemctl enable --now docker")
    assert not machine.called("dockerd --pidfile")


def test_engine_that_dies_shows_the_end_of_its_log(machine):
    machine.with_docker(up="")
    machine.put("dockerd-fails", "")
    done = machine.run()
    assert done.returncode == 7
    assert "no space left" in done.stderr
    assert "Docker did not start" in done.stderr
