import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import diagnosis

TWO_JOBS = "jobs: 2 (2 cores, 22.9 GiB)"


@pytest.fixture
def typed(monkeypatch):
    """Let a command line be what was typed."""

    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["/here/.venv/bin/invoke", *words])

    typed()
    return typed


# The first two and FAILED are what Clang 22.1.8 and Ninja 1.13.2 print in a container with too
# little memory, ccache or not.
@pytest.mark.parametrize(
    "line",
    [
        "clang++: error: unable to execute command: Killed",
        "clang++: error: clang frontend command failed due to signal (use -v to see invocation)",
        "FAILED: [code=137] ggml/src/ggml-hip/CMakeFiles/ggml-hip.dir/__/ggml-cuda/mmq.cu.o",
        "clang: error: linker command failed due to signal (use -v to see invocation)",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "g++: internal compiler error: Killed (program cc1plus)",
        "collect2: fatal error: ld terminated with signal 9 [Killed]",
        "Killed",
        "/rocbake/recipe/build.sh: line 12:   345 Killed                  ninja",
        "ninja: fatal: posix_spawn: Cannot allocate memory",
        "ninja: fatal: Killed",
        "error: ninja ended with exit code -9",
        (
            'ERROR: process "/bin/sh -c /rocbake/recipe/build.sh" did not complete successfully: '
            "exit code: 137"
        ),
        'ERROR: process "/bin/sh -c make" did not complete successfully: cannot allocate memory',
        "LLVM ERROR: out of memory",
        "virtual memory exhausted: Cannot allocate memory",
        "cc1plus: out of memory allocating 65536 bytes after a total of 1048576 bytes",
        "ld.lld: error: out of memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "  what():  std::bad_alloc",
    ],
)
def test_want_of_memory_is_recognised(typed, line):
    cause = diagnosis.find([TWO_JOBS, "[1/2] Building CXX object x.o", line])

    assert cause.sentence == "memory ran out while 2 jobs ran (2 cores, 22.9 GiB)"
    assert cause.remedy == "add --jobs 1"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-- Performing Test HAS_KILLED_FLAG - Failed",
        "Killed processes are shown in red",
        "src/x.cpp:12:5: warning: 'std::bad_alloc' is caught by value",
        "FAILED: [code=1] x.o",
        "FAILED: [code=1370] x.o",
        "error: ninja ended with exit code 1",
        "did not complete successfully: exit code: 1",
        "did not complete successfully: exit code: 1370",
        "test 137 of 200 passed",
        "src/x.c:1:10: fatal error: 'cmath.h' file not found",
        "src/x.c:1:10: error: unknown type name 'hipblasDiagType_t'",
        "ninja: error: '/x.c', needed by 'x.o', missing and no known rule to make it",
        "clang++: warning: argument unused during compilation: '--offload-arch=gfx1201'",
    ],
)
def test_other_lines_have_no_known_cause(typed, line):
    assert diagnosis.find([TWO_JOBS, line]) is None


@pytest.mark.parametrize(("ran", "tried"), [(1024, 512), (16, 8), (3, 1), (2, 1)])
def test_half_the_jobs_are_to_be_tried(typed, ran, tried):
    cause = diagnosis.find([f"jobs: {ran} (16 cores, 15.5 GiB)", "Killed"])

    assert f"{ran} jobs ran (16 cores, 15.5 GiB)" in cause.sentence
    assert cause.remedy == f"add --jobs {tried}"


def test_one_job_that_is_too_much_needs_more_memory(typed):
    cause = diagnosis.find(["jobs: 1 (1 core, 1.5 GiB)", "Killed"])

    assert cause.sentence == (
        "memory ran out, with one job (1 core, 1.5 GiB); "
        "the largest HIP objects need up to 2 GB each"
    )
    assert "more memory than these 1.5 GiB" in cause.remedy
    assert "--jobs" not in cause.remedy


def test_unknown_number_of_jobs_is_not_guessed(typed):
    cause = diagnosis.find(["Killed"])

    assert (cause.sentence, cause.remedy) == ("memory ran out", "add --jobs 1")


def test_jobs_of_the_run_that_died_count(typed):
    cause = diagnosis.find(["jobs: 8 (8 cores, 9.0 GiB)", TWO_JOBS, "Killed", "jobs: 4 (4 cores"])

    assert "2 jobs ran" in cause.sentence


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["build", "--target", "gfx1201"], "invoke build --jobs 1 --target gfx1201"),
        (["verify", "--target=gfx1201"], "invoke verify --jobs 1 --target=gfx1201"),
        (["build", "--jobs", "2", "--target", "x"], "invoke build --jobs 1 --target x"),
        (["build", "--jobs=2", "--force"], "invoke build --jobs 1 --force"),
        (["build", "--target", "gfx1201", "--jobs", "2"], "invoke build --jobs 1 --target gfx1201"),
        (["--echo", "build"], "invoke --echo build --jobs 1"),
        (["build", "--set", "a b"], "invoke build --jobs 1 --set 'a b'"),
        (["build", "--recipe", "build-tools"], "invoke build --jobs 1 --recipe build-tools"),
        (["build", "--set", r"a=\1"], r"invoke build --jobs 1 --set 'a=\1'"),
        # Which of them died is not known.
        (["build", "--target", "x", "verify", "--target", "x"], "add --jobs 1"),
        (["-c", "other"], "add --jobs 1"),
        ([], "add --jobs 1"),
    ],
)
def test_the_command_to_try_is_the_one_that_was_typed(typed, words, expected):
    typed(*words)

    assert diagnosis.find([TWO_JOBS, "Killed"]).remedy == expected


