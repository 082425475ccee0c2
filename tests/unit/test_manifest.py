import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from rocbake import digest, manifest
from rocbake.errors import BuildError

TRIPLE = "hipv4-amdgcn-amd-amdhsa--"
CHUNK = 1 << 20


def bundle(*targets):
    """Return an offload bundle with a code object for each target."""
    entries = [
        ("host-x86_64-unknown-linux-gnu-", b""),
        *((TRIPLE + one, b"code") for one in targets),
    ]
    header = struct.pack("<24sQ", b"__CLANG_OFFLOAD_BUNDLE__", len(entries))
    offset = len(header) + sum(24 + len(name) for name, _ in entries)
    table, codes = b"", b""
    for name, code in entries:
        table += struct.pack("<QQQ", offset + len(codes), len(code), len(name)) + name.encode()
        codes += code
    return header + table + codes


@pytest.fixture
def dist(tmp_path):
    folder = tmp_path / "dist"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/kernels.hipfb").write_bytes(bundle("gfx1201"))
    return folder


@pytest.fixture
def make(checkout, dist):
    def make(targets="gfx1201"):
        return manifest.make(dist, checkout.plan(targets))

    return make


def faults(make, targets="gfx1201"):
    with pytest.raises(BuildError, match="may not be exported") as caught:
        make(targets)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_files_are_told_as_they_are(make, dist, checkout):
    (dist / "lib/link").symlink_to("kernels.hipfb")
    (dist / "empty").mkdir()
    (dist / "run").write_text("#!/bin/sh\n")
    (dist / "run").chmod(0o700)
    (dist / "Z").write_text("")
    (dist / "lib/kernels.hipfb").chmod(0o600)

    made = make()

    assert [(one.path, one.mode, one.size, one.link) for one in made.files] == [
        ("Z", "0644", 0, None),
        ("lib/kernels.hipfb", "0644", len(bundle("gfx1201")), None),
        ("lib/link", "0777", 0, "kernels.hipfb"),
        ("run", "0755", 10, None),
    ]
    assert made.files[3].sha256 == digest.sha256_bytes(b"#!/bin/sh\n")
    assert made.files[1].code_objects == {"gfx1201": 1}
    assert made.targets == ("gfx1201",)
    plan = checkout.plan()
    assert (made.key, made.epoch, made.rocm) == (plan.key, plan.epoch, "7.2.4")
    assert json.loads(made.to_json())["schema"] == 1


def test_bytes_do_not_change_with_modes_times_and_place(make, dist, checkout):
    before = make().to_json()

    os.utime(dist / "lib/kernels.hipfb", (1, 1))
    (dist / "lib/kernels.hipfb").chmod(0o664)
    moved = dist.rename(dist.with_name("elsewhere"))

    assert manifest.make(moved, checkout.plan()).to_json() == before


def test_missing_target_is_refused(make):
    assert faults(make, "gfx1100,gfx1201") == [
        "lib/kernels.hipfb: asked for gfx1100,gfx1201, found gfx1201"
    ]


def test_other_target_is_refused(make):
    assert faults(make, "gfx1100") == ["lib/kernels.hipfb: asked for gfx1100, found gfx1201"]


def test_extra_target_is_refused_in_each_file(make, dist):
    (dist / "one").write_bytes(bundle("gfx1201", "gfx1100"))
    (dist / "two").write_bytes(bundle("gfx1100"))

    assert faults(make) == [
        "one: asked for gfx1201, found gfx1100,gfx1201",
        "two: asked for gfx1201, found gfx1100",
    ]


def test_both_targets_are_told(make, dist):
    (dist / "lib/kernels.hipfb").write_bytes(bundle("gfx1100", "gfx1201"))

    assert make("gfx1201,gfx1100").targets == ("gfx1100", "gfx1201")


def test_product_without_code_objects_is_refused(make, dist):
    (dist / "lib/kernels.hipfb").write_text("text")

    assert faults(make) == ["no file holds a code object; asked for gfx1201"]


def test_product_that_needs_no_rocm_needs_no_code_object(make, dist, checkout):
    checkout.edit("recipes/tool/recipe.yaml", "sdk: sdk", "sdk: base")
    checkout.edit("recipes/tool/recipe.yaml", "runtime: small", "runtime: base")
    (dist / "lib/kernels.hipfb").write_text("text")

    assert make().targets == ()


def test_nothing_is_refused(make, dist):
    shutil.rmtree(dist / "lib")

    assert faults(make)[0] == "build.sh left nothing in /rocbake/dist"


