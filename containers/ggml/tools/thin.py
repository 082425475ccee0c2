#!/usr/bin/env python3
"""Take the code for other GPUs out of shared libraries, and give back the room.

thin.py --targets gfx1100,gfx1201 FILE...

A HIP library has the device code of each of its source files for many GPUs: one offload bundle a
source file, all in the section .hip_fatbin, and for each of them a wrapper in .hipFatBinSegment
that points to it. Here the bundles are written anew with the code for the target set alone, close
to each other, and what follows them moves up in the file. In memory nothing moves: the address of
everything else stays, and where the removed code was, nothing is mapped.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import re
import stat
import struct
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from toolchain import ToolError, say

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

# What LLVM calls a generic processor, and the processors that its code runs on:
# https://llvm.org/docs/AMDGPUUsage.html#generic-processors
MEMBERS = {
    "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
    "gfx9-4-generic": ("gfx942", "gfx950"),
    "gfx10-1-generic": ("gfx1010", "gfx1011", "gfx1012", "gfx1013"),
    "gfx10-3-generic": tuple(f"gfx103{number}" for number in range(7)),
    "gfx11-generic": (
        *(f"gfx110{number}" for number in range(4)),
        *(f"gfx115{number}" for number in range(4)),
    ),
    "gfx12-generic": ("gfx1200", "gfx1201"),
}

_TARGET = re.compile(r"gfx[0-9a-f]+(?:(?:-[0-9]+)?-generic)?(?::[a-z]+[+-])*")
_HOST = re.compile(r"host-[\x21-\x7e]*")
_DEVICE = re.compile(rf"hip(?:v4)?-amdgcn-amd-amdhsa-(?:[a-z]*-)?({_TARGET.pattern})")

_BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED_MAGIC = b"CCOB"
_NUMBER = struct.Struct("<Q")
# Offset, size, length of the name, which comes after it.
_ENTRY = struct.Struct("<QQQ")
_MOST_ENTRIES = 1_000
_LONGEST_ENTRY_ID = 1_000
# The header of a compressed bundle by its version: magic, version, method, size, size unpacked,
# hash. HIP cannot read the first version.
_COMPRESSED = {2: struct.Struct("<4sHHII8s"), 3: struct.Struct("<4sHHQQ8s")}
_METHOD = struct.Struct("<4sHH")
_ZSTD = 1
# Three seconds more than Clang's for all of rocSOLVER; 19 takes three minutes for a tenth less.
_LEVEL = 9
_PIECE = 1 << 16

# What Clang aligns code to in a bundle, and bundles to in a library. HIP maps code from there, and
# reads as much to find what is in a bundle.
_PAGE = 4096

# https://gabi.xinuos.com/elf/a-intro.html and https://gitlab.com/x86-psABIs/x86-64-ABI
_ELF64_LITTLE = b"\x7fELF\2\1\1"
_SHARED, _X86_64 = 3, 62
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
# Where in it offset and size are.
_SECTION_PLACE, _PLACE = 24, struct.Struct("<QQ")
_LOAD, _PHDR = 1, 6
_WRITABLE = 2
_MOST_SEGMENTS = 0xFFFE
_RELA, _NOBITS, _SYMBOL_TABLES = 4, 8, (2, 11)
_OTHER_RELOCATIONS = {9: "REL", 19: "RELR"}
_ALLOCATED = 2
_SYMBOL = struct.Struct("<IBBHQQ")
_SECTION_SYMBOL = 3
_RELOCATION = struct.Struct("<QQQ")
_RELATIVE = 8
_ADDEND = 16
# https://github.com/llvm/llvm-project/blob/main/clang/lib/CodeGen/CGCUDANV.cpp
_WRAPPER = struct.Struct("<IIQQ")
_WRAPPER_MAGIC, _WRAPPER_VERSION, _POINTER = 0x48495046, 1, 8


@dataclass(frozen=True)
class Report:
    """What came of a file.

    Attributes:
        name: Of the file, without its folder.
        before: Its size, in bytes.
        after: The same, now.
        removed: The targets whose code was taken out, sorted; empty if the file was left alone.
        bundles: How many offload bundles it has.
        lacking: For each target of the set, how many bundles have device code, but none for it;
            only where there are any.
    """

    name: str
    before: int
    after: int
    removed: tuple[str, ...] = ()
    bundles: int = 0
    lacking: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        """Return it in a line."""
        lacking = "".join(
            f"; no code for {target} in {count} of {self.bundles} bundles"
            for target, count in self.lacking
        )
        return (
            f"{self.name}: {self.before / 1e6:.1f} MB -> {self.after / 1e6:.1f} MB, "
            f"removed {','.join(self.removed) or 'nothing'}{lacking}"
        )


@dataclass(frozen=True)
class Bundle:
    """What came of an offload bundle.

    Attributes:
        size: What it took, in bytes.
        content: What it is now; None if there was nothing to remove.
        removed: The targets whose code was taken out.
        lacking: The targets of the set that it has no code for; none if it has no device code.
    """

    size: int
    content: bytes | None
    removed: frozenset[str]
    lacking: frozenset[str]


def thin(path: Path, targets: Sequence[str]) -> Report:
    """Take the code for other GPUs out of a shared library.

    A file without .hip_fatbin is left alone, and so is one with nothing to remove. Another one is
    replaced in one step by what was written beside it; a symbolic link is followed.

    Raises:
        ToolError: There is something in the file that is not understood, or it cannot be read or
            written. It is as it was.
    """
    wrong = [target for target in targets if not _TARGET.fullmatch(target)]
    if wrong or not targets:
        raise ToolError(f"not a GPU target: {', '.join(wrong) or 'an empty list'}")
    try:
        place = path.resolve(strict=True)
        data = _mapped(place)
        elf = _read_elf(data)
        fatbin = elf.find(".hip_fatbin") if elf else None
        if elf is None or fatbin is None:
            return Report(path.name, len(data), len(data))
        return _replace(path.name, place, _Library(elf, fatbin), targets)
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror or error}") from error
    except struct.error as error:
        raise ToolError(f"{path}: its numbers make no sense; it is left as it was") from error
    except ToolError as error:
        raise ToolError(f"{path}: {error}; it is left as it was") from error


def thin_bundle(data: memoryview, targets: Sequence[str]) -> Bundle:
    """Write an offload bundle anew without the code for other GPUs.

    The formats: https://clang.llvm.org/docs/ClangOffloadBundler.html and
    https://github.com/llvm/llvm-project/blob/main/clang/lib/Driver/OffloadBundler.cpp
    A compressed bundle stays one, of the same version.

    Args:
        data: From the start of the bundle to where it must have ended.
        targets: The set.

    Raises:
        ToolError: It is damaged, or of a kind that is not known.
    """
    if data[: len(_COMPRESSED_MAGIC)] == _COMPRESSED_MAGIC:
        return _thin_compressed(data, targets)
    reader = _Reader(iter([data]))
    entries = _read_entries(reader)
    size = max([reader.position, *(entry.end for entry in entries if entry.size)])
    if size > len(data):
        raise ToolError(f"a bundle of {size} bytes has room for {len(data)}")
    kept, removed, lacking = _choose(entries, targets)
    return Bundle(size, _packed(_codes(reader, kept)) if removed else None, removed, lacking)


def serves(code: str, target: str) -> bool:
    """Tell whether code for one target is of use on what another one stands for.

    A generic target stands for all its members, and one that does not name a feature for GPUs
    with it on and with it off: https://clang.llvm.org/docs/ClangOffloadBundler.html#target-id

    >>> serves("gfx12-generic", "gfx1201"), serves("gfx1200", "gfx1201")
    (True, False)
    >>> serves("gfx90a", "gfx90a:xnack+"), serves("gfx90a:xnack-", "gfx90a:xnack+")
    (True, False)
    """
    (name, *features), (wanted, *fixed) = code.split(":"), target.split(":")
    is_kin = name == wanted or wanted in MEMBERS.get(name, ()) or name in MEMBERS.get(wanted, ())
    contrary = str.maketrans("+-", "-+")
    return is_kin and not {feature.translate(contrary) for feature in features} & {*fixed}


def main(words: Sequence[str]) -> int:
    """Thin files, and print a line for each; a message and 1 at the first that cannot be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", required=True, help="such as gfx1100,gfx1201")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    asked = parser.parse_args(words)
    try:
        for path in asked.files:
            say(str(thin(path, asked.targets.split(","))))
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the log of the build
        return 1
    return 0


