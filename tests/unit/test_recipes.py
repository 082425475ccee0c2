"""What of the recipes can be tried without a compiler: their scripts, and what is said twice."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rocbake import errors

RECIPES = Path(__file__).parents[2] / "recipes"
BUILD_SCRIPTS = sorted(RECIPES.glob("*/build.sh"))
RECIPE_DIR = RECIPES / "hip-probe"
SRC = RECIPE_DIR / "src"
BUILD = (RECIPE_DIR / "build.sh").read_text()
README = (SRC / "README.md").read_text()
SOURCES = {path.name: path.read_text() for path in SRC.iterdir() if path.suffix != ".md"}

# The only files that may know of HIP: what tells of a run, and the host's own path, must not.
HIP_FILES = {"devices.cpp", "gpu.cpp", "gpu.hpp", "hip.hpp", "hip_library.cpp"}
HIP_FILES |= {"kernels.hip", "kernels.hpp", "main.cpp"}


def table(heading):
    """Return the rows of the README's table below a heading, without the table's own head."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows[2:]]


# build.sh


@pytest.mark.parametrize("script", BUILD_SCRIPTS, ids=lambda path: path.parent.name)
def test_build_script_is_clean(script):
    shellcheck = Path(sys.executable).parent / "shellcheck"

    checked = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stdout) == (0, "")


def test_build_script_keeps_its_contract():
    assert BUILD.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in BUILD
    assert len(BUILD.splitlines()) <= 60
    assert os.access(RECIPE_DIR / "build.sh", os.X_OK)
    assert "/opt/rocm" not in BUILD


@pytest.mark.parametrize(
    "flag",
    ["-fuse-cuid=none", "-ffile-prefix-map", "-Werror=date-time", "-Wl,--build-id=sha1", "-Werror"],
)
def test_build_script_asks_for_the_same_bytes(flag):
    assert flag in BUILD


@pytest.fixture
def build(tmp_path):
    """Run build.sh with a compiler that writes down how it was called."""
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "hipcc"
    compiler.write_text(
        f'#!/bin/bash\necho "${{@@Q}}" >>{shlex.quote(str(calls))}\n'
        'while [[ $1 != -o ]]; do shift; done; echo compiled >"$2"\n'
    )
    compiler.chmod(0o755)

    def run(targets, *, jobs="1", path=None):
        calls.write_text("")
        env = {
            "PATH": path or f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "SOURCE_DATE_EPOCH": "1700000000",
            "JOBS": jobs,
            "ROCBAKE_RECIPE_DIR": str(RECIPE_DIR),
            "ROCBAKE_BUILD_DIR": str(tmp_path / "build"),
            "ROCBAKE_DIST_DIR": str(tmp_path / "dist"),
        }
        if targets is not None:
            env["GPU_TARGETS"] = targets
        ended = subprocess.run(
            ["/bin/bash", RECIPE_DIR / "build.sh"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        return ended, [shlex.split(line) for line in calls.read_text().splitlines()]

    return run


def test_build_compiles_kernels_for_every_target_and_links_once(build, tmp_path):
    ended, calls = build("gfx1201,gfx90a:xnack+,gfx12-generic", jobs="2")

    assert ended.returncode == 0, ended.stderr
    kernels = [call for call in calls if any(word.endswith("kernels.hip") for word in call)]
    assert len(kernels) == 1
    asked = [word for word in kernels[0] if word.startswith("--offload-arch=")]
    assert asked == [
        "--offload-arch=gfx12-generic",
        "--offload-arch=gfx1201",
        "--offload-arch=gfx90a:xnack+",
    ]
    assert len(calls) == len(list(SRC.glob("*.cpp"))) + len(list(SRC.glob("*.hip"))) + 1
    assert (tmp_path / "dist" / "bin" / "hip-probe").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "dist" / "share" / "doc" / "hip-probe" / "README.md").is_file()


def test_build_calls_do_not_depend_on_the_order_of_targets(build):
    _, first = build("gfx1201,gfx1100")
    _, second = build("gfx1100,gfx1201,gfx1100")

    assert first == second
    assert any('-DHIP_PROBE_COMPILED_FOR="gfx1100,gfx1201"' in call for call in first)


def test_build_passes_no_run_path(build):
    _, calls = build("gfx1201")

    assert not [word for call in calls for word in call if "rpath" in word]


def test_build_without_targets_or_compiler_says_so(build):
    without_targets, _ = build(None)
    without_compiler, _ = build("gfx1201", path="/usr/bin:/bin")

    assert without_targets.returncode != 0
    assert "GPU targets" in without_targets.stderr
    if not shutil.which("hipcc", path="/usr/bin:/bin"):
        assert without_compiler.returncode != 0
        assert "hipcc is not on PATH" in without_compiler.stderr


# What is said in two places


def verdicts_in_source():
    entry = r'VerdictEntry\{\s*Verdict::(\w+),\s*"([^"]+)",\s*(\d+),\s*"([^"]+)"\s*\}'
    return re.findall(entry, SOURCES["verdict.hpp"])


def test_every_verdict_is_documented_with_its_exit_code():
    assert table("How it ends") == [list(entry[1:]) for entry in verdicts_in_source()]


def test_every_verdict_of_the_enumeration_has_an_entry():
    enumeration = re.search(r"enum class Verdict \{([^}]*)\}", SOURCES["verdict.hpp"])[1]

    names = [name.strip() for name in enumeration.split(",")]

    assert names == [entry[0] for entry in verdicts_in_source()]
    assert [entry[1] for entry in verdicts_in_source()] == [
        name.replace("_", "-") for name in names
    ]


def test_exit_codes_do_not_collide_with_those_of_rocbake():
    codes = {entry[1]: int(entry[2]) for entry in verdicts_in_source()}
    meanings = {
        error.exit_code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.RocbakeError)
    }

    assert {name: code for name, code in codes.items() if code != 0} == {
        "usage": errors.UsageError.exit_code,
        "wrong-result": 9,
        "no-gpu": 10,
        "no-code-object": 13,
        "runtime-error": 14,
    }
    assert not {13, 14} & meanings


