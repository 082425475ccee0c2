"""Code objects: the kernels in a piece of GPU code, and how it is loaded; pure, over its bytes.

The bytes may be damaged or hostile: whatever is in them, the answer is a value or a BuildError.
Words and layouts are those of LLVM's AMDGPU backend: https://llvm.org/docs/AMDGPUUsage.html,
for code object V4 and later. Other ELF files, and the bundles code objects come in, are read
elsewhere.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgpack

from rocbake import target
from rocbake.errors import BuildError, TargetError

_T = TypeVar("_T")

_EM_AMDGPU = 224
_ET_DYN = 3
_PT_LOAD, _PT_NOTE = 1, 4
_SHT_RELA, _SHT_DYNSYM = 4, 11
_NT_AMDGPU_METADATA = 32
# "Relocation Records"; both write 64 bits.
_R_AMDGPU_ABS64, _R_AMDGPU_RELATIVE64 = 3, 13

_DESCRIPTOR = struct.Struct("<III4xq20xIIIHH4x")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

# What a program may ask for in memory; a file of a hundred bytes could ask for all there is.
_MOST_MEMORY = 1 << 30
# HIP passes at most 4 KiB of explicit arguments, and the hidden ones are 256 bytes.
_MOST_KERNARG = 1 << 16
# The loader's work, which a small file could make endless: linkers write four segments, two
# notes, and names that are not longer than the file.
_MOST_SEGMENTS = 64
_MOST_NOTES = 1_000
_LONGEST_NAME = 1 << 16

_WORDS = {dict: "a map", list: "a list", str: "text", int: "a number of 32 bits"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel, as it stands in the kernarg segment.

    Attributes:
        name: As in the source; empty where the compiler left it out, and for hidden ones.
        offset: From the start of the kernarg segment, bytes.
        size: Bytes.
        kind: Such as "by_value", "global_buffer" or "hidden_block_count_x".
        address_space: Such as "global"; None for what is no pointer.
    """

    name: str
    offset: int
    size: int
    kind: str
    address_space: str | None

    @property
    def is_hidden(self) -> bool:
        """Whether the runtime supplies it, not the caller."""
        return self.kind.startswith("hidden_")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What the command processor reads before it starts a kernel.

    Attributes:
        lds_size: Statically allocated LDS of a work-group, bytes.
        scratch_size: Scratch memory of a work-item, bytes.
        kernarg_size: Bytes; 0 also means that it is not said.
        entry_offset: From the descriptor to the first instruction, bytes.
        resource3: compute_pgm_rsrc3.
        resource1: compute_pgm_rsrc1.
        resource2: compute_pgm_rsrc2.
        properties: Kernel code properties: which registers are set up.
        preload: Length (7 bits) and offset (9 bits), in dwords, of arguments put into registers.
    """

    lds_size: int
    scratch_size: int
    kernarg_size: int
    entry_offset: int
    resource3: int
    resource1: int
    resource2: int
    properties: int
    preload: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel.

    Attributes:
        name: What it is called in the source, mangled if that is C++.
        symbol: Of its descriptor: the name with ".kd".
        arguments: In their order, the hidden ones last.
        kernarg_size: Bytes.
        kernarg_align: Bytes.
        lds_size: Statically allocated LDS of a work-group, bytes.
        scratch_size: Scratch memory of a work-item, bytes.
        wavefront_size: 32 or 64.
        sgpr_count: Scalar registers used.
        vgpr_count: Vector registers used.
        most_work_items: That a work-group of it may have.
        address: Of its first instruction, in the program's memory.
        descriptor: As the hardware reads it.
    """

    name: str
    symbol: str
    arguments: tuple[Argument, ...]
    kernarg_size: int
    kernarg_align: int
    lds_size: int
    scratch_size: int
    wavefront_size: int
    sgpr_count: int
    vgpr_count: int
    most_work_items: int
    address: int
    descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the program's memory: its data, then zeros up to its size in bytes."""

    address: int
    size: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Relocation:
    """A pointer of 64 bits at an address, to another address; both count from the load address."""

    address: int
    points_to: int


@dataclass(frozen=True, slots=True)
class Program:
    """A code object: everything that is needed to load it and to start its kernels.

    Attributes:
        target: As rocbake.target writes it; what is not in its table is given as the file has it.
        kernels: In the order of the metadata.
        segments: What is loaded, by address.
        relocations: What the loader must write.
    """

    target: str
    kernels: tuple[Kernel, ...]
    segments: tuple[Segment, ...]
    relocations: tuple[Relocation, ...]

    @property
    def size(self) -> int:
        """The memory that it takes from its load address on, bytes."""
        return max((one.address + one.size for one in self.segments), default=0)


def read(data: bytes, name: str) -> Program:
    """Read one code object.

    Args:
        data: All of its bytes.
        name: Where it comes from, for errors.

    Raises:
        BuildError: Naming the byte, if it is damaged, or no code object of version 4 or later.
    """
    return _Reader(data, name).program()


