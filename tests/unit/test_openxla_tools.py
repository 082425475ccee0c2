"""What containers/openxla-host hands to recipes: checks before hours, and upstream's own words."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import bazel, project

LIBRARIES = [
    *("amdhip64", "rocblas", "hiprand", "MIOpen", "rccl", "hipsparse", "roctracer64"),
    *("rocsolver", "hipsolver", "hipfft", "rocrand", "hipblas", "hipblaslt", "rocprofiler-sdk"),
]


@pytest.fixture(scope="module")
def tools(bazel_tools):
    return bazel_tools


@pytest.fixture
def refused(tools):
    return tools.toolchain.ToolError


def program(path, text="exit 0"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# --- a ROCm


@pytest.fixture
def rocm(tools, tmp_path, monkeypatch):
    """A stand-in for a whole ROCm, with nothing in its files."""
    monkeypatch.delenv("HIP_CLANG_PATH", raising=False)
    root = Path(os.path.realpath(tmp_path)) / "rocm"
    for name, (header, _) in tools.preflight._LIBRARIES.items():
        for path in (root / "lib" / f"lib{name}.so", root / "include" / header):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    (root / "include/rocm-core").mkdir()
    (root / "include/rocm-core/rocm_version.h").touch()
    (root / "amdgcn/bitcode").mkdir(parents=True)
    program(root / "lib/llvm/bin/clang")
    return root


def findings(tools, root):
    return [(one.what, one.remedy) for one in tools.preflight.rocm(root)]


def test_whole_rocm_has_no_finding(tools, rocm):
    assert findings(tools, rocm) == []
    assert [*tools.preflight._LIBRARIES] == LIBRARIES


REMOVED = {
    **{f"lib/lib{name}.so": f"lib{name}.so is missing" for name in LIBRARIES},
    "include/miopen/version.h": "include/miopen/version.h is missing",
    "include/rocprofiler-sdk/rocprofiler.h": "rocprofiler.h is missing",
    "include/rocm-core/rocm_version.h": "rocm_version.h is missing",
    "amdgcn/bitcode": "has no amdgcn/bitcode",
    "lib/llvm/bin/clang": "has no clang",
}


@pytest.mark.parametrize("part", REMOVED)
def test_each_part_is_missed_alone(tools, rocm, part):
    path = rocm / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    ((what, remedy),) = findings(tools, rocm)

    assert REMOVED[part] in what
    assert remedy.startswith("AMD's package ")


def test_all_parts_are_missed_in_one_run(tools, rocm):
    for part in REMOVED:
        path = rocm / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    told = "\n".join(what for what, _ in findings(tools, rocm))

    assert all(expected in told for expected in REMOVED.values())


def test_runtime_without_the_linkers_name_is_told_apart(tools, rocm):
    (rocm / "lib/libroctracer64.so").rename(rocm / "lib/libroctracer64.so.4")

    ((what, _),) = findings(tools, rocm)

    assert "libroctracer64.so.4 is there, which no linker takes" in what


def test_register_alone_is_not_the_profilers_sdk(tools, rocm):
    (rocm / "lib/librocprofiler-sdk.so").rename(rocm / "lib/librocprofiler-register.so")

    assert [remedy for _, remedy in findings(tools, rocm)] == ["AMD's package rocprofiler-sdk"]


@pytest.mark.parametrize("chain", [1, 2])
def test_path_over_a_link_is_told_with_the_real_one(tools, rocm, tmp_path, chain):
    link = rocm
    for number in range(chain):
        new = Path(os.path.realpath(tmp_path)) / f"link{number}"
        new.symlink_to(link)
        link = new

    assert findings(tools, link) == [
        (
            f"ROCM_PATH {link} leads over a link to {rocm}: Bazel compares real paths",
            f"ROCM_PATH={rocm}",
        )
    ]


def test_hosts_compiler_is_no_compiler_of_device_code(tools, rocm, tmp_path, monkeypatch):
    host = program(tmp_path / "llvm-18/bin/clang")
    monkeypatch.setenv("HIP_CLANG_PATH", str(host.parent))

    ((what, remedy),) = findings(tools, rocm)

    assert what.startswith(f"HIP_CLANG_PATH {host.parent} is not of the ROCm in {rocm}")
    assert remedy == f"HIP_CLANG_PATH={rocm}/lib/llvm/bin"


def test_compiler_elsewhere_in_the_rocm_is_named(tools, rocm, monkeypatch):
    monkeypatch.setenv("HIP_CLANG_PATH", str(rocm / "llvm/bin"))

    assert findings(tools, rocm) == [
        (f"HIP_CLANG_PATH {rocm}/llvm/bin has no clang", f"HIP_CLANG_PATH={rocm}/lib/llvm/bin")
    ]


def test_compiler_without_the_right_to_run_is_not_its_own_remedy(tools, rocm):
    (rocm / "lib/llvm/bin/clang").chmod(0o644)

    assert [remedy for _, remedy in findings(tools, rocm)] == ["AMD's package rocm-llvm"]


def test_compiler_that_does_not_run_is_told(tools, rocm):
    program(rocm / "lib/llvm/bin/clang", "echo 'libz3.so.4: cannot open'; exit 127")

    ((what, _),) = findings(tools, rocm)

    assert what.endswith("does not run: libz3.so.4: cannot open")


def test_no_rocm_is_one_finding(tools, tmp_path):
    assert len(findings(tools, Path(os.path.realpath(tmp_path)) / "none")) == 1


# --- the host's side


@pytest.fixture
def host(tools, tmp_path, monkeypatch):
    """A stand-in for a container: its programs, and nothing of this machine's."""
    root = tmp_path / "root"
    clang = root / "usr/lib/llvm-18/bin/clang"
    lld = program(clang.with_name("ld.lld"))
    library = root / "usr/lib/gcc/x86_64-linux-gnu/15/libgcc.a"
    for folder in (library.parent, root / "usr/include/c++/15"):
        folder.mkdir(parents=True)
    library.touch()
    program(
        clang,
        f'case "$*" in *--version*) echo "Debian clang version 18.1.8 (18+b1)";; '
        f"*print-prog-name*) echo {lld};; "
        '*-v*) echo "Selected GCC installation: /usr/lib/gcc/x86_64-linux-gnu/15";; esac',
    )
    shutil.copy(clang, clang.with_name("clang++"))
    (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (root / "usr/lib/x86_64-linux-gnu/libnuma.so").touch()
    programs = tmp_path / "bin"
    for name in ("git", "make", "patch", "xxd", "python3"):
        program(programs / name)
    program(programs / "bazel", "echo bazel 7.7.1")
    program(programs / "gcc-15", f"echo {library}")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(tools.preflight, "_ROOM_BYTES", 0)
    monkeypatch.setattr(tools.preflight.jobs, "room", lambda: 4)
    monkeypatch.delenv("JOBS", raising=False)
    return root


def hosts(tools, root):
    return [(one.what, one.remedy) for one in tools.preflight.host(root)]


def test_whole_host_has_no_finding(tools, host):
    assert hosts(tools, host) == []


CLANG = "usr/lib/llvm-18/bin/clang"


@pytest.mark.parametrize(
    ("break_it", "remedy"),
    [
        (lambda root, _: (root / CLANG).unlink(), "package clang-18"),
        (lambda root, _: program(root / CLANG, "echo clang version 21.1.0"), "package clang-18"),
        (lambda root, _: program(root / CLANG, "echo 'gcc (Debian) 18.1.0'"), "package clang-18"),
        (lambda root, _: (root / CLANG).chmod(0o644), "package clang-18"),
        (lambda root, _: (root / CLANG).write_bytes(b"\x7fELF cut short"), "package clang-18"),
        (lambda root, _: (root / CLANG).with_name("ld.lld").unlink(), "package lld-18"),
        (
            lambda root, _: (root / "usr/lib/x86_64-linux-gnu/libnuma.so").rename(
                root / "usr/lib/x86_64-linux-gnu/libnuma.so.1"
            ),
            "package libnuma-dev",
        ),
        (lambda _, tmp: program(tmp / "bin/python3", "exit 1"), "package python3-numpy"),
        (lambda _, tmp: (tmp / "bin/xxd").unlink(), "package xxd"),
        (lambda _, tmp: (tmp / "bin/bazel").unlink(), "openxla-bazel or openxla-debian as the SDK"),
        (
            lambda _, tmp: program(tmp / "bin/bazel", "echo bazel 9.0.0"),
            "openxla-bazel or openxla-debian as the SDK",
        ),
    ],
    ids=[
        *("no clang", "clang 21", "gcc", "clang not executable", "clang cut short", "no lld"),
        *("no libnuma", "no numpy", "no xxd", "no bazel", "bazel 9"),
    ],
)
def test_each_thing_is_missed_on_the_host(tools, host, tmp_path, break_it, remedy):
    break_it(host, tmp_path)

    assert [one for _, one in hosts(tools, host)] == [remedy]


def test_want_of_room_and_memory_is_told(tools, host, monkeypatch):
    monkeypatch.setattr(tools.preflight, "_ROOM_BYTES", 1 << 62)
    monkeypatch.setattr(tools.preflight.jobs, "room", lambda: 0)
    monkeypatch.setenv("JOBS", "7")

    told = [what for what, _ in hosts(tools, host)]

    assert len(told) == 2
    assert "are free here" in told[0]
    assert "memory for no job" in told[1]


@pytest.mark.parametrize("clang", ["exit 1", "echo clang version 18.1.8"])
def test_compiler_hides_neither_its_linker_nor_gcc(tools, host, tmp_path, clang):
    program(host / CLANG, clang)
    program(host / f"{CLANG}++", "echo x.h:1: error: no; exit 1")
    (host / CLANG).with_name("ld.lld").unlink()
    (tmp_path / "bin/gcc-15").unlink()

    remedies = [remedy for _, remedy in hosts(tools, host)]

    assert remedies[-2:] == ["package lld-18", "package g++-15"]
    assert remedies[:-2] == ([] if "18.1.8" in clang else ["package clang-18"])


@pytest.mark.parametrize(
    ("clang", "remedies"),
    [("echo clang version 21.1.0", ["package clang-18"]), (None, ["package g++-15"])],
    ids=["of another", "of Clang 18"],
)
def test_headers_are_a_matter_of_the_right_compiler_alone(tools, host, clang, remedies):
    program(host / f"{CLANG}++", "echo x.h:1: error: no; exit 1")
    if clang:
        program(host / CLANG, clang)

    assert [remedy for _, remedy in hosts(tools, host)] == remedies


@pytest.mark.parametrize(("asked", "count"), [("4", 0), ("5", 1)])
def test_more_jobs_than_memory_are_told(tools, host, monkeypatch, asked, count):
    monkeypatch.setenv("JOBS", asked)

    told = hosts(tools, host)

    assert len(told) == count
    assert all(remedy == "--jobs 4, or leave it out" for _, remedy in told)


def test_everything_is_told_at_once(tools, rocm, host, tmp_path, monkeypatch):
    refused = tools.toolchain.ToolError
    monkeypatch.setenv("ROCM_PATH", str(rocm))
    (rocm / "lib/libMIOpen.so").unlink()
    (host / CLANG).unlink()
    look = tools.preflight.host
    monkeypatch.setattr(tools.preflight, "host", lambda: look(host))

    with pytest.raises(refused) as caught:
        tools.preflight.preflight(tmp_path, ["--config=rocm"])

    lines = str(caught.value).splitlines()
    assert lines[0] == "3 things are missing for this build"
    assert len([line for line in lines if line.startswith("    → ")]) == 3


# --- the workspace


def told(tools, workspace, *words):
    return [one.what for one in tools.preflight.told(workspace, list(words))]


def test_configuration_must_be_defined(tools, tmp_path):
    (tmp_path / ".bazelrc").write_text("import %workspace%/tensorflow.bazelrc\n")
    (tmp_path / "tensorflow.bazelrc").write_text("build:rocm --config=x\nbuild --config=other\n")

    assert told(tools, tmp_path, "--config=rocm", "-c", "opt") == []
    assert told(tools, tmp_path, "--config=roc", "--config=other") == [
        f"--config=roc is defined in no .bazelrc of {tmp_path}",
        f"--config=other is defined in no .bazelrc of {tmp_path}",
    ]


def test_configuration_may_be_in_what_is_imported(tools, tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / ".bazelrc").write_text(
        "# import %workspace%/etc/not.bazelrc\n"
        "import %workspace%/etc/a.bazelrc\ntry-import %workspace%/etc/none.bazelrc\n"
    )
    (tmp_path / "etc/a.bazelrc").write_text(
        "import %workspace%/.bazelrc\nbuild:deep --x\n# build:remark --x\n"
    )
    (tmp_path / "etc/not.bazelrc").write_text("build:aside --x\n")

    words = ("--config=deep", "--config=aside", "--config=remark")

    assert [one.split()[0] for one in told(tools, tmp_path, *words)] == [*words[1:]]


@pytest.mark.parametrize("place", ["bazel-xla", "root/0123abcd"])
def test_leftover_configuration_is_told(tools, tmp_path, monkeypatch, place):
    monkeypatch.setattr(tools.preflight, "OUTPUT_ROOT", tmp_path / "root")
    (tmp_path / place / "external/local_config_rocm").mkdir(parents=True)

    (what,) = told(tools, tmp_path)

    assert what.endswith(f"{place}/external/local_config_rocm is left from another configuration")


# --- which GCC


@pytest.fixture
def compilers(tmp_path):
    """Stand-ins: a Clang that takes `gcc` by itself and reads what is in `good`, and a GCC 15."""
    folder = tmp_path / "usr/lib/gcc/x86_64-linux-gnu/15"
    folder.mkdir(parents=True)
    (folder / "libgcc.a").touch()
    (tmp_path / "usr/include/c++/15").mkdir(parents=True)
    gcc = program(tmp_path / "bin/gcc-15", f"echo {folder}/libgcc.a")

    def make(takes, *good):
        cases = "".join(f"*--gcc-install-dir=*/{one}*) exit 0;; " for one in good)
        by_itself = "exit 0" if takes in good else "echo /x.h:1: error: no; exit 1"
        clang = program(
            tmp_path / "bin/clang++",
            f'case "$*" in *-v*) echo "Selected GCC installation: /usr/lib/gcc/x/{takes}";; '
            f"{cases} *gcc-install-dir*) echo y.h:2: error: neither; exit 1;; "
            f"*) {by_itself};; esac",
        )
        return clang, str(gcc)

    make.folder = folder
    return make


def test_gcc_that_clang_takes_and_reads_is_left_alone(tools, compilers):
    choice = tools.gcc.choose(*compilers(15, 15))

    assert choice.folder is None


@pytest.mark.parametrize("good", [(15,), (15, 16)], ids=["unreadable", "only newer"])
def test_newer_gcc_is_passed_by(tools, compilers, good):
    choice = tools.gcc.choose(*compilers(16, *good))

    assert choice.folder == compilers.folder
    # What readers of the log take for a failure does not stand in it.
    assert "error" not in choice.why
    assert ("no (x.h:1)" in choice.why) is (16 not in good)


def test_four_flags_are_used(tools, compilers, monkeypatch, capsys):
    clang, gcc = compilers(16, 15)
    choice = tools.gcc.choose(clang, gcc)
    monkeypatch.setattr(tools.gcc, "choose", lambda: choice)

    assert tools.gcc.flags() == [
        f"{kind}=--gcc-install-dir={compilers.folder}"
        for kind in ("--copt", "--host_copt", "--linkopt", "--host_linkopt")
    ]
    assert str(compilers.folder) in capsys.readouterr().out


def test_gcc_without_headers_is_never_chosen(tools, compilers, tmp_path, refused):
    shutil.rmtree(tmp_path / "usr/include")

    with pytest.raises(refused, match=r"has no C\+\+ headers: add g\+\+-15"):
        tools.gcc.choose(*compilers(16, 15))


def test_clang_that_reads_no_gcc_is_refused(tools, compilers, refused):
    with pytest.raises(refused) as caught:
        tools.gcc.choose(*compilers(16))

    assert "by itself: no (x.h:1)" in str(caught.value)
    assert "neither (y.h:2)" in str(caught.value)


def test_missing_gcc_is_told(tools, compilers, refused, tmp_path):
    clang, _ = compilers(16, 15)

    with pytest.raises(refused, match="is not installed: add"):
        tools.gcc.choose(clang, str(tmp_path / "none"))


# --- what Bazel was configured for

DEFS = """\
def rocm_default_copts():
    return if_rocm(["-x", "rocm"] + [])

def rocm_gpu_architectures():
    \"\"\"Returns a list of supported GPU architectures.\"\"\"
    return %s

def rocm_version_number():
    return 71200
"""


def test_targets_are_read_back(tools, tmp_path):
    path = tmp_path / tools.targets.FILE
    path.parent.mkdir(parents=True)
    path.write_text(DEFS % '["gfx1201", "gfx1100"]')

    assert tools.targets.require(tmp_path, ["gfx1100", "gfx1201"]).endswith("gfx1201,gfx1100")


@pytest.mark.parametrize("got", ['["gfx90a", "gfx942"]', '["gfx1201", "gfx1100"]', "[]"])
def test_other_targets_stop_the_build(tools, tmp_path, refused, got):
    path = tmp_path / tools.targets.FILE
    path.parent.mkdir(parents=True)
    path.write_text(DEFS % got)

    with pytest.raises(refused) as caught:
        tools.targets.require(tmp_path, ["gfx1201"])

    assert "expected gfx1201\n" in str(caught.value)


def test_workspace_without_rocm_has_none(tools, tmp_path):
    assert tools.targets.require(tmp_path, ["gfx1201"]) is None


def test_targets_that_nothing_read_stop_the_build(tools, tmp_path, refused):
    words = ["--config=rocm", "--repo_env=TF_ROCM_AMDGPU_TARGETS=gfx1201"]

    with pytest.raises(refused, match="expected gfx1201\n  got      no list of GPU targets"):
        tools.targets.require(tmp_path, ["gfx1201"], words)

    assert tools.targets.require(tmp_path, ["gfx1201"], words[1:]) is None


@pytest.mark.parametrize("text", ["", DEFS % "AMDGPUS", DEFS % "[1]", "return ['gfx1201']"])
def test_file_without_a_list_is_refused(tools, refused, text):
    with pytest.raises(refused, match="names no list of GPU targets"):
        tools.targets.configured(text)


@given(st.text())
def test_any_text_is_read_or_refused(bazel_tools, text):
    try:
        found = bazel_tools.targets.configured(DEFS % text)
    except bazel_tools.toolchain.ToolError:
        return
    assert all(isinstance(one, str) for one in found)


# --- how much at a time


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("JOBS", raising=False)

    def machine(groups, own=""):
        files = {f"sys/fs/cgroup/{name}": text for name, text in groups.items()}
        files["proc/meminfo"] = "MemTotal: 1 kB\nMemAvailable:   32000000 kB\n"
        files["proc/self/cgroup"] = own
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return machine


V1 = "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n"
V2 = "0::/a.slice/b.scope\n"
QUOTA = {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("groups", "own", "jobs", "megabytes"),
    [
        ({}, "", 15, 29342),
        ({"memory.max": "max\n", "cpu.max": "max 100000\n"}, "0::/\n", 15, 29342),
        ({"memory.max": "8000000000"}, "0::/\n", 3, 5722),
        ({"memory.max": "8000000000"}, "", 3, 5722),
        ({"cpu.max": "250000 100000"}, "0::/\n", 2, 29342),
        ({"cpu.max": "0 0"}, "0::/\n", 15, 29342),
        ({"memory/memory.limit_in_bytes": "6000000000"}, V1, 2, 3814),
        ({"memory/docker/x/memory.limit_in_bytes": "6000000000"}, V1, 2, 3814),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, V1, 15, 29342),
        (QUOTA, V1, 2, 29342),
        ({**QUOTA, "cpu/cpu.cfs_quota_us": "-1"}, V1, 15, 29342),
        ({"a.slice/memory.max": "8000000000", "a.slice/b.scope/memory.max": "max"}, V2, 3, 5722),
        ({"a.slice/b.scope/cpu.max": "250000 100000"}, V2, 2, 29342),
        ({"c.slice/memory.max": "8000000000"}, V2, 15, 29342),
        (
            {"memory.max": "8000000000", "../../other/memory.max": "4000000000"},
            "0::/../../other\n",
            *(3, 5722),
        ),
        ({"memory.max": "9" * 5000}, "0::/\n", 15, 29342),
        ({"memory.max": "1000000"}, "0::/\n", 1, 1907),
    ],
    ids=[
        *("no group", "no limit", "memory", "no list of groups", "processors", "no period"),
        *("old groups", "old groups below", "old groups without limit", "old quota"),
        *("old groups without quota", "group above", "group below", "other group", "outside"),
        *("too long", "tiny"),
    ],
)
def test_limits_of_the_container_decide(tools, machine, *, groups, own, jobs, megabytes):
    words = tools.jobs.flags(machine(groups, own))

    assert words[0] == f"--jobs={jobs}"
    assert words[2] == f"--local_resources=memory={megabytes}"