# Offload bundles


class _Entry(NamedTuple):
    name: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size

    @property
    def target(self) -> str | None:
        """What its code is for; None for the host."""
        if _HOST.fullmatch(self.name):
            return None
        found = _DEVICE.fullmatch(self.name)
        if not found:
            raise ToolError(f"a bundle has an entry {self.name!r}, which is of no known kind")
        return found[1]


class _Reader:
    """A bundle from its front to its end, of which only the part at hand is in memory."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self.position = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes, all of them."""
        taken = b"".join(self._next(size))
        if len(taken) < size:
            raise ToolError(f"a bundle ends at byte {self.position}, too early")
        return taken

    def skip_to(self, position: int) -> None:
        for _ in self._next(position - self.position):
            pass

    def _next(self, size: int) -> Iterator[memoryview]:
        while size > 0:
            if not self._rest:
                self._rest = memoryview(next(self._pieces, b""))
                if not self._rest:
                    return
            part, self._rest = self._rest[:size], self._rest[size:]
            self.position += len(part)
            size -= len(part)
            yield part


def _read_entries(reader: _Reader) -> list[_Entry]:
    """Read the table at the start of a bundle."""
    if reader.take(len(_BUNDLE_MAGIC)) != _BUNDLE_MAGIC:
        raise ToolError("what a wrapper points to is no offload bundle")
    (count,) = _NUMBER.unpack(reader.take(_NUMBER.size))
    if count > _MOST_ENTRIES:
        raise ToolError(f"a bundle has {count} entries")
    entries = []
    for _ in range(count):
        offset, size, length = _ENTRY.unpack(reader.take(_ENTRY.size))
        if length > _LONGEST_ENTRY_ID:
            raise ToolError(f"a bundle has an entry with a name of {length} bytes")
        entries.append(_Entry(reader.take(length).decode("latin-1"), offset, size))
    free = reader.position
    for entry in _by_offset(entries):
        if entry.offset < free:
            raise ToolError(f"the entry {entry.name!r} of a bundle lies over what is before it")
        free = entry.end
    return entries


