"""Artifacts that travel: a real one, through a web server, to somebody without an engine."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rocbake import remote, transfer
from rocbake.remote import Remote
from tests.integration.conftest import ROOT

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

NOBODY = 65534
# Somebody without rights, where only root is asked for that and the interpreter is for everyone.
AS_NOBODY = os.geteuid() == 0 and all(
    place.stat().st_mode & 0o005 == 0o005
    for path in (ROOT, Path(sys.executable).resolve())
    for place in (path, *path.parents)
)
ASKED = ("--recipe", "hip-probe", "--target", "gfx1201")
PARTS = ("rocbake", "containers", "recipes", "tasks.py", "pyproject.toml")


@pytest.fixture(scope="module")
def pushed(built, tmp_path_factory):
    """A remote store with hip-probe, written once and then again."""
    there = Remote(f"file://{tmp_path_factory.mktemp('remote')}/there")
    first = transfer.push(built["hip-probe"], there)
    again = transfer.push(built["hip-probe"], there)
    assert first.written > 0
    assert again.written == 0
    return there


@pytest.fixture(scope="module")
def served(pushed):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=os.fspath(pushed.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def elsewhere(tmp_path):
    """A checkout of somebody else's, who has no engine, no rights and an empty cache."""
    root = tmp_path / "checkout"
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, root / name, ignore=unwanted)
        else:
            root.mkdir(exist_ok=True)
            shutil.copy(source, root / name)
    (tmp_path / "home").mkdir()
    if AS_NOBODY:
        for path in (tmp_path, *tmp_path.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        # pytest's own folders above are private.
        for path in tmp_path.parents[:2]:
            path.chmod(path.stat().st_mode | 0o011)
    return root


def invoke(root: Path, *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/nowhere",
        "HOME": os.fspath(root.parent / "home"),
        "DOCKER_HOST": "unix:///nowhere",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "invoke", *words],
        cwd=root,
        env=environment | more,
        **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if AS_NOBODY else {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_pulled_with_python_alone_it_is_the_same(built, served, elsewhere):
    start = time.monotonic()

    done = invoke(elsewhere, "pull", *ASKED, "--from", served, "--no-fit-check", "--json")

    assert time.monotonic() - start < 10
    (told,) = json.loads(done.stdout)
    entry = built["hip-probe"]
    got, wanted = tree(Path(told["folder"])), tree(entry.folder)
    for name in ("artifact.json", "build.log"):
        wanted.pop(name, None)
        got.pop(name, None)
    wanted = {name: data for name, data in wanted.items() if not name.startswith("smoke/")}
    assert (told["state"], got == wanted) == ("pulled", True)


def test_what_does_not_fit_is_refused_with_both_sides_named(served, elsewhere):
    done = invoke(elsewhere, "pull", *ASKED, "--from", served, code=11)

    assert "libamdhip64.so.7 (ROCm 7 or 10) is needed by bin/hip-probe; here is none" in done.stderr
    assert not list((elsewhere / "artifacts").glob("hip-probe/*"))


def test_build_takes_it_from_there(served, elsewhere):
    done = invoke(elsewhere, "build", *ASKED, "--json", ROCBAKE_REMOTE=served)
    again = invoke(elsewhere, "build", *ASKED, "--json")

    states = [json.loads(one.stdout)[0]["state"] for one in (done, again)]
    assert states == ["pulled", "reused"]


def test_flipped_byte_is_refused(pushed, elsewhere, tmp_path):
    bad = tmp_path / "bad"
    shutil.copytree(pushed.folder, bad)
    (index,) = bad.glob(f"hip-probe/*/{remote.INDEX}")
    told = json.loads(index.read_text())
    sha256 = told["artifact"]["archive"]["sha256"]
    path = bad / "blobs/sha256" / sha256
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    done = invoke(elsewhere, "pull", *ASKED, "--from", f"file://{bad}", "--no-fit-check", code=4)

    assert f"expected sha256 {sha256}" in done.stderr
    assert not list((elsewhere / "artifacts").glob("hip-probe/*"))