@pytest.mark.parametrize(
    ("bytes_", "room"), [("3999999999", 0), ("4000000000", 1), ("8000000000", 3)]
)
def test_room_is_what_is_left_beside_the_server(tools, machine, bytes_, room):
    assert tools.jobs.room(machine({"memory.max": bytes_})) == room


def test_asked_for_is_taken(tools, machine, monkeypatch, capsys):
    monkeypatch.setenv("JOBS", "7")

    assert tools.jobs.flags(machine({"memory.max": "8000000000"}))[0] == "--jobs=7"
    assert capsys.readouterr().out == "jobs: 7 (16 cores, 7.5 GiB)\n"


@given(own=st.text(), limit=st.text(), quota=st.text())
def test_any_control_group_is_read(bazel_tools, tmp_path_factory, own, limit, quota):
    root = tmp_path_factory.getbasetemp() / "any"
    for name, text in {
        "proc/self/cgroup": own,
        "sys/fs/cgroup/memory.max": limit,
        "sys/fs/cgroup/cpu.max": quota,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")

    assert bazel_tools.jobs._cores(root) >= 1
    assert bazel_tools.jobs.room(root) >= 0


# --- upstream's make step

MAKEFILE = """\
BUILD_MODE ?= opt
OPENXLA_GIT_REV ?= abc
BAZEL_FLAGS = --define "framework_shared_object=false" -c $(BUILD_MODE)
OPENXLA_DIR = $(BUILD_CACHE_DIR)/xla-$(OPENXLA_GIT_REV)

$(BUILD_ARCHIVE): $(OPENXLA_DIR) extension/BUILD
\trm -f $(OPENXLA_DIR)/xla/extension && \\
\t\tcd $(OPENXLA_DIR) && \\
\t\tbazel build $(BAZEL_FLAGS) $(BUILD_FLAGS) $(BUILD_INTERNAL_FLAGS) //xla/extension:xla && \\
\t\tcp -f bazel-bin/x.tar.gz $(BUILD_ARCHIVE)

$(OPENXLA_DIR):
\tgit init && git fetch --depth 1 origin $(OPENXLA_GIT_REV)
"""


@pytest.fixture
def package(tmp_path):
    """A package with a make step like upstream's, and a workspace where it expects one."""
    folder = tmp_path / "package"
    (folder / "extension").mkdir(parents=True)
    (folder / "extension/BUILD").touch()
    (folder / "Makefile").write_text(MAKEFILE)
    (tmp_path / "cache/xla-abc").mkdir(parents=True)
    return folder


@pytest.fixture
def line(tools):
    return tools.line.Line(
        before=["--define", "framework_shared_object=false", "-c", "opt"],
        flags=["--jobs=2", "--copt=a b", "--x=$HOME", "--y=it's"],
        after=["--config=rocm", '--action_env=A="1"'],
        target="//xla/extension:xla",
    )


@pytest.fixture
def make(tools, package, line, tmp_path):
    if not shutil.which("make"):
        pytest.skip("there is no make here")

    def make(told=line, workspace="xla-abc"):
        words = tools.makestep.words(
            told, tmp_path / "cache" / workspace, package, tmp_path / "archive/x.tar.gz"
        )
        tools.makestep.require_same(told, words)
        return words

    return make


def test_make_step_says_what_the_plan_says(make):
    make()


def test_make_step_that_says_something_else_is_refused(make, package, refused):
    text = (package / "Makefile").read_text()
    (package / "Makefile").write_text(text.replace("-c $(BUILD_MODE)", "-c $(BUILD_MODE) --new"))

    with pytest.raises(refused) as caught:
        make()

    assert "word 5:\n  expected --jobs=2\n  got      --new" in str(caught.value)


def test_make_step_that_would_clone_is_refused(make, refused):
    with pytest.raises(refused, match="would fetch OpenXLA by itself"):
        make(workspace="xla-other")


def test_make_step_without_bazel_is_refused(make, package, refused):
    (package / "Makefile").write_text("$(BUILD_ARCHIVE):\n\ttouch $@\n")

    with pytest.raises(refused, match="runs no `bazel build`"):
        make()


def test_broken_makefile_is_told(make, package, refused):
    (package / "Makefile").write_text("x\n")

    with pytest.raises(refused, match="make cannot say what it would do"):
        make()


# --- the disk cache


def test_disk_cache_is_kept_within_bounds(tools, tmp_path):
    for number in range(5):
        path = tmp_path / f"cas/{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))

    assert tools.disk.prune(tmp_path, 250) == "disk cache: 0 MB, 3 files removed"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["3", "4"]
    assert tools.disk.prune(tmp_path, 250) == "disk cache: 0 MB, 0 files removed"


# --- the recipe's command line

GOLDEN = Path(__file__).parent.parent / "data" / "plan" / "openxla-bazel.json"
UPSTREAM = shlex.split(
    """
    --define "framework_shared_object=false" -c opt --config=rocm --action_env=TF_ROCM_CLANG="1"
    --action_env=TF_HIPCC_CLANG="1"
    --action_env=TF_ROCM_AMDGPU_TARGETS="gfx90a,gfx942,gfx1030,gfx1100,gfx1200,gfx1201"
    --action_env=HOME='/rocbake/home' --repo_env=CC=clang --repo_env=CXX=clang++
    --copt=-Wno-error=unused-command-line-argument --copt=-Wno-gnu-offsetof-extensions
    --copt=-Qunused-arguments --copt=-Wno-error=c23-extensions //xla/extension:xla_extension
    """
)


@pytest.fixture
def wish():
    return project.load().recipes["openxla"].file.bazel


def test_line_is_upstreams_but_for_what_is_documented(wish):
    words = bazel.command_line(wish, ["gfx1201"])

    assert [word.text for word in words if word.origin == "upstream"] == UPSTREAM
    told = [{"text": one.text, "origin": one.origin, "why": one.why} for one in words]
    assert told == json.loads(GOLDEN.read_text())
    assert all(one.why for one in words if one.origin == "rocbake")


def test_containers_part_is_the_same_line(wish):
    told = bazel.for_container(wish, ["gfx1201"])
    words = [*told["before"], *told["flags"], *told["offline"], *told["after"], told["target"]]

    assert sorted(words) == sorted(one.text for one in bazel.command_line(wish, ["gfx1201"]))
    assert "--repository_disable_download" not in told["flags"]