def _by_offset(entries: Sequence[_Entry]) -> list[_Entry]:
    return sorted((entry for entry in entries if entry.size), key=lambda entry: entry.offset)


def _choose(
    entries: Sequence[_Entry], targets: Sequence[str]
) -> tuple[list[_Entry], frozenset[str], frozenset[str]]:
    """Return the entries to keep, the targets to remove, and those that there is no code for."""
    kept, removed, present = [], set(), set()
    for entry in entries:
        code = entry.target
        if code is None or any(serves(code, target) for target in targets):
            kept.append(entry)
        else:
            removed.add(code)
        if code is not None and entry.size:
            present.add(code)
    lacking = {
        target
        for target in targets
        if present and not any(serves(code, target) for code in present)
    }
    return kept, frozenset(removed), frozenset(lacking)


def _codes(reader: _Reader, entries: Sequence[_Entry]) -> list[tuple[str, bytes]]:
    """Return name and code of entries, in their order."""
    codes = {}
    for entry in _by_offset(entries):
        reader.skip_to(entry.offset)
        codes[entry.offset] = reader.take(entry.size)
    return [(entry.name, codes[entry.offset] if entry.size else b"") for entry in entries]


def _packed(codes: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a bundle as Clang makes it for HIP: the code of each entry starts on a page."""
    end = len(_BUNDLE_MAGIC) + _NUMBER.size
    end += sum(_ENTRY.size + len(name) for name, _ in codes)
    table = [_BUNDLE_MAGIC, _NUMBER.pack(len(codes))]
    body = []
    for name, code in codes:
        start = _up(end, _PAGE)
        table += [_ENTRY.pack(start, len(code), len(name)), name.encode("latin-1")]
        body += [bytes(start - end), code]
        end = start + len(code)
    return b"".join(table + body)


def _thin_compressed(data: memoryview, targets: Sequence[str]) -> Bundle:
    _, version, method = _one(_METHOD, data, 0)
    if version not in _COMPRESSED or method != _ZSTD:
        raise ToolError(
            f"a compressed bundle of version {version}, method {method}: known are the versions "
            f"{' and '.join(map(str, _COMPRESSED))} with method {_ZSTD}"
        )
    header = _COMPRESSED[version]
    *_, size, unpacked, digest = _one(header, data, 0)
    if not header.size <= size <= len(data):
        raise ToolError(f"a compressed bundle of {size} bytes has room for {len(data)}")
    reader = _Reader(_unpacked(data[header.size : size], unpacked, digest))
    entries = _read_entries(reader)
    kept, removed, lacking = _choose(entries, targets)
    codes = _codes(reader, kept)
    reader.skip_to(unpacked + 1)
    if any(entry.end > unpacked for entry in _by_offset(entries)):
        raise ToolError(f"a bundle of {unpacked} bytes has code behind its end")
    return Bundle(size, _compressed(_packed(codes), version) if removed else None, removed, lacking)


def _unpacked(frame: memoryview, size: int, digest: bytes) -> Iterator[bytes]:
    """Unpack a compressed bundle; it comes to an end only if it is what its header says."""
    from compression import zstd  # noqa: PLC0415 - Python 3.14 has it, and few files need it

    unpacker = zstd.ZstdDecompressor()
    hashed = hashlib.md5(usedforsecurity=False)
    position = total = 0
    while not unpacker.eof and (position < len(frame) or not unpacker.needs_input):
        piece = frame[position : position + _PIECE] if unpacker.needs_input else b""
        position += len(piece)
        try:
            content = unpacker.decompress(piece, max_length=_PIECE)
        except zstd.ZstdError as error:
            raise ToolError(f"a compressed bundle is damaged: {error}") from error
        total += len(content)
        hashed.update(content)
        if total > size:
            break
        if content:
            yield content
    if not unpacker.eof or unpacker.unused_data or position < len(frame) or total != size:
        raise ToolError(f"a compressed bundle is damaged: it does not unpack to {size} bytes")
    if hashed.digest()[: len(digest)] != digest:
        raise ToolError("a compressed bundle is damaged: its hash is another")


def _compressed(bundle: bytes, version: int) -> bytes:
    """Compress a bundle, in one thread: the same bytes each time."""
    from compression import zstd  # noqa: PLC0415 - as above

    # Code for kindred GPUs is much the same, and far apart.
    options: dict[int, int] = {
        zstd.CompressionParameter.compression_level: _LEVEL,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    frame = zstd.compress(bundle, options=options)
    header = _COMPRESSED[version]
    # comgr, which unpacks it for HIP, knows by the hash what it has unpacked before.
    digest = hashlib.md5(bundle, usedforsecurity=False).digest()[:8]
    size = header.size + len(frame)
    return header.pack(_COMPRESSED_MAGIC, version, _ZSTD, size, len(bundle), digest) + frame


# ELF


class _Header(NamedTuple):
    ident: bytes
    type: int
    machine: int
    version: int
    entry: int
    phoff: int
    shoff: int
    flags: int
    ehsize: int
    phentsize: int
    phnum: int
    shentsize: int
    shnum: int
    shstrndx: int


class _Segment(NamedTuple):
    type: int
    flags: int
    offset: int
    address: int
    physical: int
    size: int
    memory: int
    align: int

    @property
    def end(self) -> int:
        return self.offset + self.size

    def part(self, ahead: int, size: int, *, moved: int = 0) -> _Segment:
        """Return a part of it: how far ahead it starts, its size, how far it moves in the file."""
        return self._replace(
            offset=self.offset + ahead - moved,
            address=self.address + ahead,
            physical=self.physical + ahead,
            size=size,
            memory=size,
        )


class _Section(NamedTuple):
    number: int
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class _Pointer(NamedTuple):
    """The pointer of a wrapper to its bundle.

    Attributes:
        field: Where it is in the file.
        addend: Where in the file its relocation says what it is to be.
        address: Of the bundle.
    """

    field: int
    addend: int
    address: int


@dataclass(frozen=True)
class _Elf:
    data: memoryview
    header: _Header
    sections: tuple[_Section, ...]

    def find(self, name: str) -> _Section | None:
        found = [section for section in self.sections if section.name == name]
        if len(found) > 1:
            raise ToolError(f"it has {len(found)} sections {name}")
        return found[0] if found else None


class _Library:
    """A library with code for GPUs, in which all is as it has to be.

    Attributes:
        data: The file.
        header: Its first bytes.
        sections: Its sections.
        fatbin: The one with the offload bundles.
        segments: What the loader is told.
        load: Which of them maps .hip_fatbin.
        follow: Where in the file the next thing after .hip_fatbin is.
        pointers: To the bundles.
    """

    def __init__(self, elf: _Elf, fatbin: _Section) -> None:
        self.data, self.header, self.sections = elf.data, elf.header, elf.sections
        self.fatbin = fatbin
        if (self.header.type, self.header.machine) != (_SHARED, _X86_64):
            raise ToolError("it has a section .hip_fatbin, but is no shared library for x86-64")
        if self.header.phentsize != _SEGMENT.size or self.header.phnum > _MOST_SEGMENTS:
            raise ToolError("its table of segments is not understood")
        rows = _many(_SEGMENT, self.data, self.header.phoff, self.header.phnum * _SEGMENT.size)
        self.segments = tuple(map(_Segment._make, rows))
        self.load = self._find_load()
        self.follow = self._find_follow()
        self._refuse_symbols()
        self.pointers = self._read_pointers(elf.find(".hipFatBinSegment"))

    def _find_load(self) -> int:
        fatbin = self.fatbin
        found = [
            number
            for number, segment in enumerate(self.segments)
            if segment.type == _LOAD
            and segment.offset <= fatbin.offset
            and fatbin.end <= segment.end
        ]
        if fatbin.type == _NOBITS or len(found) != 1:
            raise ToolError(f".hip_fatbin is in {len(found)} segments that are loaded, not in one")
        load = self.segments[found[0]]
        if load.flags & _WRITABLE or load.size != load.memory:
            raise ToolError("the segment that .hip_fatbin is in is not only read")
        if fatbin.address - fatbin.offset != load.address - load.offset:
            raise ToolError("the address of .hip_fatbin is not the one that its segment gives it")
        return found[0]

    def _find_follow(self) -> int:
        header, fatbin = self.header, self.fatbin
        taken = [
            (header.phoff, header.phoff + header.phnum * _SEGMENT.size),
            (header.shoff, header.shoff + header.shnum * _SECTION.size),
        ]
        taken += [
            (section.offset, section.end)
            for section in self.sections
            if section != fatbin and section.type != _NOBITS and section.size
        ]
        taken += [
            (segment.offset, segment.end)
            for number, segment in enumerate(self.segments)
            if number != self.load and segment.size
        ]
        if any(start < fatbin.end and end > fatbin.offset for start, end in taken):
            raise ToolError("something else lies over .hip_fatbin")
        follow = min((start for start, _ in taken if start >= fatbin.end), default=len(self.data))
        if _is_used(self.data[fatbin.end : follow]):
            raise ToolError("behind .hip_fatbin is something that is in no section")
        return follow

    def _refuse_symbols(self) -> None:
        for section in self.sections:
            if section.type in _SYMBOL_TABLES:
                for _, info, _, number, _, _ in _rows(_SYMBOL, self.data, section):
                    if number == self.fatbin.number and info & 15 != _SECTION_SYMBOL:
                        raise ToolError(f"{section.name} names things in .hip_fatbin: strip it")

    def _read_pointers(self, wrappers: _Section | None) -> tuple[_Pointer, ...]:
        """Return the pointers to the bundles, and see to it that there are no others.

        The loader writes its own address plus the addend of the relocation there. The linker has
        written 0 or the addend.
        """
        if wrappers is None or wrappers.type == _NOBITS or not wrappers.size:
            raise ToolError("nothing points into .hip_fatbin: it has no .hipFatBinSegment")
        fields = {}
        for number, (magic, version, value, _) in enumerate(_rows(_WRAPPER, self.data, wrappers)):
            if (magic, version) != (_WRAPPER_MAGIC, _WRAPPER_VERSION):
                raise ToolError(f"wrapper {number} has the magic {magic:#x}, version {version}")
            place = number * _WRAPPER.size + _POINTER
            fields[wrappers.address + place] = (wrappers.offset + place, value)
        found = {}
        for field, addend, value in self._relocations(fields):
            place, written = fields[field]
            if not self.fatbin.address <= value < self.fatbin.address + self.fatbin.size:
                raise ToolError(f"a wrapper points to {value:#x}, which is not in .hip_fatbin")
            if field in found or written not in {0, value}:
                raise ToolError(f"the wrapper's pointer at {field:#x} is given two values")
            found[field] = _Pointer(place, addend, value)
        if len(found) < len(fields):
            raise ToolError(f"{len(fields) - len(found)} wrappers have no relocation")
        return tuple(found.values())

    def _relocations(self, fields: Container[int]) -> Iterator[tuple[int, int, int]]:
        """Give for each pointer to a bundle: its address, the place of its addend, the addend."""
        start, end = self.fatbin.address, self.fatbin.address + self.fatbin.size
        for section in self.sections:
            if not section.flags & _ALLOCATED:
                continue
            if section.type in _OTHER_RELOCATIONS:
                kind = _OTHER_RELOCATIONS[section.type]
                raise ToolError(
                    f"the relocations in {section.name} are of the kind {kind}, not RELA"
                )
            if section.type != _RELA:
                continue
            rows = _rows(_RELOCATION, self.data, section)
            for number, (address, info, addend) in enumerate(rows):
                is_relative = info & 0xFFFFFFFF == _RELATIVE
                if is_relative and address in fields:
                    yield address, section.offset + number * _RELOCATION.size + _ADDEND, addend
                elif address in fields or start <= address < end:
                    raise ToolError(f"the relocation at {address:#x} is of kind {info:#x}")
                elif is_relative and start <= addend < end:
                    raise ToolError(f"not only wrappers point into .hip_fatbin: see {address:#x}")


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as stream:
        if not stream.seek(0, os.SEEK_END):
            return memoryview(b"")
        # It goes when nothing looks at it any more.
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def _read_elf(data: memoryview) -> _Elf | None:
    """Read the sections of an ELF file; None if it is something else, or has none."""
    if data[: len(_ELF64_LITTLE)] != _ELF64_LITTLE:
        return None
    header = _Header._make(_one(_HEADER, data, 0))
    if not header.shnum:
        return None
    if header.shentsize != _SECTION.size or header.shstrndx >= header.shnum:
        raise ToolError("its table of sections is not understood")
    rows = list(_many(_SECTION, data, header.shoff, header.shnum * _SECTION.size))
    start, size = rows[header.shstrndx][4:6]
    names = data[start : start + size].tobytes()
    sections = [
        _Section(number, names[row[0] :].partition(b"\0")[0].decode("latin-1"), *row[1:6])
        for number, row in enumerate(rows)
    ]
    return _Elf(data, header, tuple(sections))


# Writing


class _Cut(NamedTuple):
    """How what follows .hip_fatbin moves.

    Attributes:
        follow: Where it is in the old file.
        shift: How much nearer to the start of the file it comes, in bytes.
        ahead: How far into the segment of .hip_fatbin one of its own starts for the rest of it,
            which has the table of segments first; None if there is no rest, or nothing moves.
    """

    follow: int
    shift: int
    ahead: int | None = None

    def moved(self, offset: int) -> int:
        """Return where in the new file something is."""
        return offset - self.shift if offset >= self.follow else offset


def _replace(name: str, place: Path, library: _Library, targets: Sequence[str]) -> Report:
    """Write a library anew beside its place, and put it there if something was removed."""
    handle, beside = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(handle, "w+b") as out:
            report = _write(name, library, targets, out)
        if report.removed:
            Path(beside).chmod(stat.S_IMODE(place.stat().st_mode))
            Path(beside).replace(place)
    finally:
        Path(beside).unlink(missing_ok=True)
    return report


def _write(name: str, library: _Library, targets: Sequence[str], out: IO[bytes]) -> Report:
    data, fatbin = library.data, library.fatbin
    base = fatbin.address - fatbin.offset
    starts = sorted({pointer.address - base for pointer in library.pointers})
    unowned = _is_used(data[fatbin.offset : starts[0]])
    removed: set[str] = set()
    lacking: Counter[str] = Counter()
    places = {}
    out.write(data[: fatbin.offset])
    for start, limit in pairwise([*starts, fatbin.end]):
        bundle = thin_bundle(data[start:limit], targets)
        unowned |= _is_used(data[start + bundle.size : limit])
        removed |= bundle.removed
        lacking.update(bundle.lacking)
        place = _up(base + out.tell(), _PAGE)
        places[base + start] = place
        out.seek(place - base)
        out.write(data[start : start + bundle.size] if bundle.content is None else bundle.content)
    if unowned:
        raise ToolError("something in .hip_fatbin is of no bundle that a wrapper points to")
    after = _finish(library, places, out) if removed else len(data)
    counts = tuple((target, lacking[target]) for target in targets if lacking[target])
    return Report(name, len(data), after, tuple(sorted(removed)), len(starts), counts)


def _finish(library: _Library, places: Mapping[int, int], out: IO[bytes]) -> int:
    """Write what follows the bundles, and what says where things are; return the file's size.

    Args:
        library: As it was.
        places: The new address of each bundle, by its old one.
        out: All up to the end of the last bundle.
    """
    data, header, fatbin = library.data, library.header, library.fatbin
    end = out.tell()
    if end > fatbin.end:
        raise ToolError(f"what would stay of .hip_fatbin is {end - fatbin.end} bytes larger")
    cut = _cut(library, end)
    out.seek(cut.moved(cut.follow))
    out.write(data[cut.follow :])
    size = out.tell()
    for pointer in library.pointers:
        place = _NUMBER.pack(places[pointer.address])
        _patch(out, cut.moved(pointer.addend), place)
        if data[pointer.field : pointer.field + _NUMBER.size] != bytes(_NUMBER.size):
            _patch(out, cut.moved(pointer.field), place)
    segments = _new_segments(library, cut, end)
    table = cut.moved(header.phoff)
    if cut.ahead is not None:
        _patch(out, table, bytes(header.phnum * _SEGMENT.size))
        table = segments[library.load + 1].offset
    _patch(out, table, b"".join(_SEGMENT.pack(*segment) for segment in segments))
    sections = cut.moved(header.shoff)
    changed = header._replace(phoff=table, phnum=len(segments), shoff=sections)
    _patch(out, 0, _HEADER.pack(*changed))
    for section in library.sections:
        length = end - fatbin.offset if section == fatbin else section.size
        place = _PLACE.pack(cut.moved(section.offset), length)
        _patch(out, sections + section.number * _SECTION.size + _SECTION_PLACE, place)
    out.truncate(size)
    return size


def _cut(library: _Library, end: int) -> _Cut:
    """Decide how what follows .hip_fatbin moves, if that now ends there in the file.

    It moves by whole pages, since no address in it changes. If the segment goes on behind
    .hip_fatbin, that part becomes one of its own. The table then has a row more, for which there
    is no room where it was, but there is between the last bundle and what follows: the loader
    takes the table from where the header says, and finds it in memory if a segment covers it.
    https://sourceware.org/git/?p=glibc.git;a=blob;f=elf/dl-load.c;hb=glibc-2.42
    """
    follow, load = library.follow, library.segments[library.load]
    page = max([_PAGE, *(one.align for one in library.segments if one.type == _LOAD)])
    if load.end <= follow:
        return _Cut(follow, _down(follow - end, page))
    room = (library.header.phnum + 1) * _SEGMENT.size
    ahead = _down(load.address + follow - load.offset - room, page) - load.address
    shift = _down(load.offset + ahead - end, page)
    return _Cut(follow, shift, ahead) if shift > 0 else _Cut(follow, 0)


def _new_segments(library: _Library, cut: _Cut, end: int) -> list[_Segment]:
    """Return the new table of segments; those that are loaded stay in the order of addresses."""
    load = library.segments[library.load]
    segments = [one._replace(offset=cut.moved(one.offset)) for one in library.segments]
    if cut.ahead is not None:
        rest = load.part(cut.ahead, load.size - cut.ahead, moved=cut.shift)
        segments[library.load :] = [load, rest, *segments[library.load + 1 :]]
        table = rest.part(0, len(segments) * _SEGMENT.size)
        segments = [
            table._replace(type=one.type, flags=one.flags, align=one.align)
            if one.type == _PHDR
            else one
            for one in segments
        ]
    if cut.ahead is not None or load.end <= cut.follow:
        segments[library.load] = load.part(0, end - load.offset)
    return segments


def _patch(out: IO[bytes], place: int, content: bytes) -> None:
    out.seek(place)
    out.write(content)


def _one(form: struct.Struct, data: memoryview, offset: int) -> tuple[Any, ...]:
    if offset + form.size > len(data):
        raise ToolError(f"{form.size} bytes should be at byte {offset}, of {len(data)}")
    return form.unpack_from(data, offset)


def _many(
    form: struct.Struct, data: memoryview, offset: int, size: int
) -> Iterator[tuple[Any, ...]]:
    if offset + size > len(data) or size % form.size:
        raise ToolError(f"a table of {size} bytes should be at byte {offset}, of {len(data)}")
    return form.iter_unpack(data[offset : offset + size])


def _rows(form: struct.Struct, data: memoryview, section: _Section) -> Iterator[tuple[Any, ...]]:
    return _many(form, data, section.offset, section.size)


def _is_used(data: memoryview) -> bool:
    return bool(data.tobytes().strip(b"\0"))


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _down(number: int, step: int) -> int:
    return number // step * step


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
