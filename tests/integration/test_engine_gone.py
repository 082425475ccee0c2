"""An engine that ends in the middle: one of our own, so that nobody else's goes."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import threading
import time

import pytest

from rocbake import engine, oci, passthrough, store
from rocbake.errors import EngineError
from rocbake.store import Store

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can start an engine"),
    pytest.mark.skipif(not shutil.which("dockerd"), reason="no dockerd here"),
    # The SDK leaves the socket open with which it tried to reach an engine that is gone.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
_SECONDS = 60


@contextlib.contextmanager
def dockerd(folder):
    """Start an engine that shares nothing with the machine's own.

    Not even the network: one that is told to have no bridge takes away the bridge it finds.
    """
    words = ["unshare", "--net", "dockerd",
             "--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile",
             folder / "pid", "--host", f"unix://{folder}/sock",
             "--config-file", folder / "none.json",
             "--iptables=false", "--ip6tables=false", "--bridge=none"]  # fmt: skip
    (folder / "none.json").write_text("{}")
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        limit = time.monotonic() + _SECONDS
        while time.monotonic() < limit and process.poll() is None:
            with contextlib.suppress(EngineError):
                engine.facts()
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"no engine: {(folder / 'log').read_text()[-2000:]}")
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path_factory, monkeypatch):
    # A socket's path has 108 bytes at most.
    made = tmp_path_factory.mktemp("e", numbered=True)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{made}/sock")
    yield made
    subprocess.run(["umount", "--recursive", "--quiet", made / "exec", made / "data"], check=False)
    shutil.rmtree(made, ignore_errors=True)


def listed():
    with engine.connect() as client:
        return client.containers.list(all=True)


def test_engine_that_is_killed_is_told_and_what_it_leaves_is_cleared_away(folder, base):
    (entry,) = [one for one in Store(base.parent).entries() if one.artifact.name == "base"]
    planned = passthrough.RunPlan(image="base:here", user="", card=None, seconds=_SECONDS)
    with dockerd(folder) as process:
        engine.load(oci.read(entry.folder / store.IMAGE), planned.image)

        def kill():
            limit = time.monotonic() + _SECONDS
            while time.monotonic() < limit and not any(one.status == "running" for one in listed()):
                time.sleep(0.1)
            process.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(EngineError) as told:
            engine.attempt(planned, ["sleep", "600"])
        killer.join()
    assert "went away in the middle" in str(told.value)
    assert told.value.exit_code == 7
    del told  # its frames hold the socket

    with dockerd(folder):
        # Its process is gone when rocbake comes again; here it is this one, which lives.
        assert len(listed()) == 1
        for one in listed():
            one.remove(force=True)
    gc.collect()
