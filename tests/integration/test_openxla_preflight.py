"""The preflight on a ROCm of real parts: Debian's development packages, and stand-ins for the rest.

Debian packs neither roctracer nor rocprofiler-sdk nor MIOpen's neighbours as AMD does, so what it
has not is an empty file of the right name. What is real is what the preflight reads: the headers,
the bitcode, the names that linkers take.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rocbake import fetch, lock, mirror, project
from rocbake.cache import Cache

ROOT = project.ROOT
TOOLS = ROOT / "containers" / "openxla-host" / "tools"
# Small ones of the locked packages: headers, linkers' names, device code.
PACKAGES = {
    "libamdhip64-dev",
    "libhipblas-dev",
    "libhipblaslt-dev",
    "librocblas-dev",
    "rocm-device-libs-22",
}


@pytest.fixture(scope="module")
def preflight():
    """The tool, loaded apart: other containers have modules of the same names."""
    names = [path.stem for path in TOOLS.glob("*.py")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOOLS)
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        loaded = importlib.import_module("preflight")
        for name in names:
            sys.modules.pop(name, None)
    return loaded


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    """The packages' files, as they lie on a Debian."""
    containers = project.load().containers
    locks = [lock.read_container(one) for one in containers["ggml"].chain]
    debs = [deb for one in locks for deb in one.packages if deb.name in PACKAGES]
    snapshot = max(one.snapshot for one in locks)
    files = fetch.fetch(debs, cache=Cache(), mirrors=mirror.load(), snapshot=snapshot)
    root = tmp_path_factory.mktemp("debian")
    for path in files.values():
        subprocess.run(["dpkg-deb", "--extract", path, root], check=True)
    return root


@pytest.fixture
def rocm(preflight, debian, tmp_path, monkeypatch):
    """A whole ROCm in AMD's layout; `real` is what of it is Debian's."""
    monkeypatch.delenv("HIP_CLANG_PATH", raising=False)
    root = Path(os.path.realpath(tmp_path)) / "rocm"
    shutil.copytree(debian / "usr/include", root / "include")
    bitcode = next(debian.rglob("ocml.bc")).parent
    shutil.copytree(bitcode, root / "amdgcn/bitcode")
    libraries = debian / "usr/lib/x86_64-linux-gnu"
    (root / "lib").mkdir()
    real = set()
    for name, (header, _) in preflight._LIBRARIES.items():
        if (libraries / f"lib{name}.so").is_symlink():
            real.add(name)
        (root / "lib" / f"lib{name}.so").touch()
        place = root / "include" / header
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    (root / "include/rocm-core").mkdir(exist_ok=True)
    (root / "include/rocm-core/rocm_version.h").touch()
    clang = root / "lib/llvm/bin/clang"
    clang.parent.mkdir(parents=True)
    clang.write_text("#!/bin/sh\necho AMD clang version 22.0.0\n")
    clang.chmod(0o755)
    assert real == {"amdhip64", "rocblas", "hipblas", "hipblaslt"}
    return root


def told(preflight, root):
    return [one.what for one in preflight.rocm(root)]


def test_a_whole_one_has_no_finding(preflight, rocm):
    assert told(preflight, rocm) == []


def test_headers_are_where_debian_has_them(preflight, debian):
    """What is asked for is what real packages hold."""
    for name in ("amdhip64", "rocblas", "hipblas", "hipblaslt"):
        header, _ = preflight._LIBRARIES[name]
        assert (debian / "usr/include" / header).stat().st_size > 100


def test_each_part_is_missed_alone_and_all_in_one_run(preflight, rocm):
    parts = [
        *(f"lib/lib{name}.so" for name in preflight._LIBRARIES),
        *(f"include/{header}" for header, _ in preflight._LIBRARIES.values()),
        "include/rocm-core/rocm_version.h",
        "amdgcn/bitcode",
        "lib/llvm/bin/clang",
    ]
    for part in parts:
        place, aside = rocm / part, rocm.parent / "aside"
        place.rename(aside)
        (what,) = told(preflight, rocm)
        assert Path(part).name in what
        aside.rename(place)

    for part in parts:
        place = rocm / part
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    assert len(told(preflight, rocm)) == len(parts)
