"""The launch of kernels, on an emulator that stands in: it does in Python what a test tells it.

What is real is everything else: the code objects, the worker in a process of its own, memory.
"""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocbake import codeobject, emulate, emulator_worker
from rocbake.errors import TargetError
from rocbake.kernel import KernelTest

DATA = Path(__file__).parent.parent / "data" / "emulate"

EMULATOR = """
import ctypes, json, os, struct, sys, time
from pathlib import Path
from types import SimpleNamespace

class MUBUF: pass
class SOP1: pass

ir3 = SimpleNamespace(MUBUF=MUBUF)
UOp = SimpleNamespace(sink=lambda *parts: ("sink", *parts))
_INST_HANDLERS = {SOP1: lambda instruction, context: ("known", instruction.op.name)}
_op_name = lambda instruction: instruction.op.name
_get_ftz_lib = lambda: (None, 0)

executed = []
def _decode_at(pc, arch):
    return (SimpleNamespace(), SimpleNamespace(fxn=executed.append)), pc

def execute(count):
    for number in range(count):
        (_, runtime), _ = _decode_at(number, "")
        runtime.fxn(number)

def peek(address, form):
    return struct.unpack(form, ctypes.string_at(address, struct.calcsize(form)))

def poke(address, form, *values):
    ctypes.memmove(address, struct.pack(form, *values), struct.calcsize(form))

def run_asm(lib, lib_sz, gx, gy, gz, lx, ly, lz, args_ptr, rsrc2, scratch_size, arch, user_data):
    seen = dict(grid=[gx, gy, gz], block=[lx, ly, lz], rsrc2=rsrc2, scratch=scratch_size, arch=arch,
                registers=user_data, code=ctypes.string_at(lib, 8).hex(), size=lib_sz,
                args=args_ptr,
                kernarg=ctypes.string_at(args_ptr, 20).hex(), environment=sorted(os.environ),
                path=sys.path[0], cwd=os.getcwd(), home=os.environ["HOME"], cc=os.environ["CC"])
    def see(**more):
        Path(__file__).parents[3].joinpath("seen.json").write_text(json.dumps(seen | more))
    see()
    BODY
"""

# What the kernel `add` does, word for word.
ADD = """
    a, b, count = peek(args_ptr, "<QQi")
    for i in range(count):
        poke(b + 4 * i, "<i", peek(a + 4 * i, "<i")[0] + 1)
    execute(7)
"""


@pytest.fixture
def emulator(tmp_path, monkeypatch):
    """Give a checkout whose emulator does what it is told, and what it has seen."""
    monkeypatch.setattr(emulate.tempfile, "tempdir", str(tmp_path))
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "clang").write_text("#!/bin/sh\n")
    (programs / "clang").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    checkout = tmp_path / "checkout"
    for name, text in {
        "test/__init__.py": "",
        "test/mockgpu/amd/emu.py": "",
        "tinygrad/__init__.py": "",
        "tinygrad/renderer/amd.py": "_load_formats = lambda made={'rdna3': []}: made\n",
    }.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)

    def does(body):
        text = EMULATOR.replace("    BODY\n", body)
        (checkout / "test/mockgpu/amd/emu.py").write_text(text)

    does(ADD)
    return SimpleNamespace(
        checkout=checkout, does=does, seen=lambda: json.loads((checkout / "seen.json").read_text())
    )


def buffer(name, values, kind="i32"):
    return {"name": name, "type": kind, "values": values}


def number(name, value, kind="i32"):
    return {"name": name, "type": kind, "value": value}


ADDITION = [buffer("a", [1, 2, 3]), buffer("b", [0, 0, 0]), number("count", 3)]


def kernel(symbol="add", arguments=ADDITION, target="gfx1201", **changes):
    wish = {
        "name": symbol.replace("_", "-"),
        "file": f"{target}.co",
        "symbol": symbol,
        "grid": [1, 1, 1],
        "block": [32, 1, 1],
        "arguments": arguments,
        "expect": [{"argument": "b", "equals": "a + 1"}],
    }
    return KernelTest.model_validate(wish | changes)