def test_kernels_are_those_documented_and_each_is_launched():
    source = SOURCES["kernels.hip"]
    device_code = source[source.index('extern "C" {') : source.index('} // extern "C"')]
    signatures = re.findall(r"__launch_bounds__\([\w:]+\) void (\w+\([^)]*\))", device_code)
    signatures = [re.sub(r"\s+", " ", signature) for signature in signatures]

    assert signatures
    assert source.count("__global__") == len(signatures)
    assert sorted(signatures) == sorted(row[0] for row in table("The kernels"))
    for signature in signatures:
        assert f"{signature.partition('(')[0]}<<<" in source


def test_device_code_stays_in_one_unit():
    with_device_code = [
        name for name, text in SOURCES.items() if re.search(r"__(global|device)__", text)
    ]

    assert with_device_code == ["kernels.hip"]


def test_checks_are_those_documented():
    workloads = re.findall(r'\{"([\w-]+)", \w+\}', SOURCES["workloads.cpp"])
    on_gpu = re.findall(r'checks\.perform\("([\w-]+)"', SOURCES["main.cpp"])
    documented = [name for row in table("What is checked") for name in row[0].split(", ")]

    assert on_gpu == ["identity", "streams"]
    assert documented == ["identity", *workloads, "streams"]


def test_fields_of_the_document_are_those_documented():
    in_source = re.findall(r'\bfield\("(\w+)"', SOURCES["report.cpp"])
    documented = [name for row in table("The document, schema 1") for name in row[0].split(", ")]

    assert documented == in_source


def test_reasons_for_no_gpu_are_documented():
    documented = set(re.findall(r"`((?:kfd|render)-\w+|no-device)`", README))
    literal = set(re.findall(r'"((?:kfd|render)-\w+|no-device)"', SOURCES["nodes.cpp"]))
    endings = set(re.findall(r'kind \+ "(-\w+)"', SOURCES["nodes.cpp"]))

    assert documented == literal | {kind + end for kind in ("kfd", "render") for end in endings}


def test_version_is_the_recipe_s():
    recipe = yaml.safe_load((RECIPE_DIR / "recipe.yaml").read_text())

    assert f'kVersion = "{recipe["version"]}"' in SOURCES["options.hpp"]


def test_host_side_knows_nothing_of_hip():
    knowing = {
        name
        for name, text in SOURCES.items()
        if re.search(r'#include (<hip/|"(hip|gpu|kernels)\.hpp")', text)
    }

    assert knowing == HIP_FILES


def test_host_knows_nothing_of_what_is_expected():
    includes = set(re.findall(r'#include "([^"]+)"', SOURCES["host.cpp"] + SOURCES["host.hpp"]))

    assert includes == {"host.hpp", "backend.hpp"}
