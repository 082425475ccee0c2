"""The seconds before hours: all that OpenXLA would miss, at once, and what mends each of it.

OpenXLA's own rule for ROCm stops at the first thing that it does not find.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gcc
import jobs
from line import OUTPUT_ROOT
from toolchain import ToolError, run

if TYPE_CHECKING:
    from collections.abc import Iterator

# What third_party/gpus/rocm_configure.bzl asks for at the pinned revision: libraries, a header of
# each, and AMD's package with both.
_LIBRARIES = {
    "amdhip64": ("hip/hip_version.h", "hip-dev"),
    "rocblas": ("rocblas/rocblas.h", "rocblas-dev"),
    "hiprand": ("hiprand/hiprand.h", "hiprand-dev"),
    "MIOpen": ("miopen/version.h", "miopen-hip-dev"),
    "rccl": ("rccl/rccl.h", "rccl-dev"),
    "hipsparse": ("hipsparse/hipsparse.h", "hipsparse-dev"),
    "roctracer64": ("roctracer/roctracer.h", "roctracer-dev"),
    "rocsolver": ("rocsolver/rocsolver.h", "rocsolver-dev"),
    "hipsolver": ("hipsolver/hipsolver.h", "hipsolver-dev"),
    "hipfft": ("hipfft/hipfft.h", "hipfft-dev"),
    "rocrand": ("rocrand/rocrand.h", "rocrand-dev"),
    "hipblas": ("hipblas/hipblas.h", "hipblas-dev"),
    "hipblaslt": ("hipblaslt/hipblaslt.h", "hipblaslt-dev"),
    "rocprofiler-sdk": ("rocprofiler-sdk/rocprofiler.h", "rocprofiler-sdk"),
}
_VERSION = ("rocm-core/rocm_version.h", "rocm_version.h")
_BITCODE = ("amdgcn/bitcode", "lib/llvm/amdgcn/bitcode", "lib/llvm/lib/clang/*/amdgcn/bitcode")
_CLANG = Path("/usr/lib/llvm-18/bin/clang")
_WANTED_CLANG = 18
# OpenXLA's .bazelversion at the pinned revision says 7.7.0; Debian's is 7.7.1.
_WANTED_BAZEL = "7.7"
_LINK_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu")
_PROGRAMS = ("git", "make", "patch", "xxd")
# An estimate: the tree, what is compiled, and the archive of one build for one target.
_ROOM_BYTES = 25 * 1000**3


@dataclass(frozen=True)
class Finding:
    """Something that would stop the build.

    Attributes:
        what: What is wrong, with the place.
        remedy: The package or the setting that mends it.
    """

    what: str
    remedy: str


def preflight(workspace: Path, words: list[str]) -> None:
    """Look for everything that the build needs.

    Args:
        workspace: The workspace.
        words: What Bazel is going to be told.

    Raises:
        ToolError: All that is missing.
    """
    found = [
        *rocm(Path(os.environ.get("ROCM_PATH", "/opt/rocm"))),
        *host(),
        *told(workspace, words),
    ]
    if found:
        lines = [f"{one.what}\n    → {one.remedy}" for one in found]
        things = "1 thing is" if len(found) == 1 else f"{len(found)} things are"
        raise ToolError(f"{things} missing for this build\n" + "\n".join(lines))


def rocm(root: Path) -> Iterator[Finding]:
    """Look at a ROCm: whole, at a path without links, with a compiler of its own."""
    real = Path(os.path.realpath(root))
    if real != root:
        yield Finding(
            f"ROCM_PATH {root} leads over a link to {real}: Bazel compares real paths",
            f"ROCM_PATH={real}",
        )
    if not real.is_dir():
        yield Finding(f"{root}: there is no ROCm", "recipes that need AMD's run on rocm-amd")
        return
    for name, (header, package) in _LIBRARIES.items():
        library = real / "lib" / f"lib{name}.so"
        if not library.exists():
            runtime = sorted(library.parent.glob(f"lib{name}.so.*"))
            beside = f"; {runtime[0].name} is there, which no linker takes" if runtime else ""
            yield Finding(f"{library} is missing{beside}", f"AMD's package {package}")
        if not (real / "include" / header).is_file():
            yield Finding(f"{real}/include/{header} is missing", f"AMD's package {package}")
    if not any((real / "include" / name).is_file() for name in _VERSION):
        yield Finding(f"{real}/include/{_VERSION[0]} is missing", "AMD's package rocm-core")
    if not any(next(real.glob(place), None) for place in _BITCODE):
        yield Finding(f"{real} has no amdgcn/bitcode", "AMD's package rocm-device-libs")
    yield from _device_compiler(Path(os.environ.get("HIP_CLANG_PATH", real / "lib/llvm/bin")), real)


def _device_compiler(folder: Path, root: Path) -> Iterator[Finding]:
    """Look at the compiler of device code, which is ROCm's own and no other."""
    clang = folder / "clang"
    if not os.access(clang, os.X_OK):
        others = [one.parent for one in sorted(root.glob("**/llvm/bin/clang"))]
        place = next((one for one in others if os.access(one / "clang", os.X_OK)), None)
        yield Finding(
            f"HIP_CLANG_PATH {folder} has no clang",
            f"HIP_CLANG_PATH={place}" if place else "AMD's package rocm-llvm",
        )
        return
    if not Path(os.path.realpath(clang)).is_relative_to(root):
        yield Finding(
            f"HIP_CLANG_PATH {folder} is not of the ROCm in {root}: the host's compiler makes no "
            "device code that fits it",
            f"HIP_CLANG_PATH={root}/lib/llvm/bin",
        )
        return
    answer = run(clang, "--version")
    if answer.returncode != 0:
        yield Finding(f"{clang} does not run: {answer.stdout.strip()}", "AMD's package rocm-llvm")


