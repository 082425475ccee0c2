"""Builds: kept, reused, equal wherever they are made, and whole however they end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import docker.errors
import pytest

from rocbake import engine, oci, unpack

KILLS = 20


def digests(built):
    return built["archive"]["sha256"], built["image"]["config"], built["image"]["layers"]


def test_a_build_is_kept_and_then_reused(checkout):
    first = checkout.build()
    again = checkout.build(DOCKER_HOST="unix:///nowhere")

    assert (first["state"], again["state"]) == ("built", "reused")
    assert digests(first) == digests(again)
    folder = Path(first["folder"])
    members = {one.name for one in unpack.read_members(folder / first["archive"]["file_name"])}
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


@pytest.mark.parametrize("phase", ["build", "image tests"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_half_done(checkout, number, code, phase):
    script = checkout.recipe / "build.sh"
    if phase == "build":
        script.write_text(f"{script.read_text()}sleep 1000\n")
    running = subprocess.Popen(
        checkout.command("build", "--target", "gfx1201"),
        cwd=checkout.root,
        env=os.environ | checkout.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if phase == "build":
        log = checkout.root / "artifacts/.work/words-gfx1201/build.log"
        wait_for(lambda: log.exists() and "/rocbake/recipe/build.sh" in log.read_text(), running)
        time.sleep(1)
    else:
        wait_for(lambda: containers_of(running.pid), running)

    running.send_signal(number)
    _, talk = running.communicate(timeout=60)

    assert running.returncode == code
    assert "nothing is half-written" in talk
    assert checkout.artifacts() == []
    wait_for(lambda: not leftovers_of(running.pid), seconds=15)
    wait_for(lambda: not processes_named("sleep 1000"), seconds=15)


def containers_of(process):
    """Return the images whose containers are there, of those that one process did not finish."""
    found = []
    with engine.connect() as client:
        for one in client.api.containers(all=True, filters={"label": engine.LABEL}):
            with contextlib.suppress(docker.errors.NotFound):
                # What it was started from; the list names an image without a name by its digest.
                found.append(client.api.inspect_container(one["Id"])["Config"]["Image"])
    return [one for one in found if is_staged(one, process)]


def leftovers_of(process):
    """Return what is left in the engine of one process; another build's is no business of ours."""
    images = [name for one in engine.images() for name in one.references]
    return containers_of(process) + [one for one in images if is_staged(one, process)]


def is_staged(reference, process):
    return reference.startswith("rocbake/staging-") and reference.endswith(f".{process}")


def wait_for(condition, running=None, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        assert running is None or running.poll() is None, running.communicate()
        time.sleep(0.1)


def processes_named(words):
    found = subprocess.run(
        ["pgrep", "-f", f"^{words}$"], capture_output=True, text=True, check=False
    )
    return found.stdout.split()


@pytest.mark.timeout(900)
def test_killed_at_any_moment_the_next_run_ends_with_the_same_bytes(
    checkout, empty_checkout, bare_cache
):
    """SIGKILL, so that nobody can clean up; what is listed in between is whole or absent.

    Each third round has no image of `base` and no root file system to start from, so that the long
    steps that make those are killed as well.
    """
    empty_checkout.env["ROCBAKE_CACHE"] = str(bare_cache)
    chance = random.Random(20261030)
    rounds = []
    for made in (checkout, empty_checkout):
        start = time.monotonic()
        whole = made.build()
        rounds.append((made, time.monotonic() - start))
        forget(made)
    killed = {checkout.root: 0, empty_checkout.root: 0}
    processes = []

    for number in range(KILLS):
        made, seconds = rounds[number % 3 == 0]
        running = subprocess.Popen(
            made.command("build", "--target", "gfx1201"),
            cwd=made.root,
            env=os.environ | made.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        processes.append(running.pid)
        try:
            running.wait(chance.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            killed[made.root] += 1
        for listed in json.loads(made.invoke("list", "--json").stdout)["artifacts"]:
            folder = Path(listed["folder"])
            oci.read(folder / "image").verify()
            if listed["archive"]:
                list(unpack.read_members(folder / listed["archive"]["file_name"]))
        # So that the next round has something to interrupt again.
        forget(made)

    assert sum(killed.values()) >= KILLS / 2
    assert killed[empty_checkout.root] >= KILLS // 3 / 2
    assert digests(checkout.build()) == digests(whole)
    assert digests(empty_checkout.build()) == digests(whole)
    # A test run whose build was killed ends by itself.
    wait_for(lambda: not any(map(leftovers_of, processes)))


def forget(made):
    """Remove from a checkout's store and own cache what a build makes anew."""
    shutil.rmtree(made.root / "artifacts" / "words", ignore_errors=True)
    if "ROCBAKE_CACHE" in made.env:
        shutil.rmtree(made.root / "artifacts" / "base", ignore_errors=True)
        shutil.rmtree(Path(made.env["ROCBAKE_CACHE"], "rootfs"), ignore_errors=True)


def test_a_build_needs_no_network(base, empty_checkout, bare_cache):
    """In a namespace with nothing but a loopback device; the engine's own socket aside.

    With nothing but the sources to start from; `base` is here so that they are in the cache.
    """
    done = subprocess.run(
        ["unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh",
         *empty_checkout.command("build", "--target", "gfx1201", "--json")],
        cwd=empty_checkout.root,
        env=os.environ | {"ROCBAKE_CACHE": str(bare_cache)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert [one["state"] for one in json.loads(done.stdout)] == ["built", "built"]
    assert "Making the root file system" in done.stderr