def run(emulator, *tests, target="gfx1201", root=DATA):
    return emulate.emulate(tests, root, target, checkout=emulator.checkout)


def detail(emulator, *tests, ok=False, **options):
    (result,) = run(emulator, *tests, **options)
    assert result.ok is ok
    return result.detail


def changed(tmp_path, offset, form, *values, target="gfx1201"):
    """Return a folder with a code object that was changed."""
    data = bytearray((DATA / f"{target}.co").read_bytes())
    struct.pack_into(form, data, offset, *values)
    folder = tmp_path / "changed"
    folder.mkdir()
    (folder / f"{target}.co").write_bytes(data)
    return folder


def descriptor(name, target="gfx1201"):
    """Return where the descriptor of a kernel stands in the file, which is where it is loaded."""
    data = (DATA / f"{target}.co").read_bytes()
    program = codeobject.read(data, "it")
    found = next(one for one in program.kernels if one.name == name)
    return found.address - found.descriptor.entry_offset


# Verdicts


def test_a_kernel_that_does_what_it_must_is_right(emulator):
    (result,) = run(emulator, kernel())

    assert (result.name, result.target, result.ok) == ("add", "gfx1201", True)
    assert result.detail == "b: exact"
    assert result.instructions == 7
    assert 0 < result.seconds < 60


def test_the_detail_says_how_exact_it_is(emulator):
    expect = [{"argument": "b", "equals": "a + 1", "within": 0.5}]

    assert detail(emulator, kernel(expect=expect), ok=True) == "b: within 0.5"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (ADD.replace("+ 1", "+ 2"), "b[0] is 3, expected 2; 3 of 3 elements differ"),
        ("\n    execute(1)\n", "b[0] is 0, expected 2; 3 of 3 elements differ"),
        (ADD + "    poke(b + 12, '<B', 1)\n", "the kernel wrote after the buffer b"),
        (ADD + "    poke(b - 1, '<B', 1)\n", "the kernel wrote before the buffer b"),
        (ADD + "    poke(a + 4096 + 11, '<B', 1)\n", "the kernel wrote after the buffer a"),
        (
            ADD + "    poke(a + 4, '<i', 9)\n",
            "a[1] is 9, expected 2; 1 of 3 elements differ; nothing was to change there",
        ),
        (
            "\n    raise RuntimeError('[emu] no such\\ninstruction')\n",
            "the emulator failed with exit code 1: instruction",
        ),
        (
            "\n    os.kill(os.getpid(), 11)\n",
            "the emulator ended with signal 11, Segmentation fault: the kernel reads or writes",
        ),
        ("\n    os._exit(0)\n", "the emulator ended with exit code 0, but without a result"),
        ("\n    os._exit(3)\n", "the emulator failed with exit code 3: it says nothing"),
    ],
)
def test_what_goes_wrong_is_no_pass(emulator, body, told):
    emulator.does(body)

    assert detail(emulator, kernel()).startswith(told)


def test_a_kernel_that_does_not_end_is_stopped(emulator, monkeypatch):
    monkeypatch.setattr(emulate, "_SECONDS", 0.5)
    emulator.does("\n    time.sleep(60)\n")

    assert "took more than 0.5 s and was stopped" in detail(emulator, kernel())


def test_every_test_gets_its_own_verdict_in_order(emulator):
    wrong = kernel(expect=[{"argument": "b", "equals": "a"}])

    results = run(emulator, kernel(), wrong, kernel(symbol="nothing"), kernel())

    assert [one.ok for one in results] == [True, False, False, True]


def test_nothing_is_left_behind(emulator, tmp_path):
    before = sorted(tmp_path.iterdir())

    run(emulator, kernel())

    assert sorted(tmp_path.iterdir()) == before
    assert not list(emulator.checkout.rglob("__pycache__"))


