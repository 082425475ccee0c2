#!/usr/bin/env python3
"""Thin a library of ROCm: keep the device code of some GPU targets, and give back the room.

    thin.py --targets gfx1100,gfx1201 FILE...

Such a library carries an offload bundle for each of its source files in the section .hip_fatbin,
and each bundle has code for every GPU. The bundles are written again without what is not wanted,
close together at the section's beginning; the pages behind them go out of the file. No address of
anything else changes: the segment is split in two, with nothing mapped in between.

Formats:
https://clang.llvm.org/docs/ClangOffloadBundler.html
https://github.com/llvm/llvm-project/blob/main/llvm/lib/Object/OffloadBundle.cpp
https://gabi.xinuos.com/elf/a-intro.html
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import re
import struct
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

try:
    from compression import zstd

    _unpack, _pack = zstd.decompress, zstd.compress
except ModuleNotFoundError:  # Python before 3.14, where the tests of this file run
    import zstandard

    def _unpack(data: bytes) -> bytes:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)

    def _pack(data: bytes, level: int) -> bytes:
        return zstandard.ZstdCompressor(level=level).compress(data)


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SECTION = ".hip_fatbin"
_WRAPPERS = ".hipFatBinSegment"
# clang/lib/CodeGen/CGCUDANV.cpp: magic, version, pointer to the bundle, nothing
_WRAPPER = struct.Struct("<IIQQ")
_WRAPPER_MAGIC = 0x48495046
_POINTER = 8  # where in it the pointer is
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED = b"CCOB"
# Magic, version, method; then by version the sizes of all and of what comes out, and a hash.
_HEADERS = {2: struct.Struct("<4sHHIIQ"), 3: struct.Struct("<4sHHQQQ")}
_ZSTD = 1
_LEVEL = 9
_TARGET = re.compile(r"-(gfx[0-9a-f]+(?:-[0-9])?(?:-generic)?)((?::[a-z]+[+-])*)$")
_ALIGN = 4096  # of code in a bundle, and of a bundle in the section

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_RELA = struct.Struct("<QQq")
_PT_LOAD, _SHT_RELA, _SHT_RELR, _R_X86_64_RELATIVE = 1, 4, 19, 8


class ThinError(Exception):
    """The file is something else than what this program understands; it is left as it is."""


@dataclass
class Thinned:
    """What became of a file.

    Attributes:
        before: Bytes, before.
        after: Bytes, after; the same where nothing was to be removed.
        removed: Targets whose code is gone.
        missing: Targets that are wanted, and that it has no code for.
    """

    before: int
    after: int
    removed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.before / 1e6:.1f} MB, now {self.after / 1e6:.1f} MB"]
        if self.removed:
            parts.append(f"without {', '.join(self.removed)}")
        if self.missing:
            parts.append(f"no code for {', '.join(self.missing)}")
        return "; ".join(parts)


def thin(path: Path, targets: Iterable[str]) -> Thinned:
    """Rewrite a file in place, by rename; without unwanted code it stays byte for byte.

    Args:
        path: A shared library; a link is followed, and stays.
        targets: As LLVM writes them, such as gfx90a:xnack+.

    Raises:
        ThinError: It is not understood, and was not changed.
    """
    path, wanted = path.resolve(), list(targets)
    size = path.stat().st_size
    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return Thinned(size, size)
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data, _understood(path):
            library = _Library(data)
            if library.section is None:
                return Thinned(size, size)
            bundles = {place: rewrite(data[start:end], wanted) for place, start, end in
                       library.bundles()}  # fmt: skip
            removed = {name for one in bundles.values() for name in one.removed}
            kept = {name for one in bundles.values() for name in one.kept}
            missing = tuple(one for one in wanted if not any(serves(name, one) for name in kept))
            if not removed:
                return Thinned(size, size, (), missing)
            with _beside(path) as written:
                library.write(written, {place: one.data for place, one in bundles.items()})
    return Thinned(size, path.stat().st_size, tuple(sorted(removed)), missing)


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    try:
        yield
    except (struct.error, IndexError, ValueError, OverflowError, UnicodeDecodeError) as wrong:
        raise ThinError(f"{path}: damaged, or no ELF file of this machine: {wrong}") from wrong
    except ThinError as wrong:
        raise ThinError(f"{path}: {wrong}") from wrong


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Give a place to write to, which takes the file's name and mode if all is well."""
    part = path.with_name(f".{path.name}.thin")
    try:
        yield part
        part.chmod(path.stat().st_mode & 0o7777)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def serves(name: str, target: str) -> bool:
    """Tell whether code for one target runs on a GPU of another.

    >>> serves("gfx1201", "gfx1201"), serves("gfx12-generic", "gfx1201")
    (True, True)
    >>> serves("gfx1200", "gfx1201")
    False
    >>> serves("gfx90a:xnack-", "gfx90a"), serves("gfx90a", "gfx90a:xnack+")
    (True, True)
    >>> serves("gfx90a:xnack-", "gfx90a:xnack+")
    False
    """
    (processor, *features), (wanted, *fixed) = name.split(":"), target.split(":")
    if processor != wanted:
        family = processor.removesuffix("-generic")
        return family != processor and wanted.startswith(family.replace("-", ""))
    opposite = {one[:-1] + {"+": "-", "-": "+"}[one[-1]] for one in fixed}
    return not opposite.intersection(features)


