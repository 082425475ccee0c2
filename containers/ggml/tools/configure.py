"""CMake's configuration: what was asked for, checked before hours of compiling."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

from toolchain import ToolError, ccache_environment, compilers, say, targets

_UNUSED = "Manually-specified variables were not used by the project:"
_ENTRY = re.compile(r"^([^:#/=\n][^:=\n]*):([A-Z]+)=(.*)$", re.MULTILINE)
# What no project need declare: CMake's own, and a second spelling of the targets.
_UNDECLARED = re.compile(r"CMAKE_\w+|GPU_TARGETS|AMDGPU_TARGETS|BUILD_SHARED_LIBS")
_DEVICE_SOURCE = re.compile(r"\.(cu|hip)$")
# They would be compiled into a library, or take the place of what is given here.
_NOT_INHERITED = ("CC", "CXX", "HIPCXX", "CFLAGS", "CXXFLAGS", "HIPFLAGS", "LDFLAGS", "ROCM_PATH")


def configure(source: Path, build: Path, given: list[str], *, name: str) -> None:
    """Configure a project for the GPU targets, and read back what came of it.

    Args:
        source: Its source folder.
        build: A build folder of this target set alone.
        given: Definitions as CMake takes them: -DNAME=VALUE.
        name: What the source folder is called in debugging information and messages.

    Raises:
        ToolError: CMake failed, or took something else than what was asked for.
    """
    words = ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build)]
    words += _standard(source, build, name) + given
    say(shlex.join(words))
    environment = {key: text for key, text in os.environ.items() if key not in _NOT_INHERITED}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        printed = []
        for line in process.stdout or ():
            say(line.rstrip())
            printed.append(line)
    if process.returncode != 0:
        raise ToolError(f"cmake ended with exit code {process.returncode}")
    faults = unused("".join(printed))
    faults += check_cache((build / "CMakeCache.txt").read_text(), given)
    commands = json.loads((build / "compile_commands.json").read_text())
    faults += check_commands(commands, targets(), has_device_code="-DGGML_HIP=ON" in given)
    if faults:
        raise ToolError("\n".join(dict.fromkeys(faults)))


def _standard(source: Path, build: Path, name: str) -> list[str]:
    found = compilers()
    maps = f"-ffile-prefix-map={source}={name} -ffile-prefix-map={build}=build"
    # DT_RPATH, and not RUNPATH: it also serves the libraries of ROCm that come along in a bundle,
    # and those that are opened while the program runs.
    link = "-Wl,--disable-new-dtags -Wl,--build-id=sha1 -Wl,-z,relro -Wl,-z,now"
    names = ";".join(targets())
    definitions = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_C_COMPILER": found.c,
        "CMAKE_CXX_COMPILER": found.cxx,
        "CMAKE_HIP_COMPILER": found.cxx,
        "CMAKE_HIP_ARCHITECTURES": names,
        "GPU_TARGETS": names,
        "AMDGPU_TARGETS": names,
        "CMAKE_C_FLAGS": f"{maps} -Werror=date-time",
        "CMAKE_CXX_FLAGS": f"{maps} -Werror=date-time",
        "CMAKE_HIP_FLAGS": maps,
        # Clang names a HIP unit by a hash of its command line, in which the launcher stands, unless
        # it is given a name. Without any (-fuse-cuid=none) two units of a library would clash.
        "CMAKE_HIP_COMPILE_OBJECT": "<CMAKE_HIP_COMPILER> <DEFINES> <INCLUDES> <FLAGS> "
        "-cuid=<OBJECT> -o <OBJECT> -x hip -c <SOURCE>",
        "CMAKE_EXE_LINKER_FLAGS": link,
        "CMAKE_SHARED_LINKER_FLAGS": link,
        "CMAKE_MODULE_LINKER_FLAGS": link,
        "CMAKE_INSTALL_RPATH": "$ORIGIN/../lib",
        "CMAKE_BUILD_RPATH_USE_ORIGIN": "ON",
        "CMAKE_INSTALL_LIBDIR": "lib",
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
    }
    if ccache_environment():
        for language in ("C", "CXX", "HIP"):
            definitions[f"CMAKE_{language}_COMPILER_LAUNCHER"] = "ccache"
    return [f"-D{key}={value}" for key, value in definitions.items()]


def unused(printed: str) -> list[str]:
    """Return the options that CMake says nobody reads; to CMake that is only a warning.

    https://github.com/ggml-org/llama.cpp/issues/15245
    """
    _, found, rest = printed.partition(_UNUSED)
    if not found:
        return []
    names = []
    for line in rest.strip("\n").splitlines():
        if line.strip() and not line.startswith("  "):
            break
        names += line.split()
    return [
        f"{name}: the project has no such option"
        for name in names
        if not _UNDECLARED.fullmatch(name)
    ]


def check_cache(text: str, given: list[str]) -> list[str]:
    """Compare CMake's cache with what was asked for."""
    entries = {key: (kind, value) for key, kind, value in _ENTRY.findall(text)}
    faults = []
    for definition in given:
        key, value = definition.removeprefix("-D").split("=", 1)
        key = key.partition(":")[0]
        kind, got = entries.get(key, ("UNINITIALIZED", None))
        if kind == "UNINITIALIZED" and not _UNDECLARED.fullmatch(key):
            faults.append(f"{key}: the project has no such option")
        elif got != value:
            faults.append(f"{key}: asked for {value}, the project made it {got}")
    native = entries.get("GGML_NATIVE", ("", "OFF"))[1]
    if native.upper() not in {"OFF", "0", "FALSE", "NO"}:
        faults.append(
            f"GGML_NATIVE is {native}: code for this machine's processor dies on others with SIGILL"
        )
    return faults


def check_commands(
    commands: list[dict[str, str]], wanted: list[str], *, has_device_code: bool
) -> list[str]:
    """Check that device code is compiled as HIP for exactly the targets, and nothing else is.

    https://github.com/leejet/stable-diffusion.cpp/issues/464
    https://github.com/abetlen/llama-cpp-python/issues/695
    """
    faults = []
    device = 0
    for command in commands:
        words = shlex.split(command["command"])
        file = Path(command["file"]).name
        found = sorted(
            word.partition("=")[2] for word in words if word.startswith("--offload-arch")
        )
        if _DEVICE_SOURCE.search(file):
            device += 1
            if not any(pair == ("-x", "hip") for pair in itertools.pairwise(words)):
                faults.append(f"{file} is not compiled as HIP: no '-x hip' in its command")
            elif found != sorted(wanted):
                asked, got = ",".join(sorted(wanted)), ",".join(found) or "none"
                faults.append(f"{file}: asked for {asked}, its command has {got}")
        elif found:
            faults.append(f"{file} is no device code, but its command has --offload-arch")
    if has_device_code and not device:
        faults.append("no device code is compiled at all, although HIP was asked for")
    return faults