# The launch


def test_the_launch_is_as_the_kernel_wants_it(emulator):
    run(emulator, kernel(grid=[5, 2, 1], block=[8, 4, 1]))

    seen = emulator.seen()
    program = codeobject.read((DATA / "gfx1201.co").read_bytes(), "it")
    add = program.kernels[0]
    text = program.segments[1]
    assert seen["code"] == text.data[:8].hex()
    assert seen["size"] == program.size - add.address
    assert (seen["grid"], seen["block"]) == ([5, 2, 1], [8, 4, 1])
    assert seen["arch"] == "rdna4"
    assert (seen["rsrc2"], seen["scratch"]) == (add.descriptor.resource2, 0)
    low, high = seen["registers"]
    assert low | high << 32 == seen["args"]


def test_lds_and_scratch_are_given(emulator):
    arguments = [buffer("a", [1], "f32"), buffer("b", [0], "f32"), number("power", 2, "u8")]
    run(emulator, kernel(symbol="turn", arguments=arguments))

    seen = emulator.seen()
    assert seen["scratch"] == 1216
    assert seen["rsrc2"] >> 15 & 0x1FF == 1  # 256 bytes, in granules of 512
    assert seen["kernarg"][32:34] == "02"


def test_hidden_arguments_are_given(emulator):
    emulator.does("\n    see(hidden=ctypes.string_at(args_ptr + 24, 256).hex())\n")
    run(emulator, kernel(grid=[5, 2, 7], block=[8, 4, 1]))

    hidden = bytes.fromhex(emulator.seen()["hidden"])
    # Block counts, group sizes, remainders; at 40 the global offsets, at 64 the dimensions.
    assert struct.unpack_from("<III6H", hidden) == (5, 2, 7, 8, 4, 1, 0, 0, 0)
    assert struct.unpack_from("<qqqH", hidden, 40) == (0, 0, 0, 3)
    assert not any(hidden[66:])


def test_a_struct_is_passed_by_value(emulator):
    arguments = [buffer("b", [0]), buffer("three", [5, 6, 7], "u32")]
    run(emulator, kernel("by_value", arguments, expect=[{"argument": "b", "equals": "47"}]))

    assert bytes.fromhex(emulator.seen()["kernarg"])[8:20] == struct.pack("<III", 5, 6, 7)


def test_relocations_are_written(emulator):
    program = codeobject.read((DATA / "gfx1201.co").read_bytes(), "it")
    (relocation,) = program.relocations
    through = next(one for one in program.kernels if one.name == "through")
    offset = relocation.address - through.address
    emulator.does(f"\n    see(pointer=peek(lib + {offset}, '<Q')[0] - lib)\n")
    expect = [{"argument": "b", "equals": "0"}]

    run(emulator, kernel("through", [buffer("b", [0])], expect=expect))

    assert emulator.seen()["pointer"] == relocation.points_to - through.address


def test_the_dispatch_packet_is_given_to_a_kernel_that_asks_for_it(emulator, tmp_path):
    # Properties: the packet, the queue and the kernarg pointer; six user registers.
    at = descriptor("add")
    root = changed(tmp_path, at + 52, "<IH", 6 << 1, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 10)
    emulator.does(
        "\n    packet = user_data[0] | user_data[1] << 32\n"
        "    see(packet=peek(packet, '<HHHHHHIIIIIQQ'))\n"
    )

    run(emulator, kernel(grid=[5, 2, 1], block=[8, 4, 1]), root=root)

    seen = emulator.seen()
    assert seen["packet"] == [0, 3, 8, 4, 1, 0, 40, 8, 1, 0, 0, 0, seen["args"]]
    assert seen["registers"][2:4] == [0, 0]
    assert seen["registers"][4] | seen["registers"][5] << 32 == seen["args"]


def test_registers_that_the_kernel_has_besides_are_zero(emulator, tmp_path):
    root = changed(tmp_path, descriptor("add") + 52, "<I", 16 << 1)

    run(emulator, kernel(), root=root)

    assert emulator.seen()["registers"][2:] == [0] * 14


