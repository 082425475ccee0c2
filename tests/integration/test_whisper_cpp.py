"""whisper-cpp's path up to the long compile: container, preflight, configuration, some objects.

The whole build takes half an hour; `invoke build --recipe whisper-cpp` makes it before a release.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

import pytest

from rocbake import bake, engine, fetch, lock, mirror, plan, project, rootfs, store, target
from rocbake.cache import Cache
from rocbake.errors import BuildError

pytestmark = pytest.mark.timeout(1800)

# Of each kind: a library, one for a kind of processor, a program's object, device code.
DEVICE = ("scale", "acc", "argmax")
ONLY = [
    "ggml/src/libggml-base.so",
    "bin/libggml-cpu-haswell.so",
    "src/CMakeFiles/whisper.dir/whisper.cpp.o",
    "examples/cli/CMakeFiles/whisper-cli.dir/cli.cpp.o",
    *(f"ggml/src/ggml-hip/CMakeFiles/ggml-hip.dir/__/ggml-cuda/{name}.cu.o" for name in DEVICE),
]


@pytest.fixture(scope="module")
def loaded():
    return project.load()


def resolved(loaded, *targets):
    recipe = loaded.recipes["whisper-cpp"]
    locks, recipe_lock = lock.require_fresh(recipe.containers, recipe)
    return plan.make(recipe, target.parse_target_set(targets), locks=locks, recipe_lock=recipe_lock)


@pytest.fixture(scope="module")
def in_sdk(loaded, tmp_path_factory):
    """Run a script where build.sh would run; give the log."""

    def run(script, *targets, **arguments):
        made = resolved(loaded, *targets)
        cache, work = Cache(), tmp_path_factory.mktemp("bake") / "work"
        work.mkdir()
        files = fetch.fetch(made.inputs, cache=cache, mirrors=mirror.load(), snapshot=made.snapshot)
        kept, log_path = cache.root / store.ROOTFS, work / "log"
        tar = rootfs.find(made.layers[0], kept)
        if tar is None:
            tar = rootfs.keep(made.layers[0], kept, files=files, log_path=log_path)
        bake.lay_out(made, loaded, work, files=files, rootfs=tar)
        path = work / "recipes" / made.name / "try.sh"
        path.write_text(f"#!/bin/bash\nset -eu\n{script}\n")
        path.chmod(0o755)
        # What BuildKit has run before it would not run again, and say nothing.
        described = bake.describe(made, [], fresh=f" {uuid.uuid4()}")
        for layer in made.layers:
            del described["target"][layer.name]["no-cache"]
        one = described["target"]["dist"]
        text = (loaded.root / "recipes" / "Dockerfile").read_text()
        one["dockerfile-inline"] = text.replace(
            "/rocbake/recipe/build.sh", "/rocbake/recipe/try.sh"
        )
        one["target"], one["output"] = "build", ["type=cacheonly"]
        one["args"] |= arguments
        (work / "bake.json").write_text(json.dumps(described))
        engine.bake(work / "bake.json", ["dist"], log_path=log_path)
        return log_path.read_text()

    return run


@pytest.fixture(scope="module")
def log(in_sdk):
    return in_sdk(f"ROCBAKE_ONLY='{' '.join(ONLY)}' /rocbake/recipe/build.sh", "gfx1201")


def test_what_is_there_is_tried_before_the_long_build(log):
    first = log.index("preflight: ")

    assert "clang++ compiles for gfx1201 and for the processor" in log
    assert first < log.index("Building HIP object")


def test_host_and_device_code_compile(log):
    for name in ("libggml-base.so", "libggml-cpu-haswell.so", "whisper.cpp.o", "cli.cpp.o"):
        assert name in log
    for name in DEVICE:
        assert f"ggml-cuda/{name}.cu.o" in log
    assert "compiled in " in log


def test_option_that_means_nothing_stops_the_build(in_sdk):
    with pytest.raises(BuildError, match="option vmm is neither on nor off"):
        in_sdk("/rocbake/recipe/build.sh", "gfx1201", OPTIONS="graphs=on vmm=perhaps")


THIN = """
cd /rocbake/build && libraries=/usr/lib/x86_64-linux-gnu
cp $libraries/librocblas.so.5 $libraries/librocsolver.so.0 .
first_bundle() {
    python3 -B - "$1" <<'EOF'
import struct, sys
data = open("librocblas.so.5", "rb").read()
start = data.index(b"CCOB")
(size,) = struct.unpack_from("<Q", data, start + 8)
open(sys.argv[1], "wb").write(data[start : start + size])
EOF
}
first_bundle before
/rocbake/tools/thin.py --targets gfx1201 librocblas.so.5 librocsolver.so.0
first_bundle after
bundler=$(hipconfig --hipclangpath)/clang-offload-bundler
target=hipv4-amdgcn-amd-amdhsa--gfx1201
for one in before after; do
    $bundler --unbundle --type=o --targets=$target --input=$one --output=$one.code