def host(root: Path = Path("/")) -> Iterator[Finding]:
    """Look at the host's side: Clang 18, its linker, GCC's library, NumPy, libnuma, room."""
    yield from _host_compiler(root / _CLANG.relative_to("/"))
    if run("python3", "-c", "import numpy").returncode != 0:
        yield Finding("python3 has no NumPy", "package python3-numpy")
    if not any((root / folder / "libnuma.so").exists() for folder in _LINK_FOLDERS):
        yield Finding("libnuma.so, the name that linkers take, is missing", "package libnuma-dev")
    for program in _PROGRAMS:
        if not shutil.which(program):
            yield Finding(f"{program} is not on PATH", f"package {program}")
    yield from _bazel()
    yield from _room(root)


def _bazel() -> Iterator[Finding]:
    answer = run("bazel", "--version")
    remedy = "openxla-bazel or openxla-debian as the SDK"
    version = re.search(r"^bazel (\S+)", answer.stdout, re.MULTILINE)
    if answer.returncode != 0 or version is None:
        yield Finding("bazel does not answer", remedy)
    elif not version[1].startswith(f"{_WANTED_BAZEL}."):
        yield Finding(f"bazel on PATH: expected {_WANTED_BAZEL}, got {version[1]}", remedy)


def _host_compiler(clang: Path) -> Iterator[Finding]:
    said = run(clang, "--version").stdout
    version = re.search(r"^.*\bclang version (\d+)\.", said, re.MULTILINE)
    is_wanted = version is not None and int(version[1]) == _WANTED_CLANG
    if not is_wanted:
        got = version[1] if version else "none that answers"
        yield Finding(
            f"{clang}: expected Clang {_WANTED_CLANG}, got {got}", f"package clang-{_WANTED_CLANG}"
        )
    # What does not answer cannot say where they are, but they may be missing as well.
    linker = str(clang.with_name("ld.lld"))
    if is_wanted:
        linker = run(clang, "-fuse-ld=lld", "-print-prog-name=ld.lld").stdout.strip()
    # Clang prints the bare name of what it does not find.
    if not (Path(linker).is_absolute() and os.access(linker, os.X_OK)):
        yield Finding("Clang finds no ld.lld", f"package lld-{_WANTED_CLANG}")
    try:
        if is_wanted:
            gcc.choose(clang.with_name("clang++"))
        else:
            gcc.folder()
    except ToolError as wrong:
        yield Finding(str(wrong).replace("\n", "\n  "), f"package g++-{gcc.WANTED}")


def _room(root: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(root).free
    if free < _ROOM_BYTES:
        yield Finding(
            f"{free / 1e9:.0f} GB are free here, and a build takes up to {_ROOM_BYTES / 1e9:.0f}",
            "docker builder prune, or another disk for the engine",
        )
    room = jobs.room()
    if 0 < room < jobs.asked():
        yield Finding(
            f"{jobs.asked()} jobs are asked for, and there is memory for {room}: each takes up to "
            f"{jobs.BYTES_PER_JOB / 1e9:.0f} GB",
            f"--jobs {room}, or leave it out",
        )
    if not room:
        yield Finding(
            f"there is memory for no job: {jobs.BYTES_PER_JOB / 1e9:.0f} GB are wanted beside "
            "Bazel's server",
            "give the container engine more memory, or the machine swap",
        )


def told(workspace: Path, words: list[str]) -> Iterator[Finding]:
    """Look at the workspace: every configuration that is named is defined, nothing is left over."""
    texts = list(_settings(workspace))
    for word in words:
        name = word.removeprefix("--config=")
        defined = re.compile(rf"^\s*[a-z-]+:{re.escape(name)}\s", re.MULTILINE)
        if name != word and not any(defined.search(text) for text in texts):
            yield Finding(
                f"--config={name} is defined in no .bazelrc of {workspace}",
                "a revision of the source that this command line is for, in recipe.yaml",
            )
    left_over = (
        *workspace.glob("bazel-*/external/local_config_rocm"),
        *OUTPUT_ROOT.glob("*/external/local_config_rocm"),
    )
    for left in sorted(left_over):
        yield Finding(f"{left} is left from another configuration", "bazel clean --expunge")


def _settings(workspace: Path) -> Iterator[str]:
    """Yield what the workspace's .bazelrc files say: those at its top, and what they import."""
    queue = sorted(workspace.glob("*.bazelrc"))
    known = set(queue)
    for path in queue:
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue  # Bazel says so itself, where it is not optional
        yield text
        for name in re.findall(r"^\s*(?:try-)?import\s+(\S+)", text, re.MULTILINE):
            found = Path(name.replace("%workspace%", str(workspace)))
            if found not in known:
                known.add(found)
                queue.append(found)