def test_the_worker_sees_nothing_of_the_user(emulator, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("DEBUG", "7")
    monkeypatch.setenv("CC", "gcc")
    run(emulator, kernel())

    seen = emulator.seen()
    assert {"PATH", "PYTHONPATH", "HOME", "CC", "DEV"} <= set(seen["environment"])
    assert "DEBUG" not in seen["environment"]
    assert seen["path"] == str(emulator.checkout)
    assert seen["home"] == seen["cwd"]
    assert seen["cc"].endswith("programs/clang")


@pytest.mark.parametrize(
    ("denormals", "library", "ok"), [(3, None, True), (0, None, False), (0, "there", True)]
)
def test_denormal_numbers_are_as_the_kernel_wants_them(emulator, tmp_path, denormals, library, ok):
    at = descriptor("add") + 48
    data = (DATA / "gfx1201.co").read_bytes()
    resource1 = struct.unpack_from("<I", data, at)[0] & ~(3 << 16) | denormals << 16
    root = changed(tmp_path, at, "<I", resource1)
    path = emulator.checkout / "test/mockgpu/amd/emu.py"
    path.write_text(path.read_text().replace("(None, 0)", f"({library!r}, 0)"))

    told = detail(emulator, kernel(), ok=ok, root=root)

    assert ok or "cannot take denormal numbers for zero" in told


# What is not run


@pytest.mark.parametrize("target", ["gfx906", "gfx1030", "gfx1250", "gfx90a:xnack+"])
def test_a_target_that_the_emulator_does_not_know_is_no_pass(emulator, target):
    told = detail(emulator, kernel(), ok=None, target=target)

    assert told.startswith(f"the emulator does not know {target}; it knows gfx1100, gfx1101,")


def test_waves_that_the_emulator_does_not_have_are_no_pass(emulator, monkeypatch):
    monkeypatch.setitem(emulate._ARCHITECTURES, "gfx942", "rdna3")
    test = kernel(target="gfx942")

    told = detail(emulator, test, ok=None, target="gfx942")

    assert told.startswith("add runs in waves of 64; of this instruction set, the emulator knows")


def test_scratch_that_waves_would_share_is_no_pass(emulator):
    arguments = [buffer("a", [1], "f32"), buffer("b", [0], "f32"), number("power", 2, "u8")]

    told = detail(emulator, kernel("turn", arguments, block=[33, 1, 1]), ok=None)

    assert told.startswith("turn has 1216 bytes of scratch for each work-item, and the emulator")


def test_more_lds_than_there_is_is_no_pass(emulator, monkeypatch):
    monkeypatch.setattr(emulate, "_LARGEST_LDS", 128)
    arguments = [buffer("a", [1], "f32"), buffer("b", [0], "f32"), number("power", 2, "u8")]

    assert "needs 256 bytes of LDS" in detail(emulator, kernel("turn", arguments), ok=None)


@pytest.mark.parametrize("bit", [0, 5])
def test_registers_that_cannot_be_filled_are_no_pass(emulator, tmp_path, bit):
    root = changed(tmp_path, descriptor("add") + 56, "<H", 1 << bit | 1 << 3 | 1 << 10)

    assert "which the emulator has not" in detail(emulator, kernel(), ok=None, root=root)


def test_without_an_emulator_nothing_passes(emulator, tmp_path):
    (emulator.checkout / "tinygrad/__init__.py").unlink()

    results = run(emulator, kernel(), kernel())

    assert [one.ok for one in results] == [None, None]
    assert results[0].detail == emulate.unavailable(emulator.checkout)


def test_why_there_is_no_emulator_is_told(emulator, tmp_path, monkeypatch):
    assert emulate.unavailable(emulator.checkout) is None
    assert "ROCBAKE_EMULATOR names no checkout" in emulate.unavailable(None)
    assert "there is no test/mockgpu/amd/emu.py" in emulate.unavailable(tmp_path / "nowhere")

    monkeypatch.setenv("PATH", str(tmp_path))

    assert "clang, which is not on PATH" in emulate.unavailable(emulator.checkout)


# What does not fit


@pytest.mark.parametrize(
    ("test", "told"),
    [
        (kernel(file="bin/nothing"), f"there is no {DATA}/bin/nothing"),
        (kernel(file="README.md"), "no kernel add in its 0 code objects for gfx1201"),
        (kernel(file="gfx942.co"), "no kernel add in its 0 code objects for gfx1201"),
        (kernel("subtract"), "no kernel subtract in its 1 code objects for gfx1201"),
        (kernel("ad"), "no kernel ad in its 1 code objects for gfx1201"),
        (kernel(arguments=ADDITION[:2]), "add takes 3 arguments, got 2"),
        (
            kernel(arguments=[*ADDITION[:2], number("count", 3, "i64")]),
            "add: argument 2 is by_value of 4 bytes, got a value of 8 bytes in count",
        ),
        (
            kernel(arguments=[number("a", 3, "i64"), *ADDITION[1:]]),
            "add: argument 0 is global_buffer of 8 bytes, got a value of 8 bytes in a",
        ),
        (
            kernel(arguments=[*ADDITION[:2], buffer("count", [1, 2])]),
            "add: argument 2 is by_value of 4 bytes, got values or a buffer of 8 bytes in count",
        ),
        (
            kernel("turn", block=[128, 1, 1]),
            "turn was compiled for at most 64 work-items in a work-group, got 128",
        ),
        (kernel(grid=[1 << 27, 1, 1]), "a grid of more than 2^32 - 1 work-items in one dimension"),
        (
            kernel(
                arguments=[{"name": "a", "type": "u8", "fill": "i - 1", "count": 3}, *ADDITION[1:]]
            ),
            "add: fill of a: expected a whole number from 0 to 255; got -1",
        ),
    ],
)
def test_a_test_that_does_not_fit_its_kernel_fails(emulator, test, told):
    assert detail(emulator, test).endswith(told)


def test_a_damaged_code_object_fails(emulator, tmp_path):
    root = changed(tmp_path, 40, "<Q", 1 << 40)

    assert "damaged at byte" in detail(emulator, kernel(), root=root)


# Commits


@pytest.mark.parametrize("is_right", [True, False])
def test_another_commit_than_the_one_tried_is_told(emulator, capsys, monkeypatch, is_right):
    git = ["git", "-C", emulator.checkout, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    if is_right:
        monkeypatch.setattr(emulate, "COMMIT", commit.stdout.strip())

    run(emulator, kernel())

    warning = capsys.readouterr().err
    assert (f"is at commit {commit.stdout.strip()}; tried was " in warning) is not is_right
    assert bool(warning) is not is_right


def test_a_checkout_without_a_commit_is_told(emulator, capsys):
    run(emulator, kernel())

    assert f"does not tell its commit; tried was {emulate.COMMIT}" in capsys.readouterr().err


# The worker's changes to the emulator


def emulator_module():
    module = SimpleNamespace()
    exec(EMULATOR.replace("    BODY\n", "\n    pass\n"), vars(module))
    module._split64 = lambda value: (value & 0xFFFFFFFF, value >> 32)
    module._c = int
    module.dtypes = SimpleNamespace(uint64=None)
    module.UOp.const = lambda value, _: value
    return module


def instruction(kind, name):
    made = kind()
    made.op = SimpleNamespace(name=name)
    return made


@pytest.fixture
def handlers(monkeypatch):
    """Give the handlers of an emulator after the worker has changed them."""
    formats = {"rdna3": []}
    monkeypatch.setitem(
        sys.modules, "tinygrad.renderer.amd", SimpleNamespace(_load_formats=lambda: formats)
    )
    module = emulator_module()
    emulator_worker._pass_over(module, frozenset({"BUFFER_GL0_INV"}))
    assert formats == {"rdna3": [module.MUBUF]}
    return module


def test_cache_operations_are_passed_over_and_nothing_else(handlers):
    context = SimpleNamespace(inc_pc=lambda: ["next"])
    compile_buffer = handlers._INST_HANDLERS[handlers.MUBUF]
    compile_scalar = handlers._INST_HANDLERS[handlers.SOP1]

    passed = compile_buffer(instruction(handlers.MUBUF, "BUFFER_GL0_INV"), context)
    known = compile_scalar(instruction(handlers.SOP1, "S_MOV_B32"), context)

    assert passed == ("sink", "next")
    assert known == ("known", "S_MOV_B32")
    with pytest.raises(NotImplementedError, match="the emulator does not know BUFFER_LOAD_B32"):
        compile_buffer(instruction(handlers.MUBUF, "BUFFER_LOAD_B32"), context)


def test_the_address_of_the_next_instruction_is_given(handlers):
    class GetPc(handlers.SOP1):
        sdst = "field"

        def size(self):
            return 4

    context = SimpleNamespace(
        inc_pc=lambda: ["next"],
        inst_field=lambda field: 6 if field == "field" else None,
        rpc=lambda: (1 << 40) - 4,
        wsgpr_dyn=lambda register, value: (register, value),
    )

    made = handlers._INST_HANDLERS[handlers.SOP1](instruction(GetPc, "S_GETPC_B64"), context)

    assert made == ("sink", (6, 0), (7, 1 << 8), "next")


def test_only_operations_of_caches_are_passed_over():
    words = ("_INV", "_WB", "_WBINV", "_WBL2", "_PREFETCH_", "_WB_VOL")

    for architecture, names in emulate._CACHE_OPERATIONS.items():
        assert architecture in emulate._WAVEFRONT_SIZES
        assert all(any(word in name for word in words) for name in names)


# AMD's own emulator


RECORDS = '#!/bin/sh\nprintf "%s\\n" "$@" > "$0.arguments"\n'


@pytest.fixture
def rocm(tmp_path):
    prefix = tmp_path / "rocm"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "rocjitsu").write_text(RECORDS)
    (prefix / "bin" / "rocjitsu").chmod(0o755)
    configurations = prefix / "share/rocjitsu/configs"
    configurations.mkdir(parents=True)
    (configurations / "gfx1201_r9700.json").write_text("{}")
    return prefix


def test_a_command_is_run_under_rocjitsu(rocm):
    command = emulate.rocjitsu(rocm, "gfx1201", ["hip-probe", "--json", "a b"])

    subprocess.run(command, check=True)

    told = (rocm / "bin" / "rocjitsu.arguments").read_text().splitlines()
    configuration = str(rocm / "share/rocjitsu/configs/gfx1201_r9700.json")
    assert told == ["--config", configuration, "--", "hip-probe", "--json", "a b"]


def test_rocjitsu_is_found_by_path(rocm, monkeypatch, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "rocjitsu").symlink_to(rocm / "bin" / "rocjitsu")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))

    command = emulate.rocjitsu(None, "gfx1201", ["true"])

    assert command[:3] == [
        str(tmp_path / "links" / "rocjitsu"),
        "--config",
        str(rocm / "share/rocjitsu/configs/gfx1201_r9700.json"),
    ]


def test_where_there_is_no_rocjitsu_there_is_no_command(rocm, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert emulate.rocjitsu(None, "gfx1201", ["true"]) is None
    assert emulate.rocjitsu(tmp_path, "gfx1201", ["true"]) is None


@pytest.mark.parametrize("target", ["gfx1100", "gfx1030"])
def test_a_gpu_that_rocjitsu_is_not_configured_for_is_told(rocm, target):
    with pytest.raises(TargetError, match=f"rocjitsu has no configuration for {target}"):
        emulate.rocjitsu(rocm, target, ["true"])