@pytest.mark.parametrize(
    ("line", "sentence", "remedy"),
    [
        (
            (
                "x.cu:3:1: error: unknown type name 'hipblasDatatype_t'; did you mean "
                "'hipblasDiagType_t'?"
            ),
            "the source is older than ROCm 7",
            "newer version of the source",
        ),
        (
            "clang++: error: unsupported CUDA gpu architecture: gfx1100",
            "compiled as CUDA",
            "LANGUAGE HIP",
        ),
        (
            (
                "/usr/lib/llvm-22/lib/clang/22/include/__clang_hip_runtime_wrapper.h:50:10: "
                "fatal error: 'cmath' file not found"
            ),
            "no C++ headers",
            "libstdc++-N-dev",
        ),
        (
            "c++: error: unrecognized command-line option '--offload-arch=gfx900'",
            "not ROCm's",
            "-DCMAKE_CXX_COMPILER=",
        ),
        (
            "c++: error: unrecognized command-line option \u2018--offload-arch=gfx900\u2019",
            "not ROCm's",
            "-DCMAKE_CXX_COMPILER=",
        ),
        (
            "clang-14: error: invalid target ID 'gfx1100'; format is a processor name followed by",
            "older than a GPU target",
            "invoke list --targets",
        ),
        (
            "clang++: error: unsupported HIP gpu architecture: gfx12O1",
            "no target at all",
            "invoke list --targets",
        ),
        (
            "clang++: error: Unsupported HIP gpu architecture",
            "no target at all",
            "invoke list --targets",
        ),
        ("error: x.o: No space left on device", "disk is full", "docker builder prune"),
        ("ERROR: failed to copy: no space left on device", "disk is full", "invoke clean"),
        (
            "clang++: error: unable to execute command: Segmentation fault (core dumped)",
            "crashed",
            "same command again",
        ),
        (
            (
                "ERROR: undeclared inclusion(s) in rule '//xla:x': this rule is missing dependency "
                "declarations for the following files included by 'x.cc':"
            ),
            "a link stands on the way",
            "readlink -f",
        ),
        ("absolute path inclusion(s) found in rule '@llvm//:x':", "a link stands", "ROCM_PATH"),
        ("ROCm Configuration Error: Cannot find rocm library MIOpen", "lacks a part", "preflight"),
        ('ERROR: MIOpen version file "None" not found', "lacks a part", "preflight"),
        (
            "ROCm version file not found in ['include/rocm-core/rocm_version.h']",
            "lacks a part",
            "name all that is missing",
        ),
        ("ld.lld: error: unable to find library -lnuma", "linker name", "libnuma-dev"),
        (
            "gcc: error: unrecognized command-line option '-Qunused-arguments'",
            "Clang 18 as its host compiler",
            "--repo_env=CC=clang",
        ),
        (
            "ERROR: Config value 'rocm' is not defined in any .rc file",
            "not of one age",
            "recipe.yaml",
        ),
        (
            'src/main/tools/linux-sandbox-pid1.cc:270: "mount": Operation not permitted',
            "sandbox wants to mount",
            "--spawn_strategy=local",
        ),
        (
            f"Error downloading [https://x/1]: Checksum was {'a' * 64} but wanted {'b' * 64}",
            "other bytes than the source names",
            "ROCBAKE_MIRRORS",
        ),
        (
            "Error in download: Failed to download repository @@x: download is disabled.",
            "locked downloads do not hold",
            "invoke lock --name",
        ),
        (
            "ERROR: Failed to query remote execution capabilities: UNAVAILABLE: io exception",
            "does not answer",
            "--bazel-remote-executor",
        ),
        (
            "Server terminated abruptly (error code: 14, error message: '', log file: '/jvm.out')",
            "for want of memory",
            "--jobs",
        ),
        # Clang 18.1.8 with GCC 16.2's headers.
        (
            "/usr/lib/gcc/x86_64-linux-gnu/16/../include/c++/16/bits/stl_iterator.h:13:1: error: x",
            "newer than it can read",
            "--gcc-install-dir=",
        ),
    ],
)
def test_known_causes_are_told(typed, line, sentence, remedy):
    cause = diagnosis.find(["-- Configuring done", line, "ninja: build stopped."])

    assert sentence in cause.sentence
    assert remedy in cause.remedy


def test_the_first_cause_is_told(typed):
    full = "error: No space left on device"

    assert "disk" in diagnosis.find(["x", full, "LLVM ERROR: out of memory"]).sentence
    assert "memory" in diagnosis.find(["x", "LLVM ERROR: out of memory", full]).sentence


def test_a_compiler_that_crashed_by_itself_was_not_killed(typed):
    cause = diagnosis.find(
        [
            TWO_JOBS,
            "clang++: error: unable to execute command: Segmentation fault (core dumped)",
            "clang++: error: clang frontend command failed due to signal (use -v to see)",
        ]
    )

    assert cause.sentence == "a compiler crashed, and not for want of memory"


def test_what_is_said_is_one_sentence_each():
    for cause in diagnosis._KNOWN.values():
        for text in (cause.sentence, cause.remedy):
            assert "\n" not in text
            assert not re.search(r"\.$|  +$", text)


@given(st.lists(st.text()))
def test_any_lines_can_be_looked_at(lines):
    cause = diagnosis.find(lines)

    assert cause is None or (cause.sentence and cause.remedy)
