"""Kernels out of an archive, run on an emulator: machine code that computes without a GPU.

The emulator is a checkout of tinygrad's repository; no part of it is in here, and only
emulator_worker, in a process of its own, imports it. docs/emulator.md says what such a run proves.
The program that is run reads and writes the memory of that process as it likes: emulate only
what you would also run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocbake import codeobject, elf, log
from rocbake.errors import BuildError, RocbakeError, TargetError
from rocbake.run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rocbake.codeobject import Kernel, Program
    from rocbake.kernel import Argument, KernelTest

REPOSITORY = "https://github.com/tinygrad/tinygrad"
COMMIT = "a9069c177a9da9cca18593edf55acd2e6073cca6"

_WORKER = Path(__file__).with_name("emulator_worker.py")
_SECONDS = 600.0
_COMMIT_SECONDS = 10.0

# What the emulator calls the instruction set of each target. It was written for the first ones of
# each line, see ARCH_TO_TARGET in its test/amd/helpers.py; gfx1101 to gfx1103 have the instruction
# set of gfx1100: https://llvm.org/docs/AMDGPUUsage.html, "gfx11-generic".
_ARCHITECTURES = {
    **dict.fromkeys(("gfx942", "gfx950"), "cdna"),
    **dict.fromkeys(("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1151"), "rdna3"),
    **dict.fromkeys(("gfx1200", "gfx1201"), "rdna4"),
}
_WAVEFRONT_SIZES = {"cdna": 64, "rdna3": 32, "rdna4": 32}

# Instructions that are passed over, because the emulator does not know them or takes them for
# others. All they do is to move or drop copies of memory in caches; the emulator has no caches,
# so that every load sees every store before it. Nothing else may ever stand here.
# Names: "Cache" sections of AMD's instruction set architecture documents.
_CACHE_OPERATIONS = {
    "cdna": ("BUFFER_INV", "BUFFER_WBL2", "S_DCACHE_WB", "S_DCACHE_WB_VOL"),
    "rdna3": ("BUFFER_GL0_INV", "BUFFER_GL1_INV"),
    "rdna4": (
        "GLOBAL_INV",
        "GLOBAL_WB",
        "GLOBAL_WBINV",
        "S_PREFETCH_INST",
        "S_PREFETCH_INST_PC_REL",
        "S_PREFETCH_DATA",
        "S_PREFETCH_DATA_PC_REL",
        "S_BUFFER_PREFETCH_DATA",
    ),
}

# Around each buffer lie so many bytes of this, and must lie there afterwards.
_GUARD_SIZE = 4096
_GUARD = b"\xa5\x5a\xc3\x3c" * (_GUARD_SIZE // 4)

_POINTER_SIZE = 8
_LARGEST_LDS = 64 << 10
# https://llvm.org/docs/AMDGPUUsage.html, compute_pgm_rsrc1 and compute_pgm_rsrc2
_LDS_GRANULE = 512
_LDS_SHIFT = 15
_LDS_MASK = 0x1FF
_USER_SGPR_SHIFT = 1
_USER_SGPR_MASK = 0x1F
_DENORMALS_SHIFT = 16
_DENORMALS_KEPT = 3

# hsa_kernel_dispatch_packet_t: header, dimensions, work-group (3 x 2 bytes), reserved, grid in
# work-items (3 x 4), scratch, LDS, kernel object, kernarg, reserved, completion signal.
_PACKET = struct.Struct("<HHHHHHIIIIIQQQQ")
_PACKET_KERNARG = 40
_MOST_WORK_ITEMS_OF_A_GRID = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Emulated:
    """What came of one kernel test on the emulator.

    Attributes:
        name: Of the test.
        target: That the code was compiled for.
        ok: Whether all results are as expected; None where it could not be run, which is no pass.
        detail: What was compared, or what is wrong, or why it was not run.
        seconds: That it took.
        instructions: That were executed, of all waves; None if it did not run to its end.
    """

    name: str
    target: str
    ok: bool | None
    detail: str
    seconds: float
    instructions: int | None = None


class _Skipped(Exception):  # noqa: N818 - it never leaves this module
    """What this emulator cannot run, whatever is the matter with the kernel."""


def unavailable(checkout: Path | None) -> str | None:
    """Tell why nothing can be emulated with this checkout; None if it can."""
    if checkout is None:
        return "no emulator: ROCBAKE_EMULATOR names no checkout; see docs/emulator.md"
    missing = next(
        (
            name
            for name in ("test/mockgpu/amd/emu.py", "tinygrad/__init__.py")
            if not (checkout / name).is_file()
        ),
        None,
    )
    if missing:
        return f"no emulator: {checkout} is no checkout of {REPOSITORY}: there is no {missing}"
    if shutil.which("clang") is None:
        return "no emulator: it compiles what it runs with clang, which is not on PATH"
    return None


def emulate(
    kernels: Sequence[KernelTest],
    archive_root: Path,
    target: str,
    *,
    checkout: Path,
    python: str | os.PathLike[str] = sys.executable,
) -> list[Emulated]:
    """Run kernel tests on the emulator, one after the other, each in a process of its own.

    Args:
        kernels: The tests.
        archive_root: The one folder of the unpacked archive, which the tests' files are in.
        target: The code that is run: as rocbake.target writes it.
        checkout: Of the emulator's repository.
        python: That runs the emulator; it needs no packages.

    Returns:
        What came of each, in order. Failures are results, not errors.
    """
    why_not = unavailable(checkout)
    if why_not is None:
        _warn_of_another_commit(checkout)
    results = []
    for test in kernels:
        start = time.monotonic()
        instructions = None
        try:
            if why_not is not None:
                raise _Skipped(why_not)  # noqa: TRY301 - as all other reasons are told
            instructions, wrong = _emulate(test, archive_root, target, checkout, python)
            ok, detail = (False, wrong) if wrong else (True, _compared(test))
        except _Skipped as skipped:
            ok, detail = None, str(skipped)
        except RocbakeError as error:
            ok, detail = False, str(error)
        seconds = time.monotonic() - start
        results.append(Emulated(test.name, target, ok, detail, seconds, instructions))
    return results


def rocjitsu(prefix: Path | None, target: str, command: Sequence[str]) -> list[str] | None:
    """Return the command that runs another one under AMD's own emulator, rocjitsu.

    It loads itself into the program and answers in place of the kernel driver, so that a whole
    ROCm program sees a GPU: https://github.com/ROCm/rocm-systems/tree/develop/emulation/rocjitsu

    Args:
        prefix: Where ROCm is installed; None to go by PATH.
        target: The GPU that the program shall see.
        command: The program and its arguments.

    Returns:
        None where rocjitsu is not installed.

    Raises:
        TargetError: If this rocjitsu comes with no configuration for the target.
    """
    found = shutil.which("rocjitsu", path=None if prefix is None else str(prefix / "bin"))
    if found is None:
        return None
    configurations = Path(found).resolve().parent.parent / "share" / "rocjitsu" / "configs"
    name = _ROCJITSU_CONFIGURATIONS.get(target)
    if name is None or not (configurations / name).is_file():
        raise TargetError(f"{found} has no configuration for {target} in {configurations}")
    return [found, "--config", str(configurations / name), "--", *command]


# https://github.com/ROCm/rocm-systems/blob/develop/emulation/rocjitsu/docs/configuration.md
_ROCJITSU_CONFIGURATIONS = {
    "gfx90a": "gfx90a_mi210_kmd.json",
    "gfx942": "gfx942_cdna3_kmd.json",
    "gfx950": "gfx950_mi355x_kmd.json",
    "gfx1100": "gfx1100_w7900.json",
    "gfx1151": "gfx1151.json",
    "gfx1201": "gfx1201_r9700.json",
    "gfx1250": "gfx1250_mi455x.json",
}


def _warn_of_another_commit(checkout: Path) -> None:
    asked = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    try:
        commit = run(asked, check=False, timeout=_COMMIT_SECONDS).stdout.strip()
    except BuildError:
        commit = ""
    if commit != COMMIT:
        found = f"is at commit {commit}" if commit else "does not tell its commit"
        log.warn(f"the emulator at {checkout} {found}; tried was {COMMIT}")


def _compared(test: KernelTest) -> str:
    return ", ".join(
        f"{one.argument}: exact" if one.within is None else f"{one.argument}: within {one.within:g}"
        for one in test.expect
    )


def _emulate(
    test: KernelTest,
    archive_root: Path,
    target: str,
    checkout: Path,
    python: str | os.PathLike[str],
) -> tuple[int, str]:
    """Run one test; return the number of instructions, and what is wrong, or ""."""
    architecture = _ARCHITECTURES.get(target.partition(":")[0])
    if architecture is None:
        raise _Skipped(
            f"the emulator does not know {target}; it knows {', '.join(sorted(_ARCHITECTURES))}"
        )
    program, kernel = _find(archive_root / test.file, target, test.symbol)
    _check_can_run(kernel, test, architecture)
    inputs = test.inputs()
    launch = _Launch(program, kernel, test, inputs)
    with tempfile.TemporaryDirectory(prefix="rocbake-emulate-") as name:
        folder = Path(name)
        launch.write(folder, architecture)
        instructions = _run_worker(folder, checkout, python)
        outputs = launch.outputs(folder)
    return instructions, launch.damage or test.wrong(inputs, outputs)


def _find(file: Path, target: str, symbol: str) -> tuple[Program, Kernel]:
    """Find the code of a kernel for a target.

    Raises:
        BuildError: If it is not there, or the file is damaged.
    """
    if not file.is_file():
        raise BuildError(f"there is no {file}")
    count = 0
    for count, (_, code) in enumerate(elf.extract(file, {target}), start=1):
        # A library has a hundred of them, and a name is quickly looked for.
        if symbol.encode() in code:
            program = codeobject.read(code, f"code object {count} for {target} in {file}")
            for kernel in program.kernels:
                if kernel.name == symbol:
                    return program, kernel
    raise BuildError(f"{file}: no kernel {symbol} in its {count} code objects for {target}")


def _check_can_run(kernel: Kernel, test: KernelTest, architecture: str) -> None:
    """See that the launch is right for the kernel, and the kernel for the emulator."""
    work_items = test.block[0] * test.block[1] * test.block[2]
    if work_items > kernel.most_work_items:
        raise BuildError(
            f"{kernel.name} was compiled for at most {kernel.most_work_items} work-items in a "
            f"work-group, got {work_items}"
        )
    if any(
        groups * items > _MOST_WORK_ITEMS_OF_A_GRID
        for groups, items in zip(test.grid, test.block, strict=True)
    ):
        raise BuildError(f"{test.name}: a grid of more than 2^32 - 1 work-items in one dimension")
    size = _WAVEFRONT_SIZES[architecture]
    if kernel.wavefront_size != size:
        raise _Skipped(
            f"{kernel.name} runs in waves of {kernel.wavefront_size}; of this instruction set, "
            f"the emulator knows waves of {size} only"
        )
    if kernel.lds_size > _LARGEST_LDS:
        raise _Skipped(f"{kernel.name} needs {kernel.lds_size} bytes of LDS, the emulator has 64K")
    if kernel.scratch_size and work_items > size:
        raise _Skipped(
            f"{kernel.name} has {kernel.scratch_size} bytes of scratch for each work-item, and "
            "the emulator gives all waves of a work-group the same ones"
        )


@dataclass
class _Launch:
    """The memory of one launch: regions, and the pointers between them.

    The emulator decides where each region lies, so pointers are written by the worker.
    """

    program: Program
    kernel: Kernel
    test: KernelTest
    inputs: dict[str, NDArray[Any]]
    damage: str = ""
    regions: list[bytes | bytearray] = field(default_factory=list)
    # Region and offset of each pointer, region and offset of what it points to.
    pointers: list[tuple[int, int, int, int]] = field(default_factory=list)
    buffers: dict[str, int] = field(default_factory=dict)

    def write(self, folder: Path, architecture: str) -> None:
        """Write the job that emulator_worker reads."""
        descriptor = self.kernel.descriptor
        image = self._image()
        kernarg = self._kernarg()
        registers = self._registers(kernarg)
        granules = -(-self.kernel.lds_size // _LDS_GRANULE)
        resource2 = descriptor.resource2 & ~(_LDS_MASK << _LDS_SHIFT) | granules << _LDS_SHIFT
        denormals = descriptor.resource1 >> _DENORMALS_SHIFT & _DENORMALS_KEPT
        job = {
            "architecture": architecture,
            "passed_over": _CACHE_OPERATIONS[architecture],
            "regions": len(self.regions),
            "pointers": self.pointers,
            "entry": (image, self.kernel.address),
            "kernarg": kernarg,
            "registers": registers,
            "grid": self.test.grid,
            "block": self.test.block,
            "resource2": resource2,
            "scratch_size": self.kernel.scratch_size,
            "keeps_denormals": denormals == _DENORMALS_KEPT,
            "results": list(self.buffers.values()),
        }
        for number, region in enumerate(self.regions):
            (folder / f"{number}.bin").write_bytes(region)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")

    def outputs(self, folder: Path) -> dict[str, NDArray[Any]]:
        """Return what the buffers hold after the launch, and see what is around them."""
        import numpy as np  # noqa: PLC0415 - costs 100 ms, and few commands need it

        found = {}
        for name, region in self.buffers.items():
            content = (folder / f"{region}.bin").read_bytes()
            inside = content[_GUARD_SIZE:-_GUARD_SIZE]
            for guard, where in (
                (content[:_GUARD_SIZE], "before"),
                (content[-_GUARD_SIZE:], "after"),
            ):
                if guard != _GUARD:
                    self.damage = f"the kernel wrote {where} the buffer {name}"
            found[name] = np.frombuffer(inside, dtype=self.inputs[name].dtype)
        return found

    def _add(self, region: bytes | bytearray) -> int:
        self.regions.append(region)
        return len(self.regions) - 1

    def _image(self) -> int:
        memory = bytearray(self.program.size)
        for segment in self.program.segments:
            memory[segment.address : segment.address + len(segment.data)] = segment.data
        image = self._add(memory)
        self.pointers += [
            (image, one.address, image, one.points_to) for one in self.program.relocations
        ]
        return image

    def _kernarg(self) -> int:
        """Lay out the arguments: https://llvm.org/docs/AMDGPUUsage.html, "Kernel Argument"."""
        explicit = [one for one in self.kernel.arguments if not one.is_hidden]
        given = self.test.arguments
        if len(explicit) != len(given):
            raise BuildError(
                f"{self.kernel.name} takes {len(explicit)} arguments, got {len(given)}"
            )
        segment = bytearray(self.kernel.kernarg_size)
        kernarg = self._add(segment)
        for number, (place, argument) in enumerate(zip(explicit, given, strict=True)):
            content = self.inputs[argument.name].tobytes()
            is_pointer = place.kind == "global_buffer" and place.size == _POINTER_SIZE
            if is_pointer and argument.value is None:
                buffer = self._add(_GUARD + content + _GUARD)
                self.buffers[argument.name] = buffer
                self.pointers.append((kernarg, place.offset, buffer, _GUARD_SIZE))
            elif place.kind == "by_value" and len(content) == place.size:
                segment[place.offset : place.offset + place.size] = content
            else:
                raise BuildError(
                    f"{self.kernel.name}: argument {number} is {place.kind} of {place.size} "
                    f"bytes, got {_described(argument, len(content))}"
                )
        for place in self.kernel.arguments:
            if place.is_hidden:
                value = self._hidden().get(place.kind, 0).to_bytes(8, "little")
                content = value[: place.size].ljust(place.size, b"\0")
                segment[place.offset : place.offset + place.size] = content
        return kernarg

    def _hidden(self) -> dict[str, int]:
        """Return the hidden arguments that are not 0.

        Work-groups are whole, so nothing remains; the pointers are to what a launch alone has
        not: queues, hostcalls, a heap.
        """
        # HIP launches have three dimensions, whatever the sizes are.
        values = {"hidden_grid_dims": len(self.test.grid)}
        for axis, groups, items in zip("xyz", self.test.grid, self.test.block, strict=True):
            values[f"hidden_block_count_{axis}"] = groups
            values[f"hidden_group_size_{axis}"] = items
        return values

    def _registers(self, kernarg: int) -> int:
        """Lay out the user SGPRs, in the order of the bits that ask for them."""
        registers = bytearray()
        region = self._add(registers)
        pointers = []
        for bit, size, name in _USER_SGPRS:
            if not self.kernel.descriptor.properties >> bit & 1:
                continue
            if name == "kernarg":
                pointers.append((region, len(registers), kernarg, 0))
            elif name == "packet":
                pointers.append((region, len(registers), self._packet(kernarg), 0))
            elif name:
                raise _Skipped(f"{self.kernel.name} needs a {name}, which the emulator has not")
            registers += bytes(size * 4)
        asked = self.kernel.descriptor.resource2 >> _USER_SGPR_SHIFT & _USER_SGPR_MASK
        registers += bytes(max(0, asked * 4 - len(registers)))
        self.pointers += pointers
        return region

    def _packet(self, kernarg: int) -> int:
        grid = [a * b for a, b in zip(self.test.grid, self.test.block, strict=True)]
        packet = _PACKET.pack(
            0,
            len(grid),
            *self.test.block,
            0,
            *grid,
            self.kernel.scratch_size,
            self.kernel.lds_size,
            0,
            0,
            0,
            0,
        )
        region = self._add(packet)
        self.pointers.append((region, _PACKET_KERNARG, kernarg, 0))
        return region