@pytest.mark.parametrize(
    "path",
    [
        "/rocbake/build/CMakeFiles/x.o",
        "/rocbake/recipe/src/main.hip",
        "/rocbake/sources",
        "/rocbake/dist/bin",
        "-I/rocbake/build/include",
        "/tmp/main-0a1b2c.o",
        "/tmp/main-gfx1201-0a1b2c3d4e.hipfb",
    ],
)
def test_path_of_the_build_is_refused(make, dist, path):
    (dist / "file").write_bytes(b"\0\xff" + path.encode() + b"\0more")

    assert faults(make) == [f"file: holds a path of the build: {path.removeprefix('-I')}"]


@pytest.mark.parametrize("back", range(1, 24, 4))
def test_path_of_the_build_is_found_across_chunks(make, dist, back):
    (dist / "file").write_bytes(bytes(CHUNK - back) + b"/rocbake/build/main.o\0")

    (fault,) = faults(make)

    assert fault.startswith("file: holds a path of the build: /rocbake/build")


@pytest.mark.parametrize(
    "text",
    ["/rocbake/builder", "/home/rocbake/build", "docker.io/rocbake/build", "/tmp/main.o",
     "/tmp/x-y.o", "https://example.invalid/rocbake/build", "/rocbake"],
)  # fmt: skip
def test_other_path_is_no_fault(make, dist, text):
    (dist / "file").write_text(f'"{text}"')

    make()


def test_fifo_is_refused(make, dist):
    os.mkfifo(dist / "pipe")

    assert faults(make) == ["pipe: neither file, folder nor symbolic link"]


def test_every_fault_is_told_at_once(make, dist):
    os.mkfifo(dist / "pipe")
    (dist / "file").write_text("/rocbake/build/x")
    (dist / "lib/kernels.hipfb").write_bytes(bundle("gfx1100"))

    assert len(faults(make)) == 3


# Real ELF files

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler here")


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elf")

    def compile_library(name, *options):
        source = folder / "one.c"
        source.write_text('#include <stdio.h>\nint one(void) { return puts("one"); }\n')
        path = folder / name
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source, *options], check=True)
        return path

    return compile_library


@needs_compiler
def test_libraries_are_read(make, dist, compile_library):
    inner = compile_library("libinner.so.1", "-Wl,-soname,libinner.so.1")
    outer = compile_library(
        "libouter.so", "-Wl,--no-as-needed", inner, "-Wl,-rpath,$ORIGIN:$ORIGIN/../lib"
    )
    for path in (inner, outer):
        shutil.copy(path, dist / "lib")

    made = make()

    found = {one.path: one.elf for one in made.files if one.elf}
    assert found["lib/libinner.so.1"].soname == "libinner.so.1"
    assert found["lib/libouter.so"].needed == ("libc.so.6", "libinner.so.1")
    assert found["lib/libouter.so"].rpath == ("$ORIGIN", "$ORIGIN/../lib")
    assert found["lib/libouter.so"].versions["GLIBC"].startswith("2.")
    assert made.needed == ("libc.so.6",)
    assert made.versions == found["lib/libouter.so"].versions


@needs_compiler
@pytest.mark.parametrize("tag", ["--enable-new-dtags", "--disable-new-dtags"])
def test_rpath_that_leads_elsewhere_is_refused(make, dist, compile_library, tag):
    dummy = b"$ORIGIN/0123456789"
    path = compile_library("libone.so", f"-Wl,{tag}", f"-Wl,-rpath,{dummy.decode()}")
    content = path.read_bytes()
    assert content.count(dummy) == 1

    for rpath, wrong in (
        (b"/opt/rocm/lib", "/opt/rocm/lib"),
        (b"lib", "lib"),
        (b"$ORIGIN/../lib", "$ORIGIN/../lib"),
        (b"$ORIGINAL/x", "$ORIGINAL/x"),
        (b"$ORIGIN:/opt", "/opt"),
    ):
        changed = content.replace(dummy, rpath.ljust(len(dummy), b"\0"))
        (dist / "libone.so").write_bytes(changed)
        assert faults(make) == [
            f"libone.so: RPATH {wrong!r} leads out of the archive, or is not told from $ORIGIN"
        ]
    for rpath in (b"$ORIGIN", b"${ORIGIN}/lib"):
        changed = content.replace(dummy, rpath.ljust(len(dummy), b"\0"))
        (dist / "libone.so").write_bytes(changed)
        assert make()


def test_program_of_this_machine_is_read(make, dist):
    shutil.copy(Path("/bin/sh").resolve(), dist / "sh")

    made = make()

    (entry,) = [one for one in made.files if one.path == "sh"]
    assert entry.elf
    assert "libc.so.6" in entry.elf.needed
    assert "libc.so.6" in made.needed
