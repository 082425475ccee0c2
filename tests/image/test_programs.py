"""What is in the image works: the compiler compiles, the product finds its libraries."""

from __future__ import annotations

import pytest

from rocbake import elf, target
from rocbake.errors import TargetError

SOURCE = """
#include <hip/hip_runtime.h>
#include <vector>
extern "C" __global__ void add(int* values) { values[threadIdx.x] += 1; }
int main() { std::vector<int> values(3); return static_cast<int>(values.size()) - 3; }
"""


def known_targets(rocm):
    """Every target that this ROCm release is said to know."""
    for row in target.table():
        names = target.parse_target_set([row[0]])
        try:
            target.check_rocm(names, rocm)
        except TargetError:
            continue
        yield row[0]


def test_hipcc_compiles_for_every_target_of_its_release(host, sdk, tmp_path):
    names = list(known_targets(sdk.rocm))
    halves = [names[::2], names[1::2]]
    host.check_output(f"cat > /tmp/add.hip <<'EOF'\n{SOURCE}\nEOF")

    # Two at a time: one compiler works through its targets one by one.
    first, second = (
        f"hipcc {' '.join(f'--offload-arch={name}' for name in half)} "
        f"-fuse-cuid=none -o add{number} add.hip"
        for number, half in enumerate(halves)
    )
    host.check_output(
        f"cd /tmp || exit; {first} & one=$!; {second} & two=$!; wait $one && wait $two"
    )

    assert len(names) > 20
    for number, half in enumerate(halves):
        program = tmp_path / "add"
        program.write_bytes(host.file(f"/tmp/add{number}").content)
        assert {one.target for one in elf.code_objects(program)} == set(half)
        assert host.run(f"/tmp/add{number}").rc == 0


@pytest.fixture(scope="module")
def programs(as_root, subject):
    if not subject.is_recipe:
        pytest.skip("not a recipe's image")
    product = f"/opt/{subject.plan.name}"
    assert as_root.check_output(f"find {product} -type f")
    return as_root.check_output(f"find {product} -type f -perm -0100").splitlines()


def test_every_library_is_found_without_help(as_stranger, programs):
    for program in programs:
        listing = as_stranger.run(f"env -u LD_LIBRARY_PATH ldd {program}").stdout
        assert "not found" not in listing, program


def test_the_product_belongs_to_root(as_root, subject, programs):
    owners = as_root.check_output(f"find /opt/{subject.plan.name} ! -user 0 -o ! -group 0")

    assert owners == ""


def test_programs_are_on_the_path(host, programs):
    for program in programs:
        assert host.exists(program.rpartition("/")[2]), program
