"""Whatever is not locked is refused: each kind with its own exit code, naming the input."""

from __future__ import annotations

import json
import shutil

import pytest

from rocbake.cache import Cache

DEB = "libzstd1"


@pytest.fixture
def own_cache(checkout, tmp_path):
    """A cache of the checkout's own with every locked package, and no mirror to mend it from."""
    cache = tmp_path / "cache"
    lock = json.loads((checkout.root / "containers/base/lock.json").read_text())
    for package in lock["packages"]:
        place = Cache(cache).path(package["sha256"])
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Cache().path(package["sha256"]), place)
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    checkout.env |= {
        "ROCBAKE_CACHE": str(cache),
        "ROCBAKE_MIRRORS": f"debian=file://{nowhere}",
    }
    return cache


def package(checkout):
    lock = json.loads((checkout.root / "containers/base/lock.json").read_text())
    return next(one for one in lock["packages"] if one["name"] == DEB)


@pytest.fixture(autouse=True, scope="module")
def filled_cache():
    """The packages of `base` are in the cache, as a build or `invoke fetch` leaves them."""
    from rocbake import fetch, lock, mirror, project  # noqa: PLC0415 - see what it is for

    base = lock.read_container(project.load().containers["base"])
    fetch.fetch(base.packages, cache=Cache(), mirrors=mirror.load(), snapshot=base.snapshot)


def test_a_step_that_fetches_fails(checkout):
    call = 'IO::Socket::INET->new("192.0.2.1:80") or die "no way: $!"'
    fetching = f"perl -MIO::Socket -e '{call}'"
    (checkout.recipe / "build.sh").write_text(f"#!/bin/sh\nset -eu\n{fetching}\n")

    done = checkout.invoke("build", "--target", "gfx1201", code=5)

    assert "no way: Network is unreachable" in done.stderr
    assert "/rocbake/recipe/build.sh" in done.stderr
    assert "whole log: " in done.stderr


def test_an_add_of_an_address_is_refused(checkout):
    (checkout.recipe / "Dockerfile").write_text(
        "FROM runtime\nADD http://192.0.2.1/archive.tar /\n"
    )

    done = checkout.invoke("build", "--target", "gfx1201", code=2)

    assert "recipes/words/Dockerfile:2:1: ADD http://192.0.2.1/archive.tar" in done.stderr


def test_the_engine_refuses_an_address_as_well(checkout):
    """The second line of defence: what a Dockerfile's reader missed."""
    reader = checkout.root / "rocbake" / "dockerfile.py"
    reader.write_text(f"{reader.read_text()}\n\ndef problems(path, *, contexts):\n    return []\n")
    (checkout.recipe / "Dockerfile").write_text(
        "FROM runtime\nADD http://192.0.2.1/archive.tar /\n"
    )

    done = checkout.invoke("build", "--target", "gfx1201", code=5)

    assert "http://192.0.2.1/archive.tar" in done.stderr
    assert "denied by policy" in done.stderr


def test_a_package_that_is_not_in_the_lock_is_refused(checkout):
    wish = checkout.root / "containers/base/container.yaml"
    wish.write_text(wish.read_text().replace("packages: [apt]", "packages: [apt, curl]"))

    done = checkout.invoke("build", "--target", "gfx1201", code=3)

    assert (
        "containers/base/lock.json: stale: packages: curl is wanted and not locked" in done.stderr
    )
    assert "→ invoke lock --name base" in done.stderr


def test_a_flipped_byte_is_refused(checkout, own_cache):
    entry = Cache(own_cache).path(package(checkout)["sha256"])
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(data)

    done = checkout.invoke("build", "--target", "gfx1201", "--offline", code=4)

    assert DEB in done.stderr


def test_a_missing_file_is_named(checkout, own_cache):
    Cache(own_cache).path(package(checkout)["sha256"]).unlink()

    done = checkout.invoke("build", "--target", "gfx1201", "--offline", code=4)

    assert f"{DEB} {package(checkout)['version']}" in done.stderr
    assert "→ invoke fetch" in done.stderr


def test_a_package_that_no_mirror_has_is_named(checkout, own_cache):
    Cache(own_cache).path(package(checkout)["sha256"]).unlink()

    done = checkout.invoke("build", "--target", "gfx1201", code=4)

    assert f"{DEB} {package(checkout)['version']}" in done.stderr
    assert "→ invoke lock" in done.stderr


def test_a_stale_recipe_is_refused(checkout):
    recipe = checkout.recipe / "recipe.yaml"
    recipe.write_text(f"{recipe.read_text()}sources: [{{url: 'http://192.0.2.1/x.tar'}}]\n")

    done = checkout.invoke("build", "--target", "gfx1201", code=3)

    assert "recipes/words/lock.json: stale" in done.stderr
    assert "http://192.0.2.1/x.tar" in done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo made in /rocbake/build/x > /rocbake/dist/words", "words"),
        ("mkfifo /rocbake/dist/pipe", "pipe"),
        ("ln -s /etc/passwd /rocbake/dist/link", "link"),
    ],
)
def test_a_product_that_may_not_leave_is_refused(checkout, line, words):
    script = checkout.recipe / "build.sh"
    script.write_text(f"{script.read_text()}{line}\n")

    done = checkout.invoke("build", "--target", "gfx1201", code=5)

    assert words in done.stderr
    assert checkout.artifacts() == []
