"""What containers/ggml hands to recipes: the checks before a build takes its half hour."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "containers" / "ggml" / "tools"


@pytest.fixture
def configure(ggml_tools):
    return ggml_tools.configure


@pytest.fixture
def toolchain(ggml_tools):
    return ggml_tools.toolchain


@pytest.fixture
def bundle(ggml_tools):
    return ggml_tools.bundle


@pytest.fixture
def launcher(ggml_tools):
    return ggml_tools.launcher


@pytest.fixture
def preflight(ggml_tools):
    return ggml_tools.preflight


CMAKE_SAYS = """\
-- Configuring done (4.4s)
-- Generating done (0.1s)
CMake Warning:
  Manually-specified variables were not used by the project:

    CMAKE_HIP_FLAGS
    LLAMA_HIPBLAS
    GGML_HIPP


-- Build files have been written to: /rocbake/build/tree
"""


def test_option_that_nobody_reads_is_named(configure):
    assert configure.unused(CMAKE_SAYS) == [
        "LLAMA_HIPBLAS: the project has no such option",
        "GGML_HIPP: the project has no such option",
    ]


def test_project_that_reads_all_is_silent(configure):
    assert configure.unused("-- Configuring done\n-- Generating done\n") == []


CACHE = """\
# This is the CMakeCache file.
//Install path prefix, prepended onto install directories.

