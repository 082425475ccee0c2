"""One launch on tinygrad's emulator: started by emulate, with the checkout on PYTHONPATH.

Reads job.json and one file a region in the folder named by its argument, runs the kernel, and
writes the results back there. It uses the standard library and the emulator, and nothing of
rocbake.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main(folder: Path) -> None:
    """Do the job in a folder."""
    # Only this process has it on its path.
    emu: Any = import_module("test.mockgpu.amd.emu")
    job = json.loads((folder / "job.json").read_bytes())
    regions = [_mapped(folder / f"{number}.bin") for number in range(job["regions"])]
    addresses = [_address(region) for region in regions]
    for region, offset, other, inside in job["pointers"]:
        pointer = (addresses[other] + inside) % (1 << 64)
        regions[region][offset : offset + 8] = pointer.to_bytes(8, "little")
    _pass_over(emu, frozenset(job["passed_over"]))
    _set_denormals(emu, keeps=job["keeps_denormals"])
    count = _counted(emu)
    image, entry = job["entry"]
    registers = regions[job["registers"]]
    emu.run_asm(
        addresses[image] + entry,
        len(regions[image]) - entry,
        *job["grid"],
        *job["block"],
        addresses[job["kernarg"]],
        rsrc2=job["resource2"],
        scratch_size=job["scratch_size"],
        arch=job["architecture"],
        user_data=[
            int.from_bytes(registers[at : at + 4], "little")
            for at in range(0, len(registers) - 3, 4)
        ],
    )
    for region in job["results"]:
        (folder / f"{region}.bin").write_bytes(regions[region])
    (folder / "result.json").write_text(json.dumps({"instructions": count[0]}), encoding="utf-8")


def _mapped(path: Path) -> mmap.mmap:
    """Give the content of a file at an address of its own, with at least one byte to it."""
    content = path.read_bytes()
    region = mmap.mmap(-1, max(len(content), 1))
    region[: len(content)] = content
    return region


def _address(region: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(region))


def _pass_over(emu: Any, names: frozenset[str]) -> None:  # noqa: ANN401 - a module of others
    """Make instructions do nothing but go on to the next one."""

    def passing(handler: Any) -> Any:  # noqa: ANN401 - as above
        def compile_instruction(instruction: Any, context: Any) -> Any:  # noqa: ANN401 - as above
            name = emu._op_name(instruction)  # noqa: SLF001 - the emulator has no other interface
            if name in names:
                return emu.UOp.sink(*context.inc_pc())
            if name == "S_GETPC_B64":
                return _get_pc(emu, instruction, context)
            if handler is None:
                raise NotImplementedError(f"the emulator does not know {name}")
            return handler(instruction, context)

        return compile_instruction

    # The emulator's decoder knows this format, but is not told to look for it.
    formats = import_module("tinygrad.renderer.amd")._load_formats()  # noqa: SLF001 - as above
    formats["rdna3"].append(emu.ir3.MUBUF)
    handlers = emu._INST_HANDLERS  # noqa: SLF001 - as above
    for kind in {*handlers, emu.ir3.MUBUF}:
        handlers[kind] = passing(handlers.get(kind))


def _get_pc(emu: Any, instruction: Any, context: Any) -> Any:  # noqa: ANN401 - as above
    """Compile the one instruction without which no table and no function is found.

    It puts the address of the next instruction into a pair of registers; the emulator knows its
    text, but not the counter that the text speaks of.
    """
    register = context.inst_field(type(instruction).sdst)
    address = context.rpc() + emu.UOp.const(instruction.size(), emu.dtypes.uint64)
    low, high = emu._split64(address)  # noqa: SLF001 - as above
    stores = context.wsgpr_dyn(register, low), context.wsgpr_dyn(register + emu._c(1), high)  # noqa: SLF001 - as above
    return emu.UOp.sink(*stores, *context.inc_pc())


def _set_denormals(emu: Any, *, keeps: bool) -> None:  # noqa: ANN401 - as above
    """Let the emulator compute with denormal numbers as the kernel asks for it.

    By itself it always takes them for zero, or never, where it cannot compile what switches that.
    """
    if keeps:
        emu._get_ftz_lib = lambda: (None, 0)  # noqa: SLF001 - as above
    elif emu._get_ftz_lib()[0] is None:  # noqa: SLF001 - as above
        raise RuntimeError("the emulator cannot take denormal numbers for zero on this machine")


def _counted(emu: Any) -> list[int]:  # noqa: ANN401 - as above
    """Have every instruction counted that is executed."""
    count = [0]
    decode = emu._decode_at  # noqa: SLF001 - as above

    def decode_and_count(pc: int, arch: str) -> Any:  # noqa: ANN401 - as above
        (program, runtime), instruction = decode(pc, arch)

        def execute(*arguments: Any) -> None:  # noqa: ANN401 - as above
            count[0] += 1
            runtime.fxn(*arguments)

        return (program, SimpleNamespace(fxn=execute)), instruction

    emu._decode_at = decode_and_count  # noqa: SLF001 - as above
    return count


if __name__ == "__main__":
    main(Path(sys.argv[1]))
