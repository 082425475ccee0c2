"""Causes of failed builds, known by what programs print of them.

Pure: a failed step's lines in, one sentence and what to do about it out.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Cause:
    """Why a build died.

    Attributes:
        sentence: What happened.
        remedy: What to do about it.
    """

    sentence: str
    remedy: str


# Who was refused memory, or killed for want of it. Clang's driver and GCC's name the signal of the
# program below them, Ninja (1.13) and BuildKit tell 128 + SIGKILL, a shell says "Killed".
# https://github.com/llvm/llvm-project/blob/main/clang/include/clang/Basic/DiagnosticDriverKinds.td
# https://github.com/ninja-build/ninja/blob/master/src/status_printer.cc
_MEMORY = re.compile(
    r"""
      unable[ ]to[ ]execute[ ]command:[ ]Killed
    | command[ ]failed[ ]due[ ]to[ ]signal
    | \bKilled[ ]signal[ ]terminated[ ]program\b
    | \bterminated[ ]with[ ]signal[ ]9\b
    | internal[ ]compiler[ ]error:[ ]Killed
    | ^Killed$ | :\ +[0-9]+[ ]Killed\b
    | ninja:[ ]fatal:.*(Killed|Cannot[ ]allocate[ ]memory)
    | ^FAILED:[ ]\[code=137\]
    | \bexit[ ]code:?[ ](137|-9)\b
    | did[ ]not[ ]complete[ ]successfully:[ ]cannot[ ]allocate[ ]memory
    | LLVM[ ]ERROR:[ ]out[ ]of[ ]memory
    | \bvirtual[ ]memory[ ]exhausted\b
    | :[ ]out[ ]of[ ]memory[ ]allocating\b
    | \bld(\.lld)?:[ ](error:[ ])?out[ ]of[ ]memory\b
    # Not where a compiler warns about a line of source that names it.
    | (instance[ ]of[ ]'|what\(\):[ ]+|exception[ ]of[ ]type[ ])std::bad_alloc
    """,
    re.VERBOSE,
)
# What the containers' tools print before they compile: jobs: 2 (2 cores, 22.9 GiB)
_JOBS = re.compile(r"\bjobs: ([0-9]{1,4}) \(([0-9]+ cores?, ([0-9.]+ GiB))\)")
_VERB = re.compile(r"(?<![^ ])(?:build|verify)(?![^ ])")
_LARGEST = "the largest HIP objects need up to 2 GB each"

_KNOWN = {
    # Comes before "command failed due to signal", which is then no want of memory.
    re.compile(r"unable to execute command: (?!Killed)"): Cause(
        "a compiler crashed, and not for want of memory",
        "run the same command again: if it crashes at the same file, this compiler cannot build it",
    ),
    re.compile(r"no space left on device", re.IGNORECASE): Cause(
        "the disk is full: the engine's, or this one's",
        "invoke clean  shows what of ours could go; docker builder prune  empties BuildKit's cache",
    ),
    # https://github.com/ggml-org/llama.cpp/issues/14734
    re.compile(r"unknown type name 'hipblasDatatype_t'"): Cause(
        "the source is older than ROCm 7, where hipBLAS has these types no longer; "
        "the GPU target has nothing to do with it",
        "name a newer version of the source in recipe.yaml, then invoke lock",
    ),
    # https://github.com/leejet/stable-diffusion.cpp/issues/464
    # https://github.com/0xShug0/audio.cpp/pull/48
    re.compile(r"unsupported CUDA gpu architecture: gfx"): Cause(
        "a .cu file was compiled as CUDA and not as HIP",
        "in CMake, enable the language HIP and set LANGUAGE HIP for these files, or pass -x hip; "
        "newer versions of ggml do",
    ),
    # https://github.com/ROCm/legacy-rocm-build/issues/4612
    re.compile(r"'cmath' file not found"): Cause(
        "Clang took the newest GCC that it found, and that has no C++ headers",
        "add libstdc++-N-dev to the container's packages, N as in the newest /usr/lib/gcc/*/N "
        "there, then invoke lock",
    ),
    # https://github.com/abetlen/llama-cpp-python/issues/695
    # GCC writes curly quotes where the locale has them.
    re.compile(r"unrecognized command[- ]line option .--offload-arch"): Cause(
        "a compiler that is not ROCm's was given options of HIP",
        "have CMake use ROCm's compiler, "
        "-DCMAKE_CXX_COMPILER=$(hipconfig --hipclangpath)/clang++, or its language HIP",
    ),
    # https://github.com/rocm-arch/rocm-arch/issues/893: Clang says the same of both.
    re.compile(r"invalid target ID '|unsupported HIP gpu architecture", re.IGNORECASE): Cause(
        "the container's compiler is older than a GPU target, or it is no target at all",
        "invoke list --targets  says since which ROCm each is known",
    ),
    # Bazel, and OpenXLA built with it.
    # https://github.com/jax-ml/jax/issues/18976, https://github.com/elixir-nx/xla/issues/58
    re.compile(r"undeclared inclusion\(s\) in rule|absolute path inclusion\(s\) found"): Cause(
        "the compiler found headers where Bazel was not told that they are: a link stands on the "
        "way to them",
        "set ROCM_PATH and HIP_CLANG_PATH to real folders, as `readlink -f` prints them; "
        "docs/openxla.md has more",
    ),
    # https://github.com/elixir-nx/xla/issues/81
    re.compile(
        r"ROCm Configuration Error|Cannot find rocm library|MIOpen version file .* not found"
        r"|ROCm version file not found"
    ): Cause(
        "this ROCm lacks a part that OpenXLA wants, and Bazel tells of one at a time",
        "read the lines of the preflight above: they name all that is missing",
    ),
    re.compile(r"unable to find library -lnuma|cannot find -lnuma"): Cause(
        "libnuma's linker name is missing: only its runtime is there",
        "add libnuma-dev to the container's packages, then invoke lock",
    ),
    # https://github.com/elixir-nx/xla/issues/82
    re.compile(r"unrecognized command[- ]line option .-Qunused-arguments"): Cause(
        "GCC was given options of Clang: this XLA wants Clang 18 as its host compiler",
        "have Bazel use Clang, --repo_env=CC=clang --repo_env=CXX=clang++",
    ),
    # https://github.com/elixir-nx/xla/issues/58
    re.compile(r"Config value '[^']+' is not defined in any \.rc file"): Cause(
        "the source and the command line are not of one age: its .bazelrc lacks that configuration",
        "name the revision that the recipe's flags are for in recipe.yaml, then invoke lock",
    ),
    # https://github.com/bazelbuild/bazel/issues/418
    re.compile(r'linux-sandbox.*"?mount"?: (Operation not permitted|Permission denied)'): Cause(
        "Bazel's sandbox wants to mount, which a container may not do, and need not",
        "have Bazel do without, --spawn_strategy=local; --privileged is not the way",
    ),
    # https://github.com/bazelbuild/bazel/issues/17363
    re.compile(r"Checksum was [0-9a-f]{64} but wanted [0-9a-f]{64}"): Cause(
        "a server gives other bytes than the source names; archives that a server makes on "
        "demand may change, their content may not",
        "find the old bytes: a mirror, or another machine's cache, in ROCBAKE_MIRRORS; "
        "never the new sum unseen",
    ),
    # https://github.com/bazelbuild/bazel/blob/7.7.1/src/main/java/com/google/devtools/build/lib/bazel/repository/downloader/DownloadManager.java
    re.compile(r"Failed to download repository .*: download is disabled"): Cause(
        "Bazel wants a file that its locked downloads do not hold",
        "invoke lock --name NAME --target TARGET  records them again",
    ),
    re.compile(r"Failed to query remote execution capabilities|UNAVAILABLE: io exception"): Cause(
        "Bazel's remote cache or execution service does not answer",
        "look at its address, or leave out --bazel-remote-executor and --bazel-remote-cache",
    ),
    # https://github.com/bazelbuild/bazel/issues/3645: what the kernel kills first is the server.
    re.compile(r"Server terminated abruptly \(error code: 14"): Cause(
        "Bazel's server died, most likely for want of memory",
        "fewer jobs: --jobs, half of what the line `jobs:` says",
    ),
    # https://github.com/ROCm/legacy-rocm-build/issues/4612 is the same with no headers at all.
    re.compile(r"/include/c\+\+/1[6-9]/.*: error: "): Cause(
        "Clang took a GCC whose C++ headers are newer than it can read",
        "--gcc-install-dir=/usr/lib/gcc/x86_64-linux-gnu/15  to compilers and linkers, "
        "as the container's tools do",
    ),
}


def find(lines: Iterable[str]) -> Cause | None:
    """Return the cause that is named first in what a failed step printed, if it is a known one.

    What follows it may be its consequence: a full disk, for one, gives errors of many kinds.
    """
    jobs = None
    for line in lines:
        jobs = _JOBS.search(line) or jobs
        if _MEMORY.search(line):
            return _want_of_memory(jobs)
        for pattern, cause in _KNOWN.items():
            if pattern.search(line):
                return cause
    return None


def _want_of_memory(jobs: re.Match[str] | None) -> Cause:
    if jobs is None:
        return Cause("memory ran out", _again(1))
    count, machine, memory = int(jobs[1]), jobs[2], jobs[3]
    if count > 1:
        return Cause(f"memory ran out while {count} jobs ran ({machine})", _again(count // 2))
    return Cause(
        f"memory ran out, with one job ({machine}); {_LARGEST}",
        f"give the container engine more memory than these {memory}, or the machine swap",
    )


def _again(jobs: int) -> str:
    """Return the command as it was typed, with this many jobs; the option alone if none was."""
    option = f"--jobs {jobs}"
    typed = shlex.join(sys.argv[1:])
    verbs = _VERB.findall(typed)
    if len(verbs) != 1:
        return f"add {option}"
    without = re.sub(r" --jobs(=| +)[^ ]+", "", typed)
    return f"invoke {_VERB.sub(f'{verbs[0]} {option}', without)}"