@dataclass
class Bundle:
    """An offload bundle, written again.

    Attributes:
        data: Its bytes.
        kept: Targets whose code is in it.
        removed: Targets whose code was.
    """

    data: bytes
    kept: tuple[str, ...]
    removed: tuple[str, ...]


def rewrite(data: bytes, wanted: list[str]) -> Bundle:
    """Return a bundle without the code of other targets, compressed if it was.

    A bundle in which all is wanted stays as it is, byte for byte.

    Raises:
        ThinError: It is no bundle, or of a version that is not known.
    """
    is_compressed = data[:4] == _COMPRESSED
    plain = _decompress(data) if is_compressed else data
    if plain[: len(_BUNDLE)] != _BUNDLE:
        raise ThinError("what a wrapper points to is no offload bundle")
    entries = list(_entries(plain))
    kept = [(name, code) for name, code in entries if _is_wanted(name, wanted)]
    removed = tuple(filter(None, (_target(name) for name, _ in entries if not
                                  _is_wanted(name, wanted))))  # fmt: skip
    names = tuple(filter(None, (_target(name) for name, _ in kept)))
    if not removed:
        return Bundle(data, names, ())
    plain = _assemble(kept)
    return Bundle(_compress(plain) if is_compressed else plain, names, removed)


def _target(name: str) -> str | None:
    """Return the target in an entry's name, or None for the host's."""
    found = _TARGET.search(name)
    return found[1] + found[2] if found else None


def _is_wanted(name: str, wanted: list[str]) -> bool:
    target = _target(name)
    if target is None and not name.startswith("host-"):
        raise ThinError(f"bundle entry {name!r} is neither the host's nor a known target's")
    return target is None or any(serves(target, one) for one in wanted)


def _entries(plain: bytes) -> Iterator[tuple[str, bytes]]:
    place = len(_BUNDLE)
    (count,) = struct.unpack_from("<Q", plain, place)
    place += 8
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", plain, place)
        name = plain[place + 24 : place + 24 + length]
        if offset + size > len(plain) or len(name) != length:
            raise ThinError("an entry of a bundle reaches out of it")
        yield name.decode("ascii"), plain[offset : offset + size]
        place += 24 + length


def _assemble(entries: list[tuple[str, bytes]]) -> bytes:
    table = sum(24 + len(name) for name, _ in entries)
    place, head, body = len(_BUNDLE) + 8 + table, b"", b""
    for name, code in entries:
        # The host's entry is empty, and stands where the code begins.
        start = _up(place, _ALIGN)
        body += bytes(start - place) + code
        head += struct.pack("<QQQ", start, len(code), len(name)) + name.encode()
        place = start + len(code)
    return _BUNDLE + struct.pack("<Q", len(entries)) + head + body


