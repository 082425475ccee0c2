"""The second before a long build: everything that is missing, at once."""

from __future__ import annotations

import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from toolchain import Compilers, ToolError, compilers, run, say, targets

_HIP = """\
#include <hip/hip_runtime.h>
#include <cmath>
__global__ void probe(float *x) { x[0] = sqrtf(x[0]); }
int main() { return static_cast<int>(std::lround(std::sqrt(0.0))); }
"""
_CXX = """\
#include <cmath>
#include <filesystem>
#include <omp.h>
#include <string>
int main() { return std::filesystem::path("a").string().size() - 1 + (omp_get_max_threads() < 1); }
"""
_PROGRAMS = {"cmake": "cmake", "ninja": "ninja-build", "ccache": "ccache"}
# CMake's package and Debian's.
_PACKAGES = {
    "hip": "libamdhip64-dev",
    "hipblas": "libhipblas-dev",
    "rocblas": "librocblas-dev",
    "hipblaslt": "libhipblaslt-dev",
}
_GCC = re.compile(r"^Selected GCC installation: (.*)/(\d+)$", re.MULTILINE)


def preflight() -> None:
    """Compile one file for every target and one for the processor, and look for the rest.

    Raises:
        ToolError: Everything that is missing, with what mends it.
    """
    missing = [
        f"{program} is not installed: package {package}"
        for program, package in _PROGRAMS.items()
        if not shutil.which(program)
    ]
    try:
        found = compilers()
    except ToolError as wrong:
        raise ToolError("\n".join([*missing, str(wrong)])) from wrong
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        place = Path(folder)
        (place / "probe.hip").write_text(_HIP)
        (place / "probe.cpp").write_text(_CXX)
        parts = [pool.submit(_hip, found, name, place) for name in targets()]
        parts += [pool.submit(_cxx, found, place), pool.submit(_packages, found, place)]
        for part in parts:
            missing += part.result()
    if missing:
        raise ToolError("\n".join(dict.fromkeys(missing)))
    say(f"preflight: {found.cxx} compiles for {', '.join(targets())} and for the processor")


def _hip(found: Compilers, target: str, place: Path) -> list[str]:
    words = ["-fuse-cuid=none", f"--offload-arch={target}", "-c", place / "probe.hip"]
    answer = run(found.cxx, "-x", "hip", *words, "-o", place / f"{target.replace(':', '_')}.o")
    if answer.returncode == 0:
        return []
    return [f"no HIP for {target}: {_first_error(answer.stdout)}", *_headers(found, answer.stdout)]


def _cxx(found: Compilers, place: Path) -> list[str]:
    answer = run(
        found.cxx, "-std=c++17", "-fopenmp", place / "probe.cpp", "-o", place / "probe-cxx"
    )
    if answer.returncode == 0:
        return []
    if "omp" in _first_error(answer.stdout):
        return [f"no OpenMP for {found.cxx}: {_first_error(answer.stdout)}: package libomp-22-dev"]
    return [f"no C++: {_first_error(answer.stdout)}", *_headers(found, answer.stdout)]


def _headers(found: Compilers, printed: str) -> list[str]:
    """Name the package where Clang took the folder of a GCC whose C++ headers are not there.

    https://github.com/ROCm/legacy-rocm-build/issues/4612
    """
    if "file not found" not in printed:
        return []
    chosen = _GCC.search(run(found.cxx, "-v", "-E", "-x", "c++", "/dev/null").stdout)
    if chosen is None or Path(f"/usr/include/c++/{chosen[2]}/cmath").exists():
        return []
    told = f"{found.cxx} takes GCC {chosen[2]} below {chosen[1]}, which has no C++ headers"
    return [f"{told}: package libstdc++-{chosen[2]}-dev"]


def _packages(found: Compilers, place: Path) -> list[str]:
    folder = place / "packages"
    folder.mkdir()
    lines = ["cmake_minimum_required(VERSION 3.21)", "project(probe CXX)"]
    for name in _PACKAGES:
        lines += [f"find_package({name} QUIET)", f'message("package {name}: ${{{name}_FOUND}}")']
    (folder / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
    answer = run(
        "cmake", "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={found.cxx}", "-S", folder, "-B", folder
    )
    said = dict(re.findall(r"^package (\S+): (\S*)$", answer.stdout, re.MULTILINE))
    if not said:
        return [f"CMake configures nothing: {_first_error(answer.stdout)}"]
    return [
        f"CMake finds no {name}: package {package}"
        for name, package in _PACKAGES.items()
        if said.get(name, "0") in {"0", "", "FALSE"}
    ]


def _first_error(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    said = (line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE))
    return next(said, lines[-1] if lines else "")
