"""Locks made for real: by apt, from this machine's mirror, against the keyring of the project."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

# Keys that Debian signs nothing with any more; the package debian-archive-keyring has them.
OTHER_KEYS = Path("/usr/share/keyrings/debian-archive-removed-keys.gpg")


@pytest.fixture
def lock(checkout):
    return checkout.root / "containers" / "base" / "lock.json"


def test_a_lock_that_was_just_made_is_up_to_date(checkout, lock):
    lock.unlink()

    checkout.invoke("lock", "--name", "base")
    checkout.invoke("lock", "--name", "base", "--check")

    made = json.loads(lock.read_text())
    assert {"apt", "dpkg", "libc6"} <= {package["name"] for package in made["packages"]}
    assert all(len(package["sha256"]) == 64 for package in made["packages"])
    assert [suite["name"] for suite in made["suites"]] == ["sid", "experimental"]
    assert made["made_with"].keys() >= {"apt", "docker", "buildx"}
    assert "://" not in lock.read_text()


def test_a_lock_that_the_archive_left_behind_is_told(checkout, lock):
    old = json.loads(lock.read_text())
    old["packages"][0]["version"] = "0"
    lock.write_text(json.dumps(old))

    done = checkout.invoke("lock", "--name", "base", "--check", code=3)

    assert f"- {old['packages'][0]['name']} 0 " in done.stdout
    assert "→ invoke lock --name base" in done.stderr
    assert json.loads(lock.read_text()) == old


def test_indices_that_others_signed_are_refused(checkout, lock):
    before = lock.read_bytes()
    shutil.copy(OTHER_KEYS, lock.with_name("other.gpg"))
    wish = lock.with_name("container.yaml")
    wish.write_text(wish.read_text().replace("keyring: keyring.asc", "keyring: other.gpg"))

    done = checkout.invoke("lock", "--name", "base", code=12)

    assert "no mirror gave indices that can be trusted" in done.stderr
    assert "check other.gpg against the archive's published keys" in done.stderr
    assert lock.read_bytes() == before