def _decompress(data: bytes) -> bytes:
    version, method = struct.unpack_from("<HH", data, 4)
    if version not in _HEADERS or method != _ZSTD:
        raise ThinError(f"compressed bundle of version {version}, method {method}: not known")
    header = _HEADERS[version]
    *_, total, size, _ = header.unpack_from(data)
    if total > len(data):
        raise ThinError("a compressed bundle reaches out of the section")
    try:
        plain = _unpack(data[header.size : total])
    except Exception as wrong:  # each library has its own class
        raise ThinError(f"a compressed bundle is damaged: {wrong}") from wrong
    if len(plain) != size:
        raise ThinError(f"a compressed bundle holds {len(plain)} bytes, and says {size}")
    return plain


def _compress(plain: bytes) -> bytes:
    packed = _pack(plain, _LEVEL)
    header = _HEADERS[3]
    # The first half of MD5, as Clang has it; it is there to find equal bundles, not to protect.
    half = hashlib.md5(plain, usedforsecurity=False).digest()[:8]
    return header.pack(_COMPRESSED, 3, _ZSTD, header.size + len(packed), len(plain),
                       int.from_bytes(half, "little")) + packed  # fmt: skip


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


class _Library:
    """A shared library's headers, and what points into its section of device code."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._header = _EHDR.unpack_from(data)
        ident, machine = self._header[0], self._header[2]
        if ident[4:6] != b"\x02\x01" or machine != 62:  # noqa: PLR2004 - 64 bits, x86-64
            raise ThinError("not a 64-bit ELF file for x86-64")
        phoff, shoff, phnum, shnum, strings = (self._header[i] for i in (5, 6, 10, 12, 13))
        self._segments = [list(_PHDR.unpack_from(data, phoff + i * _PHDR.size)) for i in
                          range(phnum)]  # fmt: skip
        self._sections = [list(_SHDR.unpack_from(data, shoff + i * _SHDR.size)) for i in
                          range(shnum)]  # fmt: skip
        names = self._sections[strings][4] if self._sections else 0
        named = {self._name(names + one[0]): one for one in self._sections}
        self.section = named.get(_SECTION)
        self._wrappers = named.get(_WRAPPERS)

    def _name(self, place: int) -> str:
        return self._data[place : self._data.find(b"\0", place)].decode("ascii")

    def bundles(self) -> list[tuple[int, int, int]]:
        """Return for each bundle where the relocation is that points to it, its beginning and end.

        All are places in the file; a bundle ends where the next one begins.
        """
        section, wrappers = self.section, self._wrappers
        if section is None or wrappers is None:
            raise ThinError(f"it has {_SECTION}, but no {_WRAPPERS}")
        start, end = section[3], section[3] + section[5]
        fields = self._pointers(wrappers)
        targets: dict[int, int] = {}
        for place, offset, kind, addend in self._relocations():
            if offset in fields and kind == _R_X86_64_RELATIVE:
                if not start <= addend < end:
                    raise ThinError(f"a wrapper points to {addend:#x}, which is not in {_SECTION}")
                targets[place] = addend
                fields.discard(offset)
            elif kind == _R_X86_64_RELATIVE and start <= addend < end:
                raise ThinError(f"something at {offset:#x} points into {_SECTION}, and no wrapper")
        if fields:
            raise ThinError(f"the wrapper at {min(fields) - _POINTER:#x} has no relocation")
        if len(set(targets.values())) != len(targets):
            raise ThinError("two wrappers share a bundle")
        ordered = sorted(targets.items(), key=lambda one: one[1])
        ends = [address for _, address in ordered[1:]] + [end]
        shift = section[4] - section[3]
        return [
            (place, address + shift, stop + shift)
            for (place, address), stop in zip(ordered, ends, strict=True)
        ]

    def _pointers(self, wrappers: list[int]) -> set[int]:
        found = set()
        for number in range(wrappers[5] // _WRAPPER.size):
            place = number * _WRAPPER.size
            magic, version, *_ = _WRAPPER.unpack_from(self._data, wrappers[4] + place)
            if magic != _WRAPPER_MAGIC or version != 1:
                raise ThinError(f"no wrapper of version 1 at {wrappers[3] + place:#x}")
            found.add(wrappers[3] + place + _POINTER)
        return found

    def _relocations(self) -> Iterator[tuple[int, int, int, int]]:
        for one in self._sections:
            if one[1] == _SHT_RELR:
                raise ThinError("packed relocations (RELR) are not understood")
            if one[1] != _SHT_RELA:
                continue
            for place in range(one[4], one[4] + one[5], _RELA.size):
                offset, info, addend = _RELA.unpack_from(self._data, place)
                yield place, offset, info & 0xFFFFFFFF, addend

    def write(self, path: Path, bundles: dict[int, bytes]) -> None:
        """Write the library with other bundles, each by the place of its relocation."""
        section = self.section
        assert section is not None  # noqa: S101 - bundles() came before
        old_end = section[4] + section[5]
        holder = next(
            (one for one in self._segments if one[0] == _PT_LOAD
             and one[2] <= section[4] and old_end <= one[2] + one[5]), None)  # fmt: skip
        if holder is None:
            raise ThinError(f"no segment holds all of {_SECTION}")
        head, body = bytearray(self._data[: section[4]]), bytearray()
        for place, data in bundles.items():
            body += bytes(_up(len(body), _ALIGN) - len(body))
            struct.pack_into("<q", head, place + 16, section[3] + len(body))
            body += data
        # The table of segments grows by one, and finds room behind the bundles.
        table = _up(section[4] + len(body), 8)
        used = table + (len(self._segments) + 1) * _PHDR.size
        page = max(one[7] for one in self._segments if one[0] == _PT_LOAD)
        cut, resume = _up(used, page), old_end // page * page
        with path.open("wb") as stream:
            if cut < resume:
                segments = self._split(holder, used, resume, resume - cut)
                struct.pack_into("<Q", head, 32, table)
                struct.pack_into("<Q", head, 40, self._header[6] - (resume - cut))
                struct.pack_into("<H", head, 56, len(segments))
                section[5] = len(body)
                stream.write(head + body + bytes(table - len(head) - len(body)))
                stream.write(b"".join(_PHDR.pack(*one) for one in segments))
                stream.write(bytes(cut - stream.tell()))
                # What is left of the old bundles on the first page that stays.
                stream.write(bytes(old_end - resume))
            elif len(body) <= section[5]:
                # Not a page to give back; what is not wanted goes all the same.
                stream.write(head + body + bytes(section[5] - len(body)))
            else:
                raise ThinError("the bundles that are wanted do not fit where all of them did")
            stream.write(self._data[old_end : self._header[6]])
            stream.write(b"".join(_SHDR.pack(*one) for one in self._sections))
            stream.write(self._data[self._header[6] + len(self._sections) * _SHDR.size :])

    def _split(self, holder: list[int], used: int, resume: int, gone: int) -> list[list[int]]:
        """Cut a segment in two, move what lies behind the cut, and return all segments.

        Args:
            holder: The segment.
            used: Where in the file its first part ends.
            resume: Where in the old file its second part begins.
            gone: Bytes between them that go.
        """
        first, second, skipped = list(holder), list(holder), resume - holder[2]
        first[5] = first[6] = used - holder[2]
        second[2], second[3], second[4] = resume, holder[3] + skipped, holder[4] + skipped
        second[5], second[6] = holder[5] - skipped, holder[6] - skipped
        segments = []
        for one in self._segments:
            segments += [first, second] if one is holder else [list(one)]
        for one in segments:
            one[2] -= gone if one[2] >= resume else 0
        for one in self._sections:
            one[4] -= gone if one[4] >= resume else 0
        return segments


def main(words: list[str]) -> int:
    """Thin files, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", required=True, help="separated by commas")
    parser.add_argument("file", nargs="+", type=Path)
    asked = parser.parse_args(words)
    for path in asked.file:
        try:
            done = thin(path, asked.targets.split(","))
        except ThinError as wrong:
            print(f"error: {wrong}", file=sys.stderr)  # noqa: T201 - the log of the build
            return 1
        print(f"{path.name}: {done}", flush=True)  # noqa: T201 - the log of the build
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