class _Reader:
    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._at = 0  # where the metadata stands

    def program(self) -> Program:
        ident, kind, machine = self._unpack("<16sHH", 0)
        if ident[:6] != b"\x7fELF\2\1" or machine != _EM_AMDGPU or kind != _ET_DYN:
            self._fail(0, "no code object: expected a 64-bit little-endian ELF file for AMDGPU")
        program_headers, section_headers = self._unpack("<QQ", 32)
        program_size, program_count, section_size, section_count = self._unpack("<HHHH", 54)
        headers = [
            self._unpack("<IIQQQQQQ", program_headers + index * program_size)
            for index in range(program_count)
        ]
        segments = self._segments(headers)
        metadata_at, metadata = self._metadata(headers)
        sections = [
            self._unpack("<IIQQQQIIQQ", section_headers + index * section_size)
            for index in range(section_count)
        ]
        symbols = self._symbols(sections)
        addresses = {name: value for name, value in symbols if name and value is not None}
        self._at = metadata_at
        whole = self._checked(metadata, dict, "the metadata")
        return Program(
            target=self._target(whole),
            kernels=tuple(
                self._kernel(self._checked(one, dict, "a kernel"), addresses, segments)
                for one in self._field(whole, "amdhsa.kernels", list)
            ),
            segments=segments,
            relocations=self._relocations(sections, symbols, segments),
        )

    def _fail(self, offset: int, what: str) -> NoReturn:
        raise BuildError(f"{self._name} is damaged at byte {offset}: {what}")

    def _unpack(self, form: str, offset: int) -> tuple[Any, ...]:
        size = struct.calcsize(form)
        if offset + size > len(self._data):
            self._fail(offset, f"it ends within a table, after {len(self._data)} bytes")
        return struct.unpack_from(form, self._data, offset)

    def _part(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            self._fail(offset, f"{size} bytes are not there; it has {len(self._data)}")
        return self._data[offset : offset + size]

    def _segments(self, headers: list[tuple[Any, ...]]) -> tuple[Segment, ...]:
        found: list[Segment] = []
        end = 0
        for kind, _, offset, address, _, file_size, size, _ in headers:
            if kind != _PT_LOAD:
                continue
            if len(found) == _MOST_SEGMENTS:
                self._fail(offset, f"more than {_MOST_SEGMENTS} segments")
            if address < end or file_size > size or address + size > _MOST_MEMORY:
                self._fail(offset, f"a segment of {size} bytes at address {address:#x}")
            found.append(Segment(address, size, self._part(offset, file_size)))
            end = address + size
        return tuple(found)

    def _metadata(self, headers: list[tuple[Any, ...]]) -> tuple[int, object]:
        """Find the note with the metadata; give its place and what it says."""
        count = 0
        for kind, _, start, _, _, size, _, _ in headers:
            at, end = start, start + size
            while kind == _PT_NOTE and at + 12 <= end:
                count += 1
                if count > _MOST_NOTES:
                    self._fail(at, f"more than {_MOST_NOTES} notes")
                name_size, text_size, note = self._unpack("<III", at)
                text = at + 12 + (name_size + 3) // 4 * 4
                owner = self._part(at + 12, min(name_size, _LONGEST_NAME))
                if (owner, note) == (b"AMDGPU\0", _NT_AMDGPU_METADATA):
                    return text, self._message(text, self._part(text, text_size))
                at = text + (text_size + 3) // 4 * 4
        return self._fail(0, "it has no note with AMDHSA metadata")

    def _message(self, offset: int, packed: bytes) -> object:
        try:
            return msgpack.unpackb(packed)
        # The library has a class of its own for some of what can be wrong, and Python's for more.
        except Exception as error:  # noqa: BLE001 - said above
            return self._fail(offset, f"its metadata is no MessagePack: {error!r}")

    def _symbols(self, sections: list[tuple[Any, ...]]) -> list[tuple[str, int | None]]:
        """Return name and address of each dynamic symbol; None for one that is not in here."""
        table = next((one for one in sections if one[1] == _SHT_DYNSYM), None)
        if table is None:
            self._fail(0, "it has no dynamic symbols")
        offset, size, link = table[4], table[5], table[6]
        if link >= len(sections):
            self._fail(offset, f"its symbols are named in section {link}, which is not there")
        names = self._part(sections[link][4], sections[link][5])
        found: list[tuple[str, int | None]] = []
        length = 0
        for name, _, _, section, value, _ in _SYMBOL.iter_unpack(
            self._part(offset, size // _SYMBOL.size * _SYMBOL.size)
        ):
            end = names.find(b"\0", name, name + _LONGEST_NAME)
            length += end - name
            if end < 0 or length > len(self._data):
                self._fail(offset, "the names of its symbols have no end, or one comes too often")
            text = names[name:end].decode("utf-8", "replace")
            found.append((text, value if section else None))
        return found

    def _relocations(
        self,
        sections: list[tuple[Any, ...]],
        symbols: list[tuple[str, int | None]],
        segments: tuple[Segment, ...],
    ) -> tuple[Relocation, ...]:
        found: list[Relocation] = []
        read = 0
        for _, kind, flags, _, offset, size, _, _, _, _ in sections:
            # Without SHF_ALLOC it is for the linker, not for the loader.
            if kind != _SHT_RELA or not flags & 2:
                continue
            read += size
            if read > len(self._data):
                self._fail(offset, "its relocations overlap")
            for address, info, addend in _RELOCATION.iter_unpack(
                self._part(offset, size // _RELOCATION.size * _RELOCATION.size)
            ):
                symbol, how = info >> 32, info & 0xFFFFFFFF
                if how == _R_AMDGPU_RELATIVE64:
                    points_to = addend
                elif how == _R_AMDGPU_ABS64 and symbol < len(symbols):
                    name, value = symbols[symbol]
                    if value is None:
                        self._fail(offset, f"it needs the symbol {name!r:.99}, which is not in it")
                    points_to = value + addend
                else:
                    self._fail(offset, f"a relocation of type {how} for symbol {symbol}")
                if not any(
                    one.address <= address <= one.address + one.size - 8 for one in segments
                ):
                    self._fail(offset, f"a relocation at address {address:#x}, outside of it")
                found.append(Relocation(address, points_to))
        return tuple(found)

    def _checked(self, value: object, kind: type[_T], what: str) -> _T:
        if not isinstance(value, kind) or (
            isinstance(value, int) and not 0 <= value <= 0xFFFFFFFF  # noqa: PLR2004 - 32 bits
        ):
            self._fail(self._at, f"{what}: expected {_WORDS[kind]}, got {value!r:.60}")
        return value

    def _field(
        self, mapping: dict[Any, Any], key: str, kind: type[_T], default: _T | None = None
    ) -> _T:
        if default is not None and key not in mapping:
            return default
        return self._checked(mapping.get(key), kind, key)

    def _target(self, metadata: dict[Any, Any]) -> str:
        """Return the target out of a name such as amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-."""
        text = self._field(metadata, "amdhsa.target", str)
        name = text.rpartition("--")[2]
        try:
            return str(target.parse_target(name))
        except TargetError:
            return name

    def _kernel(
        self, said: dict[Any, Any], addresses: dict[str, int], segments: tuple[Segment, ...]
    ) -> Kernel:
        symbol = self._field(said, ".symbol", str)
        kernarg_size = self._field(said, ".kernarg_segment_size", int)
        if kernarg_size > _MOST_KERNARG:
            self._fail(self._at, f"{symbol} has {kernarg_size} bytes of arguments")
        if symbol not in addresses:
            self._fail(self._at, f"there is no symbol {symbol!r:.99} for a kernel")
        descriptor = self._descriptor(symbol, addresses[symbol], segments)
        return Kernel(
            name=self._field(said, ".name", str),
            symbol=symbol,
            arguments=tuple(
                self._argument(self._checked(one, dict, "an argument"), kernarg_size)
                for one in self._field(said, ".args", list, [])
            ),
            kernarg_size=kernarg_size,
            kernarg_align=self._field(said, ".kernarg_segment_align", int),
            lds_size=self._field(said, ".group_segment_fixed_size", int),
            scratch_size=self._field(said, ".private_segment_fixed_size", int),
            wavefront_size=self._field(said, ".wavefront_size", int),
            sgpr_count=self._field(said, ".sgpr_count", int),
            vgpr_count=self._field(said, ".vgpr_count", int),
            most_work_items=self._field(said, ".max_flat_workgroup_size", int),
            address=addresses[symbol] + descriptor.entry_offset,
            descriptor=descriptor,
        )

    def _argument(self, said: dict[Any, Any], kernarg_size: int) -> Argument:
        offset, size = self._field(said, ".offset", int), self._field(said, ".size", int)
        if offset + size > kernarg_size:
            self._fail(self._at, f"an argument at {offset} of {size} bytes, of {kernarg_size}")
        return Argument(
            name=self._field(said, ".name", str, ""),
            offset=offset,
            size=size,
            kind=self._field(said, ".value_kind", str),
            address_space=self._field(said, ".address_space", str, "") or None,
        )

    def _descriptor(self, symbol: str, address: int, segments: tuple[Segment, ...]) -> Descriptor:
        for one in segments:
            start = address - one.address
            if 0 <= start <= len(one.data) - _DESCRIPTOR.size:
                found = Descriptor(*_DESCRIPTOR.unpack_from(one.data, start))
                entry = address + found.entry_offset
                if not any(part.address <= entry < part.address + part.size for part in segments):
                    self._fail(self._at, f"{symbol} starts at address {entry:#x}, outside of it")
                return found
        return self._fail(self._at, f"{symbol} is at address {address:#x}, which holds nothing")