//x
CMAKE_INSTALL_PREFIX:PATH=/opt/x
//ggml: use HIP
GGML_HIP:BOOL=ON
GGML_HIP_GRAPHS:BOOL=OFF
GGML_NATIVE:BOOL=OFF
LLAMA_HIPBLAS:UNINITIALIZED=ON
"""


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ([], []),
        (["-DCMAKE_INSTALL_PREFIX=/opt/x", "-DGGML_HIP=ON"], []),
        (["-DLLAMA_HIPBLAS=ON"], ["LLAMA_HIPBLAS: the project has no such option"]),
        (["-DNOWHERE=1"], ["NOWHERE: the project has no such option"]),
        (
            ["-DGGML_HIP_GRAPHS=ON"],
            ["GGML_HIP_GRAPHS: asked for ON, the project made it OFF"],
        ),
        (["-DGGML_HIP:BOOL=ON"], []),
    ],
)
def test_cache_is_held_against_what_was_asked(configure, given, faults):
    assert configure.check_cache(CACHE, given) == faults


@pytest.mark.parametrize("value", ["ON", "1", "TRUE"])
def test_code_for_the_builders_own_processor_is_refused(configure, value):
    (fault,) = configure.check_cache(f"GGML_NATIVE:BOOL={value}\n", [])

    assert "SIGILL" in fault


def command(file, words):
    return {"file": f"/src/{file}", "command": f"clang++ {words} -c /src/{file}", "directory": "/"}


HIP = "-x hip --offload-arch=gfx1100 --offload-arch=gfx1201"


@pytest.mark.parametrize(
    ("commands", "faults"),
    [
        ([command("a.cu", HIP), command("b.cpp", "-O3")], []),
        ([command("a.cu", "--offload-arch=gfx1201 -x cuda")], ["a.cu is not compiled as HIP: no"]),
        (
            [command("a.cu", "-x hip --offload-arch=gfx1100")],
            ["a.cu: asked for gfx1100,gfx1201, its command has gfx1100"],
        ),
        ([command("a.hip", "-x hip")], ["a.hip: asked for gfx1100,gfx1201, its command has none"]),
        (
            [command("a.cu", f"{HIP} --offload-arch=gfx906")],
            ["a.cu: asked for gfx1100,gfx1201, its command has gfx1100,gfx1201,gfx906"],
        ),
        (
            [command("a.cu", HIP), command("b.cpp", "--offload-arch=gfx1201")],
            ["b.cpp is no device code, but its command has --offload-arch"],
        ),
        ([command("b.cpp", "-O3")], ["no device code is compiled at all"]),
    ],
)
def test_commands_are_held_against_the_targets(configure, commands, faults):
    found = configure.check_commands(commands, ["gfx1201", "gfx1100"], has_device_code=True)

    assert len(found) == len(faults)
    for fault, beginning in zip(found, faults, strict=True):
        assert fault.startswith(beginning)


def test_build_for_the_processor_needs_no_device_code(configure):
    assert configure.check_commands([command("b.cpp", "")], ["x"], has_device_code=False) == []


@pytest.mark.parametrize(
    ("machine", "asked", "jobs"),
    [((8, 64), "", 8), ((8, 4.5), "", 2), ((2, 64), "", 2), ((8, 1), "", 1), ((2, 1), "6", 6)],
)
def test_as_many_compilers_as_there_is_room_for(toolchain, monkeypatch, machine, asked, jobs):
    cores, memory = machine
    monkeypatch.setattr(toolchain, "cores", lambda: cores)
    monkeypatch.setattr(toolchain, "memory", lambda: int(memory * 1000**3))
    monkeypatch.setenv("JOBS", asked)

    assert toolchain.jobs() == jobs


def test_limits_of_the_container_count(toolchain, monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    (tmp_path / "cpu.max").write_text("350000 100000\n")
    (tmp_path / "memory.max").write_text("1000000\n")

    assert (toolchain.cores(), toolchain.memory()) == (3, 1000000)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert toolchain.cores() == 16
    assert toolchain.memory() > 1000000


def test_options_and_targets_are_read(toolchain, monkeypatch):
    monkeypatch.setenv("OPTIONS", "graphs=on vmm=off")
    monkeypatch.setenv("GPU_TARGETS", "gfx1100,gfx90a:xnack+")

    assert toolchain.options() == {"graphs": "on", "vmm": "off"}
    assert toolchain.targets() == ["gfx1100", "gfx90a:xnack+"]
    monkeypatch.setenv("GPU_TARGETS", "")
    with pytest.raises(toolchain.ToolError, match="GPU_TARGETS is empty"):
        toolchain.targets()


def test_compiler_is_the_one_that_hipconfig_names(toolchain, monkeypatch, tmp_path):
    def stub(folder):
        path = tmp_path / "hipconfig"
        path.write_text(f"#!/bin/sh\nprintf %s {folder}\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stub(tmp_path)
    with pytest.raises(toolchain.ToolError, match=r"there is no .*/clang and no .*/clang"):
        toolchain.compilers()
    for name in ("clang", "clang++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert toolchain.compilers().cxx == tmp_path / "clang++"
    (tmp_path / "hipconfig").unlink()
    with pytest.raises(toolchain.ToolError, match="is hipcc installed"):
        toolchain.compilers()


def test_compiled_objects_are_told_apart_by_the_containers_key(toolchain, monkeypatch):
    monkeypatch.setattr(toolchain.shutil, "which", lambda _: "/usr/bin/ccache")
    monkeypatch.setenv("SDK", "ab" * 32)
    monkeypatch.setenv("CCACHE", "1")
    assert toolchain.ccache_environment()["CCACHE_COMPILERCHECK"] == "string:" + "ab" * 32
    monkeypatch.setenv("CCACHE", "")
    assert toolchain.ccache_environment() == {}


def test_everything_that_is_missing_is_told_at_once(preflight, monkeypatch, tmp_path):
    compiler = tmp_path / "clang++"
    compiler.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        "  *'-v -E'*) echo 'Selected GCC installation: /usr/lib/gcc/x86_64-linux-gnu/99';;\n"
        "  *gfx1100*) echo \"a.hip:1: error: invalid target ID 'gfx1100'\"; exit 1;;\n"
        "  *-x\\ hip*) echo \"b.h:1: fatal error: 'cmath' file not found\"; exit 1;;\n"
        "  *) echo \"probe.cpp:3: fatal error: 'omp.h' file not found\"; exit 1;;\n"
        "esac\n"
    )
    cmake = tmp_path / "cmake"
    cmake.write_text("#!/bin/sh\necho 'package hip: 1'\necho 'package rocblas: 0'\n")
    (tmp_path / "hipconfig").write_text(f"#!/bin/sh\nprintf %s {tmp_path}\n")
    for path in (compiler, cmake, tmp_path / "hipconfig", tmp_path / "clang"):
        path.touch()
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(preflight.shutil, "which", lambda name: name if name == "cmake" else None)
    monkeypatch.setenv("GPU_TARGETS", "gfx1100,gfx1201")

    with pytest.raises(preflight.ToolError) as told:
        preflight.preflight()

    text = str(told.value)
    for part in (
        "ninja is not installed: package ninja-build",
        "ccache is not installed: package ccache",
        "no HIP for gfx1100: a.hip:1: error: invalid target ID 'gfx1100'",
        "no HIP for gfx1201: b.h:1: fatal error: 'cmath' file not found",
        "takes GCC 99 below /usr/lib/gcc/x86_64-linux-gnu, which has no C++ headers: package lib",
        "package libomp-22-dev",
        "CMake finds no rocblas: package librocblas-dev",
        "CMake finds no hipblas: package libhipblas-dev",
    ):
        assert part in text
    assert "no hip:" not in text


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"\0libamd_comgr.so.3\0", {"libamd_comgr.so.3"}),
        (b"xlibx.so\0lib.so\0libx.so.1.2\0", {"libx.so.1.2"}),
        (b"/usr/lib/libx.so.1\0see libx.so.1 or not", set()),
        (b"libx.so\xff" + b"\0libstdc++.so.6\0" * 2, {"libstdc++.so.6"}),
        (b".so", set()),
    ],
)
def test_names_of_libraries_are_found_among_texts(bundle, content, names):
    assert bundle.opened(content) == names


def test_only_kernel_files_of_the_targets_and_of_all_come_along(bundle, monkeypatch, tmp_path):
    monkeypatch.setenv("GPU_TARGETS", "gfx1201,gfx90a:xnack+,gfx1199")
    source, out = tmp_path / "rocblas", tmp_path / "out"
    (source / "5" / "library").mkdir(parents=True)
    for name in (
        "TensileLibrary_gfx1201.dat",
        "Kernels.so-000-gfx1201.hsaco",
        "Kernels.so-000-gfx90a-xnack+.hsaco",
        "Kernels.so-000-gfx1200.hsaco",
        "Kernels.so-000-gfx12011.hsaco",
        "TensileLibrary_fallback.dat",
    ):
        (source / "5" / "library" / name).write_text(name)
    said = []
    monkeypatch.setattr(bundle, "say", said.append)

    bundle._copy_kernels(source, out)

    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == [
        "Kernels.so-000-gfx1201.hsaco",
        "Kernels.so-000-gfx90a-xnack+.hsaco",
        "TensileLibrary_fallback.dat",
        "TensileLibrary_gfx1201.dat",
    ]
    assert said == ["rocblas has no kernel files for gfx1199"]


def test_what_a_verb_finds_wrong_is_an_error_a_line(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-B", TOOLS / "ggml.py", "preflight"],
        env={"PATH": str(tmp_path), "GPU_TARGETS": "gfx1201"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1
    assert "error: cmake is not installed: package cmake\n" in ended.stderr
    assert "Traceback" not in ended.stderr


def elf_header(*kinds):
    """The beginning of an ELF file with segments of these kinds."""
    head = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<Q", 64)
    head = head.ljust(56, b"\0") + struct.pack("<H", len(kinds))
    return head.ljust(64, b"\0") + b"".join(
        struct.pack("<I", kind).ljust(56, b"\0") for kind in kinds
    )


@pytest.mark.parametrize(
    ("head", "is_program"),
    [
        (elf_header(6, 3, 1), True),
        (elf_header(1, 2), False),
        (elf_header(), False),
        (b"#!/bin/sh\n", False),
        (b"", False),
    ],
)
def test_programs_are_told_from_libraries(launcher, head, is_program):
    assert launcher.has_interpreter(head) is is_program


def test_programs_are_started_with_the_loader_that_came_along(launcher, tmp_path):
    dist, out = tmp_path / "dist", tmp_path / "a folder" / "out"
    (dist / "bin").mkdir(parents=True)
    (dist / "bin" / "tool").write_bytes(elf_header(3))
    (dist / "bin" / "libbackend.so").write_bytes(elf_header(1))
    (dist / "bin" / "script").write_text("#!/bin/sh\n")
    (out / "lib").mkdir(parents=True)
    loader = out / "lib" / "ld-linux-x86-64.so.2"
    loader.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    loader.chmod(0o755)

    launcher.lay_over(dist, out)
    (tmp_path / "link").symlink_to(out / "bin" / "tool")
    ended = subprocess.run(
        [tmp_path / "link", "a b", "c"], cwd="/", capture_output=True, text=True, check=True
    )

    assert ended.stdout.splitlines() == [
        "--argv0",
        str(tmp_path / "link"),
        "--library-path",
        str(out / "lib"),
        str(out / "libexec" / "tool"),
        "a b",
        "c",
    ]
    assert (out / "libexec" / "tool").read_bytes() == elf_header(3)
    assert (out / "lib" / "libbackend.so").readlink() == Path("../bin/libbackend.so")
    assert not (out / "bin" / "script").exists()
