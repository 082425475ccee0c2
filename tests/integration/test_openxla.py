"""OpenXLA's recipe, from clone to archive, with a stand-in for Bazel: all but the compiling.

ROCm, the Elixir package and OpenXLA's tree are stand-ins of the same form, in a few files. What
takes the place of the library is hip-probe's program, which has device code and needs HIP.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocbake import unpack
from tests.integration.conftest import ROOT, Checkout, make_checkout

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

DATA = ROOT / "tests" / "data" / "openxla"
TARGET = ("--recipe", "openxla", "--target", "gfx1201")
CONTAINERS = ("openxla-host", "openxla-debian", "rocm-amd")
NAME = "xla_extension-0.10.0-x86_64-linux-gnu-rocm.tar.gz"
LIBRARIES = [
    *("amdhip64", "rocblas", "hiprand", "MIOpen", "rccl", "hipsparse", "roctracer64"),
    *("rocsolver", "hipsolver", "hipfft", "rocrand", "hipblas", "hipblaslt", "rocprofiler-sdk"),
]
HEADERS = [
    *(f"{name}/{name}.h" for name in ("rocblas", "hiprand", "rccl", "hipsparse", "roctracer")),
    *(f"{name}/{name}.h" for name in ("rocsolver", "hipsolver", "hipfft", "rocrand", "hipblas")),
    *("hip/hip_version.h", "miopen/version.h", "hipblaslt/hipblaslt.h"),
    *("rocprofiler-sdk/rocprofiler.h", "rocm-core/rocm_version.h"),
]
MAKEFILE = """\
BUILD_MODE ?= opt
OPENXLA_GIT_REV ?= {revision}
BAZEL_FLAGS = --define "framework_shared_object=false" -c $(BUILD_MODE)
OPENXLA_DIR = $(BUILD_CACHE_DIR)/xla-$(OPENXLA_GIT_REV)

$(BUILD_ARCHIVE): $(OPENXLA_DIR) extension/BUILD
\trm -f $(OPENXLA_DIR)/xla/extension && ln -s "$(ROOT_DIR)/extension" $(OPENXLA_DIR)/xla/ && \\
\t\tcd $(OPENXLA_DIR) && \\
\t\tbazel build $(BAZEL_FLAGS) $(BUILD_FLAGS) $(BUILD_INTERNAL_FLAGS) \\
\t\t\t//xla/extension:xla_extension && \\
\t\tmkdir -p $(dir $(BUILD_ARCHIVE)) && \\
\t\tcp -f bazel-bin/xla/extension/xla_extension.tar.gz $(BUILD_ARCHIVE)

$(OPENXLA_DIR):
\tgit init && git fetch --depth 1 origin $(OPENXLA_GIT_REV)
"""


@dataclass
class OpenXla(Checkout):
    """A checkout with the recipe `openxla`."""

    @property
    def recipe(self) -> Path:
        return self.root / "recipes" / "openxla"

    def build(self, *words: str, **more: str) -> dict:
        done = self.invoke("build", *TARGET, "--json", *words, **more)
        return next(one for one in json.loads(done.stdout) if one["name"] == "openxla")


def commit(folder: Path, files: dict[str, str | bytes]) -> str:
    """Make a repository of some files, and return its one commit."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    said = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    )
    return said.stdout.strip()


def therock(path: Path, *, without: str = "") -> None:
    """Pack a stand-in for AMD's ROCm."""
    with tarfile.open(path, "w:gz") as tar:

        def add(name: str, content: bytes = b"", mode: int = 0o644) -> None:
            if name != without:
                member = tarfile.TarInfo(f"./{name}")
                member.size, member.mode = len(content), mode
                tar.addfile(member, io.BytesIO(content))

        for name in LIBRARIES:
            add(f"lib/lib{name}.so")
        for name in HEADERS:
            add(f"include/{name}")
        add("amdgcn/bitcode/ocml.bc")
        add("bin/rocminfo", b"#!/bin/sh\n", 0o755)
        add("lib/llvm/bin/clang", b"#!/bin/sh\necho AMD clang version 22.0.0\n", 0o755)


