"""Fit for real: hip-probe, as it was built here, against Debian 11 and against its own image.

What is said of Debian 11 is compared with what the loader there says.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import docker.errors
import pytest

from rocbake import engine, fit, host, loader, store, unpack
from rocbake.errors import FitError
from rocbake.manifest import Manifest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

OLD = "bullseye"
IMAGE = "rocbake-test-fit"


@pytest.fixture(scope="module")
def room():
    """A folder that mmdebstrap's user reaches where it is not root; that of pytest is closed."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def lay_out(tar, root):
    """Unpack a root file system without its devices, which take rights to make."""
    root.mkdir()
    with tarfile.open(tar) as stream:
        for member in stream:
            if member.isdir() or member.isfile() or member.issym() or member.islnk():
                member.mode |= 0o700 if member.isdir() else 0o600
                stream.extract(member, root, filter="fully_trusted")
    return root


@pytest.fixture(scope="module")
def old_tar(room):
    """Debian 11 as a tar: glibc 2.31, from where this machine's own packages come."""
    if not shutil.which("mmdebstrap"):
        pytest.skip("mmdebstrap is not installed")
    tar = room / "old.tar"
    words = ["mmdebstrap", "--variant=essential", "--include=libstdc++6", OLD, tar]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no {OLD} from this machine's mirrors: {made.stderr[-300:]}")
    return tar


@pytest.fixture(scope="module")
def old(old_tar, room):
    return lay_out(old_tar, room / "old")


@pytest.fixture(scope="module")
def runtime(built, room):
    """The file system of the image that hip-probe runs on."""
    tar = room / "runtime.tar"
    with engine.connect() as client, tar.open("wb") as stream:
        made = client.containers.create(built["rocm-runtime"].artifact.image.reference, ["true"])
        try:
            stream.writelines(made.export())
        finally:
            made.remove()
    return lay_out(tar, room / "runtime")


@pytest.fixture(scope="module")
def manifest(built):
    return Manifest.model_validate_json((built["hip-probe"].folder / store.MANIFEST).read_bytes())


@pytest.fixture(scope="module")
def product(built, room):
    """The unpacked archive."""
    unpack.unpack(built["hip-probe"].archive_path, room / "product")
    return next((room / "product").iterdir())


def loader_says(tar, product):
    """Return what the loader of a root file system says of hip-probe, in a container."""
    with engine.connect() as client:
        client.api.import_image_from_file(str(tar), repository=IMAGE, tag=OLD)
        made = client.containers.create(
            f"{IMAGE}:{OLD}",
            ["ldd", "/product/bin/hip-probe"],
            volumes={str(product): {"bind": "/product", "mode": "ro"}},
            network_mode="none",
        )
        try:
            made.start()
            made.wait(timeout=120)
            return made.logs(stdout=True, stderr=True).decode()
        finally:
            made.remove(force=True)
            with contextlib.suppress(docker.errors.APIError):  # another container came to use it
                client.images.remove(f"{IMAGE}:{OLD}")


def test_an_older_debian_is_refused_with_both_versions(manifest, product, old, old_tar):
    here = host.read(old)

    with pytest.raises(FitError) as refused:
        fit.require(fit.check(manifest, here, fit.look_beyond(product, manifest)), "hip-probe")

    said = str(refused.value)
    needed = manifest.versions["GLIBC"]
    assert here.libc.version == "2.31"
    assert f"GLIBC_{needed} is needed by bin/hip-probe; here is glibc 2.31, /" in said
    assert f"GLIBCXX_{manifest.versions['GLIBCXX']} is needed by" in said
    assert "here is GLIBCXX_3.4.28, /" in said
    assert "libamdhip64.so.7 (ROCm 7 or 10) is needed by bin/hip-probe; here is none" in said
    # No more and no less than what the loader there finds wrong.
    there = loader_says(old_tar, product)
    assert f"version `GLIBC_{needed}' not found (required by /product/bin/hip-probe)" in there
    assert f"version `GLIBCXX_{manifest.versions['GLIBCXX']}' not found" in there
    missing = [line.split()[0] for line in there.splitlines() if "=> not found" in line]
    assert missing == ["libamdhip64.so.7"]


def test_its_own_runtime_fits(manifest, product, runtime):
    here = host.read(runtime)

    verdict = fit.check(manifest, here, fit.look_beyond(product, manifest))

    assert verdict.misfits == ()
    assert {one.major for one in here.rocms} == {int(manifest.rocm.partition(".")[0])}
    assert fit.fitting([("hip-probe", manifest)], here) == ("hip-probe",)


def test_what_the_loader_finds_is_what_ldconfig_lists(runtime, old):
    for root in (runtime, old):
        cached = loader.parse_cache((root / "etc/ld.so.cache").read_bytes())
        listed = subprocess.run(
            ["ldconfig", "-p", "-C", root / "etc/ld.so.cache"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

        rows = [line.split() for line in listed.splitlines() if "x86-64" in line]
        assert len(cached) > 50
        assert cached == {row[0]: row[-1] for row in reversed(rows)}
