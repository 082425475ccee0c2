"""Builds: kept, reused, equal wherever they are made, and whole however they end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rocbake import archive, engine, oci

KILLS = 20


def digests(built):
    return built["archive"]["sha256"], built["image"]["config"], built["image"]["layers"]


def test_a_build_is_kept_and_then_reused(checkout):
    first = checkout.build()
    again = checkout.build(DOCKER_HOST="unix:///nowhere")

    assert (first["state"], again["state"]) == ("built", "reused")
    assert digests(first) == digests(again)
    folder = Path(first["folder"])
    members = {one.name for one in archive.read_members(folder / first["archive"]["file_name"])}
    stem = first["archive"]["file_name"].removesuffix(".tar.zst")
    assert {f"{stem}/bin/words", f"{stem}/manifest.json"} <= members
    assert "/rocbake/recipe/build.sh" in (folder / "build.log").read_text()
    oci.read(folder / "image").verify()


def test_the_image_is_in_the_engine_with_its_labels(checkout):
    built = checkout.build()

    (image,) = [one for one in engine.images() if one.key == built["key"]]

    assert "rocbake/words:gfx1201" in image.references
    ended = engine.run_container("rocbake/words:gfx1201", ["words"], timeout=60)
    assert (ended.exit_code, ended.stdout) == (0, "one lock, one command for gfx1201\n")


def test_the_bytes_do_not_depend_on_who_builds_where(checkout, empty_checkout, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    first = checkout.build()
    for path in empty_checkout.root.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode | 0o020)
            os.utime(path, (10**9, 10**9))
    before = os.umask(0o002)
    try:
        second = empty_checkout.build(
            TZ="Pacific/Kiritimati",
            LANG="de_DE.UTF-8",
            LC_ALL="C",
            HOME=str(home),
            USER="somebody",
            ROCBAKE_CACHE=str(tmp_path / "cache"),
        )
    finally:
        os.umask(before)

    assert first["key"] == second["key"]
    assert digests(first) == digests(second)


def test_verify_finds_two_builds_equal(checkout):
    checkout.build()

    done = checkout.invoke("verify", "--target", "gfx1201", "--json")

    assert [one["difference"] for one in json.loads(done.stdout)] == [None, None]


def test_verify_names_the_first_file_that_differs(checkout):
    script = checkout.recipe / "build.sh"
    script.write_text(f"{script.read_text()}date +%s%N > /rocbake/dist/when\n")
    checkout.build()

    done = checkout.invoke("verify", "--target", "gfx1201", code=6)

    assert "archive: when: sha256 " in done.stderr


def test_a_recorded_digest_that_differs_ends_with_6(checkout):
    checkout.build()
    checkout.invoke("lock", "--record")
    assert checkout.build()["recorded"] == "reproduced"
    place = checkout.recipe / "lock.json"
    lock = json.loads(place.read_text())
    recorded = lock["recorded"]["gfx1201"]
    recorded["archive"] = recorded["files"]["bin/words"] = "0" * 64
    place.write_text(json.dumps(lock))

    done = checkout.invoke("build", "--target", "gfx1201", code=6)

    assert f"archive: bin/words: expected sha256 {'0' * 64}" in done.stderr


def test_a_damaged_archive_is_never_reused(checkout):
    built = checkout.build()
    path = Path(built["folder"]) / built["archive"]["file_name"]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    done = checkout.invoke("build", "--target", "gfx1201", code=5)

    assert f"{path}: damaged since it was stored" in done.stderr
    assert checkout.build("--force")["archive"]["sha256"] == built["archive"]["sha256"]


def test_a_failed_image_test_keeps_nothing(checkout):
    script = checkout.recipe / "build.sh"
    script.write_text(
        f"{script.read_text()}mkdir /rocbake/dist/lost; cp /bin/true /rocbake/dist/lost/program\n"
    )

    done = checkout.invoke("build", "--target", "gfx1201", code=5)

    assert "an image failed its tests" in done.stderr
    assert "test_programs_are_on_the_path" in done.stderr
    assert checkout.artifacts() == []
    assert not any("staging-words" in name for one in engine.images() for name in one.references)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_half_done(checkout, number, code):
    script = checkout.recipe / "build.sh"
    script.write_text(f"{script.read_text()}sleep 1000\n")
    running = subprocess.Popen(
        checkout.command("build", "--target", "gfx1201"),
        cwd=checkout.root,
        env=os.environ | checkout.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = checkout.root / "artifacts/.work/words-gfx1201/build.log"
    wait_for(lambda: log.exists() and "/rocbake/recipe/build.sh" in log.read_text(), running)
    time.sleep(1)

    running.send_signal(number)
    _, talk = running.communicate(timeout=60)

    assert running.returncode == code
    assert "nothing is half-written" in talk
    assert checkout.artifacts() == []
    assert engine.leftovers() == []
    wait_for(lambda: not processes_named("sleep 1000"))


def wait_for(condition, running=None):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert running is None or running.poll() is None, running.communicate()
        time.sleep(0.1)


def processes_named(words):
    found = subprocess.run(
        ["pgrep", "-f", f"^{words}$"], capture_output=True, text=True, check=False
    )
    return found.stdout.split()


def test_killed_at_any_moment_the_next_run_ends_with_the_same_bytes(checkout):
    """SIGKILL, so that nobody can clean up; what is listed in between is whole or absent."""
    start = time.monotonic()
    whole = checkout.build()
    seconds = time.monotonic() - start
    chance = random.Random(20261030)
    shutil.rmtree(checkout.root / "artifacts" / "words")

    for _ in range(KILLS):
        running = subprocess.Popen(
            checkout.command("build", "--target", "gfx1201"),
            cwd=checkout.root,
            env=os.environ | checkout.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            running.wait(chance.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        for listed in checkout.artifacts():
            folder = Path(listed["folder"])
            oci.read(folder / "image").verify()
            list(archive.read_members(folder / listed["archive"]["file_name"]))
            # So that the next round has something to interrupt again.
            shutil.rmtree(folder)

    assert digests(checkout.build()) == digests(whole)
    assert engine.leftovers() == []


def test_a_build_needs_no_network(checkout):
    """In a namespace with nothing but a loopback device; the engine's own socket aside."""
    done = subprocess.run(
        ["unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh",
         *checkout.command("build", "--target", "gfx1201", "--json")],
        cwd=checkout.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert [one["state"] for one in json.loads(done.stdout)] == ["built"]