done
cmp before.code after.code && echo "the same code"
ls -l --dereference librocblas.so.5 librocsolver.so.0
export LD_LIBRARY_PATH=$PWD
python3 -B - <<'EOF'
import ctypes
blas = ctypes.CDLL("librocblas.so.5", ctypes.RTLD_GLOBAL)
solver = ctypes.CDLL("librocsolver.so.0")
size = ctypes.c_size_t()
assert blas.rocblas_get_version_string_size(ctypes.byref(size)) == 0
text = ctypes.create_string_buffer(size.value)
assert blas.rocblas_get_version_string(text, size) == 0
assert solver.rocsolver_get_version_string_size(ctypes.byref(size)) == 0
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/librocs" in line}
assert mapped == {"/rocbake/build/librocsolver.so.0"}, mapped
print("called", text.value.decode())
EOF
before=$(sha256sum librocblas.so.5 librocsolver.so.0)
/rocbake/tools/thin.py --targets gfx1201 librocblas.so.5 librocsolver.so.0
test "$before" = "$(sha256sum librocblas.so.5 librocsolver.so.0)" && echo "the same bytes"
"""


def test_libraries_of_rocm_work_without_the_code_of_other_cards(in_sdk):
    log = in_sdk(THIN, "gfx1201")

    sizes = {Path(name).name: int(size) for size, name in
             re.findall(r"root root +([0-9]+) .*?(\S+\.so\.[0-9])\n", log)}  # fmt: skip
    for said in ("the same code", "called 5.2.0", "the same bytes"):
        assert said in log
    assert sizes["librocblas.so.5"] < 50_000_000
    assert sizes["librocsolver.so.0"] < 100_000_000


@pytest.mark.parametrize(
    ("targets", "known"),
    [("gfx1100,gfx1201", ["gfx1100", "gfx1201"]), ("rdna4", ["gfx1200", "gfx1201"])],
)
def test_device_code_is_for_each_target_of_a_set(in_sdk, targets, known):
    one = f"ggml/src/ggml-hip/CMakeFiles/ggml-hip.dir/__/ggml-cuda/{DEVICE[0]}.cu.o"
    script = f"""
    ROCBAKE_ONLY={one} /rocbake/recipe/build.sh
    cd /rocbake/build/tree && $(hipconfig --hipclangpath)/llvm-objdump --offloading {one}
    """

    log = in_sdk(script, targets)

    assert sorted(re.findall(r"Extracting offload bundle: .*--(gfx[0-9a-f]+)", log)) == known


def test_build_from_nothing_leaves_compiled_objects_to_others(in_sdk):
    in_sdk("echo here > /rocbake/ccache/mark", "gfx1201")

    assert "here still" in in_sdk("echo $(cat /rocbake/ccache/mark) still", "gfx1201")
