"""What of ROCm a product brings along: for its target set alone, and as the archive has it."""

from __future__ import annotations

import subprocess

import pytest

from rocbake import blas, elf, oci, target, unpack

# What an image of one target may weigh, in bytes: unpacked, and to pull.
UNPACKED, PACKED = 1_600_000_000, 500_000_000
_ELF = b"\x7fELF"


@pytest.fixture(scope="module")
def layer(subject):
    """The number of the layer that is copied from the SDK."""
    found = [
        index
        for index, instruction in enumerate(subject.layout.layers_history)
        if instruction.startswith("COPY /added/ ")
    ]
    if not found:
        pytest.skip("an image without libraries of the SDK")
    (index,) = found
    return index


@pytest.fixture(scope="module")
def brought(subject, layer):
    """What is copied from the SDK, by path, and its digest."""
    return {
        member.name.removeprefix("./"): content
        for member, content in oci.members(subject.layout, layer)
        if content
    }


def processors(subject):
    return {name.partition(":")[0] for name in subject.plan.targets}


def test_kernel_files_are_those_of_the_target_set(subject, brought):
    coverage = blas.coverage(brought)
    known = coverage.rocblas | coverage.hipblaslt

    assert coverage.rocblas
    assert known <= processors(subject)


def test_libraries_have_code_for_the_target_set_alone(subject, layer, tmp_path):
    wanted = set(subject.plan.targets) | processors(subject)
    served = wanted | {
        one.processor.generic
        for one in target.parse_target_set([",".join(subject.plan.targets)]).targets
        if one.processor.generic
    }
    looked_at = 0
    with subject.layout.open_layer(layer) as tar:
        for member in tar:
            if not member.isreg() or ".so" not in member.name.rpartition("/")[2]:
                continue
            path = tmp_path / "library"
            path.write_bytes(tar.extractfile(member).read())
            assert {one.target for one in elf.code_objects(path)} <= served, member.name
            looked_at += 1

    assert looked_at


def test_they_are_those_of_the_bundled_archive(brought, bundled):
    assert brought == {path: bundled.get(path) for path in brought}


def test_nothing_of_a_compiler_is_there(subject, tree, runtime):
    if subject.has_files:
        pytest.skip("AMD's ROCm comes with its compiler")
    names = {path.rpartition("/")[2] for path, member in tree.items() if member.mode & 0o100}
    names -= {path.rpartition("/")[2] for path, member in tree.items() if member.isdir()}

    assert not names & {"hipcc", "clang", "clang++", "gcc", "g++", "cmake", "ninja", "ccache"}


@pytest.mark.usefixtures("brought")
def test_an_image_of_one_target_is_slim(subject, tree):
    if len(subject.plan.targets) > 1:
        pytest.skip("an image of several targets")
    unpacked = sum(member.size for member in tree.values() if member.isreg())

    assert unpacked <= UNPACKED
    assert subject.layout.size <= PACKED


@pytest.mark.usefixtures("layer")
def test_programs_of_the_bundled_archive_run_on_this_very_system(subject, tmp_path):
    (packed,) = subject.layout.folder.parent.glob("*-bundled.tar.zst")
    unpack.unpack(packed, tmp_path / "unpacked")
    (root,) = (tmp_path / "unpacked").iterdir()
    programs = [path for path in sorted((root / "bin").iterdir()) if path.suffix != ".so"]
    (tmp_path / "link").symlink_to(programs[0])

    for program in [*programs, tmp_path / "link"]:
        ended = subprocess.run(
            [program, "--help"], env={}, cwd="/", capture_output=True, text=True, check=False
        )
        assert "usage: " in ended.stdout + ended.stderr, f"{program}: {ended.stderr}"
        for name in ("version `GLIBC", "cannot open shared object"):
            assert name not in ended.stderr
    assert programs