# Bit of the kernel code properties, registers of 32 bits, and what is put into them. Without a
# name it is zeros: there is no queue, it is the first dispatch, and the size of scratch memory is
# asked for by no compiler.
_USER_SGPRS = (
    (0, 4, "private segment buffer"),
    (1, 2, "packet"),
    (2, 2, ""),
    (3, 2, "kernarg"),
    (4, 2, ""),
    (5, 2, "flat scratch address"),
    (6, 1, ""),
)


def _described(argument: Argument, size: int) -> str:
    kind = "a value" if argument.value is not None else "values or a buffer"
    return f"{kind} of {size} bytes in {argument.name}"


def _run_worker(folder: Path, checkout: Path, python: str | os.PathLike[str]) -> int:
    """Have the emulator do the job in a folder, and return how many instructions it executed.

    Raises:
        BuildError: If it fails, crashes, or takes too long.
    """
    # The worker's own folder must not be searched for modules, nor anything of the user's.
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(checkout.resolve()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "CC": shutil.which("clang") or "clang",
        "DEV": "CPU",
    }
    result = run(
        [python, "-P", "-s", _WORKER, folder],
        cwd=folder,
        env=environment,
        timeout=_SECONDS,
        check=False,
    )
    if result.returncode < 0:
        number = -result.returncode
        raise BuildError(
            f"the emulator ended with signal {number}, {signal.strsignal(number)}: "
            "the kernel reads or writes outside of its buffers, or the emulator is at fault"
        )
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["it says nothing"]
        raise BuildError(f"the emulator failed with exit code {result.returncode}: {lines[-1]}")
    try:
        return int(json.loads((folder / "result.json").read_bytes())["instructions"])
    except FileNotFoundError:
        raise BuildError("the emulator ended with exit code 0, but without a result") from None
