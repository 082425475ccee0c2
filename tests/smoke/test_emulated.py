"""Kernels out of the built archives, on the emulator: `pytest -m emulate tests/smoke`.

What is right here was computed by the machine code, and by no GPU: see docs/emulator.md.
"""

import os
import shutil
from pathlib import Path

import pytest

from rocbake import codeobject, document, elf, emulate
from rocbake.recipe import RecipeFile

pytestmark = pytest.mark.emulate

ROOT = Path(__file__).parents[2]
TARGETS = ("gfx1201", "gfx1100")
TESTS = [
    (path.parent.name, test)
    for path in sorted(ROOT.glob("recipes/*/recipe.yaml"))
    for test in document.read(path, RecipeFile).value.smoke.kernels
]
# VOP2 of gfx11 and gfx12: opcode 37 in bits 25 to 30; sources 129 to 192 are the numbers 1 to 64.
ADD_ONE = 37 << 25 | 129
SOURCE = 0x1FF


@pytest.fixture(scope="session")
def checkout():
    if "ROCBAKE_EMULATOR" not in os.environ:
        pytest.skip(emulate.unavailable(None))
    path = Path(os.environ["ROCBAKE_EMULATOR"])
    # Who names an emulator wants it used: that it cannot be is no reason to skip.
    assert emulate.unavailable(path) is None
    return path


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """Give the one folder of the newest archive of a recipe for a target."""
    known = {}

    def unpack(recipe, target):
        found = list(ROOT.glob(f"artifacts/{recipe}/{target}-*/*.tar.zst"))
        if not found:
            pytest.skip(f"no artifact: invoke build --recipe {recipe} --target {target}")
        path = max(found, key=lambda one: one.stat().st_mtime)
        if path not in known:
            destination = tmp_path_factory.mktemp(recipe) / "unpacked"
            unpack.unpack(path, destination)
            (known[path],) = destination.iterdir()
        return known[path]

    return unpack


def kernel_test(name):
    return next(
        (test for recipe, test in TESTS if (recipe, test.name) == ("hip-probe", name)), None
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("recipe", "test"), TESTS, ids=[f"{a}-{b.name}" for a, b in TESTS])
def test_a_kernel_gives_the_right_result(checkout, unpacked, recipe, test, target):
    (result,) = emulate.emulate([test], unpacked(recipe, target), target, checkout=checkout)

    assert result.ok is True, result.detail
    assert result.instructions > 0


def test_hip_probe_lists_its_kernels():
    assert {test.symbol for recipe, test in TESTS if recipe == "hip-probe"} == {
        "rocbake_increment",
        "rocbake_matmul",
        "rocbake_reduce",
    }


def add_two(file, target):
    """Change the one instruction of rocbake_increment that adds 1: it adds 2 instead."""
    content = bytearray(file.read_bytes())
    ((_, code),) = elf.extract(file, {target})
    program = codeobject.read(code, target)
    start = next(one.address for one in program.kernels if one.name == "rocbake_increment")
    others = [one.address for one in program.kernels if one.address > start]
    text = next(one for one in program.segments if 0 <= start - one.address < one.size)
    begin, end = start - text.address, min(others, default=text.address + text.size) - text.address
    words = [
        at
        for at in range(begin, end, 4)
        if int.from_bytes(text.data[at : at + 4], "little") & (0x7F << 25 | SOURCE) == ADD_ONE
    ]
    assert len(words) == 1, "the compiler writes something else now"
    assert content.count(text.data) == 1
    content[content.index(text.data) + words[0]] += 1
    file.write_bytes(content)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_that_computes_something_else_fails(checkout, unpacked, tmp_path, target):
    test = kernel_test("increment")
    root = tmp_path / "changed"
    shutil.copytree(unpacked("hip-probe", target), root)
    add_two(root / test.file, target)

    (result,) = emulate.emulate([test], root, target, checkout=checkout)

    assert result.ok is False
    assert result.detail == "values[0] is 3, expected 2; 3 of 3 elements differ"


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_that_writes_outside_of_its_buffer_fails(checkout, unpacked, target):
    test = kernel_test("increment")
    values, count = test.arguments
    too_many = test.model_copy(
        update={"arguments": (values, count.model_copy(update={"value": 4}))}
    )

    (result,) = emulate.emulate(
        [too_many], unpacked("hip-probe", target), target, checkout=checkout
    )

    assert result.ok is False
    assert result.detail == "the kernel wrote after the buffer values"


@pytest.mark.parametrize("target", TARGETS)
def test_a_result_that_is_not_the_expected_one_fails(checkout, unpacked, target):
    test = kernel_test("matmul")
    (expect,) = test.expect
    wrong = test.model_copy(
        update={"expect": (expect.model_copy(update={"equals": f"{expect.equals} + 0.0001"}),)}
    )

    (result,) = emulate.emulate([wrong], unpacked("hip-probe", target), target, checkout=checkout)

    assert result.ok is False
    assert "1440 of 1440 elements differ" in result.detail