@pytest.fixture(scope="module")
def library(built, tmp_path_factory):
    """A real ELF file with device code for gfx1201 that needs HIP's library."""
    folder = tmp_path_factory.mktemp("hip-probe") / "unpacked"
    unpack.unpack(built["hip-probe"].archive_path, folder)
    (program,) = folder.glob("*/bin/hip-probe")
    return program.read_bytes()


@pytest.fixture(scope="module")
def openxla(tmp_path_factory, base, library):
    place = tmp_path_factory.mktemp("openxla")
    made = make_checkout(place / "checkout")
    shutil.rmtree(made.recipe)
    unwanted = shutil.ignore_patterns("__pycache__", "lock.json")
    for name in CONTAINERS:
        shutil.copytree(
            ROOT / "containers" / name,
            made.root / "containers" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    shutil.copy(ROOT / "recipes" / "bazel.Dockerfile", made.root / "recipes")
    shutil.copytree(ROOT / "recipes" / "openxla", made.root / "recipes/openxla", ignore=unwanted)
    shutil.copytree(base, made.root / "artifacts" / "base", copy_function=os.link)
    for name in ("tree", "package"):
        (place / name / "xla").mkdir(parents=True)
    revision = commit(
        place / "tree/xla",
        {
            "tensorflow.bazelrc": "build:rocm --action_env=TF_NEED_ROCM=1\n",
            ".bazelversion": "9.0.0\n",
            "xla/BUILD": "",
            "version.txt": "before\n",
            "fake/xla_extension/lib/libxla_extension.so": library,
            "fake/xla_extension/include/xla/literal.h": "#pragma once\n",
        },
    )
    package = commit(
        place / "package/xla",
        {
            "mix.exs": '  @version "0.10.0"\n',
            "Makefile": MAKEFILE.format(revision=revision),
            "extension/BUILD": "",
            "extension/patches/apply.sh": "sed -i s/before/after/ version.txt\n",
        },
    )
    therock(place / "therock.tar.gz")
    replace(
        made.root / "recipes/openxla/recipe.yaml",
        (r"https://github.com/elixir-nx/xla.git", f"file://{place}/package/xla"),
        (r"https://github.com/openxla/xla.git", f"file://{place}/tree/xla"),
        (r"90e1eedd[0-9a-f]*", package),
        (r"bb760b04[0-9a-f]*", revision),
        # Only Debian's Bazel can be had anywhere; another takes its place below.
        (r"sdk: openxla-bazel\nsdk_where:\n.*\n", "sdk: openxla-debian\n"),
        (r"options:\n  bazel:\n(    .*\n)*", ""),
    )
    replace(
        made.root / "containers/rocm-amd/container.yaml",
        (
            r"(?s)sources:.*",
            f"sources:\n  - targets: gfx120X-all\n    url: file://{place}/therock.tar.gz\n",
        ),
    )
    # A whole build's room, which these tests do without.
    tools = made.root / "containers/openxla-host/tools"
    replace(tools / "preflight.py", (r"_ROOM_BYTES = 25 \* 1000\*\*3", "_ROOM_BYTES = 1000**3"))
    add_stand_in(made.root)
    return OpenXla(made.root)


def add_stand_in(root: Path) -> None:
    """Have the recipe call a stand-in for Bazel, which its script finds first."""
    script = root / "recipes/openxla/build.sh"
    shutil.copy(DATA / "bazel", root / "recipes/openxla/bazel")
    text = script.read_text()
    script.write_text(text.replace("export PATH=", "export PATH=/rocbake/recipe:", 1))


def replace(path: Path, *pairs: tuple[str, str]) -> None:
    text = path.read_text()
    for pattern, new in pairs:
        text, count = re.subn(pattern, lambda _, new=new: new, text)
        assert count, pattern
    path.write_text(text)


@pytest.fixture(scope="module")
def locked(openxla):
    openxla.invoke("lock", "--name", "rocm-amd", "--name", "openxla", "--target", "gfx1201")
    return json.loads((openxla.recipe / "lock.json").read_text())


@pytest.fixture(scope="module")
def first(openxla, locked):
    return openxla.build()


def test_what_nobody_recorded_stops_the_build(here):
    done = here.invoke("build", *TARGET, code=3)

    assert "what Bazel downloads" in done.stderr
    assert (
        "→ invoke lock --name rocm-amd --name openxla-bazel --name openxla --target gfx1201"
        in done.stderr
    )


def test_every_source_is_recorded(locked):
    assert [one["kind"] for one in locked["sources"]] == ["git", "git", "deps"]


def test_bazel_is_told_upstreams_words_and_ours(first):
    log = (Path(first["folder"]) / "build.log").read_text()

    assert "targets: Bazel is configured for gfx1201" in log
    assert f"make: {NAME}" in log


def test_the_archive_is_what_exla_takes(first):
    path = Path(first["folder"]) / first["archive"]["file_name"]

    with tarfile.open(path, "r:gz") as tar:
        members = {one.name: one for one in tar}

    assert path.name == NAME
    assert {one.split("/")[0] for one in members} == {"xla_extension"}
    assert members["xla_extension/lib/libxla_extension.so"].mode == 0o644
    assert "xla_extension/include/xla/literal.h" in members
    # One date for everything, and nobody's.
    assert {(one.mtime, one.uid, one.uname) for one in members.values()} == {
        (members["xla_extension"].mtime, 0, "")
    }


def test_the_manifest_says_what_it_needs(first):
    told = json.loads((Path(first["folder"]) / "manifest.json").read_text())

    assert (told["rocm"], told["targets"]) == ("7.12.0", ["gfx1201"])
    assert "libamdhip64.so.7" in told["needed"]
    assert told["versions"]["GLIBC"]


def test_again_it_is_reused_and_built_again_it_is_equal(openxla, first):
    again = openxla.build()
    anew = openxla.build("--force", "--jobs", "1")

    assert (again["state"], anew["state"]) == ("reused", "built")
    for one in (again, anew):
        assert one["archive"]["tar_sha256"] == first["archive"]["tar_sha256"]
        assert one["image"]["config"] == first["image"]["config"]


def test_export_says_how_it_is_used(openxla, first, tmp_path):
    variables = tmp_path / "github-env"

    done = openxla.invoke(
        *("export", *TARGET, "--into", str(tmp_path / "out"), "--github-env"),
        GITHUB_ENV=str(variables),
    )

    (folder,) = (tmp_path / "out").iterdir()
    path = folder / NAME
    assert folder.name.endswith(first["archive"]["tar_sha256"][:12])
    assert done.stdout.splitlines()[-3:] == [
        "export XLA_TARGET=rocm",
        f"export XLA_ARCHIVE_PATH={path}",
        "unset XLA_BUILD",
    ]
    assert variables.read_text().splitlines() == [
        "XLA_TARGET=rocm",
        f"XLA_ARCHIVE_PATH={path}",
        "XLA_BUILD=",
    ]


def test_other_bytes_from_bazel_are_refused(openxla, first):
    (cached,) = [one for one in json.loads((openxla.recipe / "lock.json").read_text())["sources"]
                 if one["kind"] == "deps"]  # fmt: skip
    lock = openxla.recipe / "lock.json"
    text = lock.read_text()
    lock.write_text(text.replace(cached["sha256"], "0" * 64))
    try:
        done = openxla.invoke("build", *TARGET, code=4)
    finally:
        lock.write_text(text)

    assert "what Bazel downloads is not what the lock says" in done.stderr
    assert f"got      sha256 {cached['sha256']}" in done.stderr
