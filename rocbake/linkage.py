"""What an ELF file tells a loader beyond what it needs: versions it gives, processors it runs on.

For x86-64 alone, and by section headers, as rocbake.elf reads versions: a file without them, or
for another machine, tells nothing. Sections and versions:
https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.sheader.html
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
"""

from __future__ import annotations

import contextlib
import mmap
import re
import struct
from typing import TYPE_CHECKING

from rocbake.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Magic, 64 bits, little-endian; then type and machine, of which 62 is x86-64.
_ELF64 = b"\x7fELF\x02\x01"
_X86_64 = 62
_HEADER = 64
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PROGBITS, _NOTE, _VERDEF = 1, 7, 0x6FFFFFFD
_ALLOCATED, _EXECUTABLE = 2, 4
# Version, flags, index, count, hash, offset of the first name, offset of the next definition.
_DEFINITION = struct.Struct("<HHHHIII")
_NAMES_THE_FILE = 1
# No library defines as many; a table that points at itself ends here.
_MOST_DEFINITIONS = 10_000
_LONGEST_NAME = 256

# https://gitlab.com/x86-psABIs/x86-64-ABI, "Program Property": one bit a level.
_PROPERTIES = 5
_ISA_NEEDED = 0xC0008002

_SONAME = re.compile(rb"(?<=\0)lib[A-Za-z0-9_.+-]{1,100}?\.so(?:\.[0-9]{1,9}){0,4}(?=\0)")


def is_x86_64(path: Path) -> bool:
    """Tell whether a file is an ELF file for x86-64; one that cannot be read is not."""
    try:
        with path.open("rb") as stream:
            return _is_x86_64(stream.read(20))
    except OSError:
        return False


def defined_versions(path: Path) -> tuple[str, ...]:
    """Return the symbol versions that a library gives, such as GLIBC_2.36, in its order.

    Raises:
        BuildError: Naming the file, if it is damaged or cannot be read.
    """
    versions: list[str] = []
    with _sections(path) as (pages, sections):
        for kind, _, start, size, link in sections:
            if kind == _VERDEF and link < len(sections):
                _, _, names, length, _ = sections[link]
                versions += _definitions(path, pages[start : start + size], names, length, pages)
    return tuple(versions)


def isa_level(path: Path) -> int:
    """Return the x86-64 level that a file says it needs, 1 to 4; 0 where it says nothing.

    Few say it: compilers write it on `-Wl,-z,x86-64-v3`, and not on -march alone.

    Raises:
        BuildError: Naming the file, if it is damaged or cannot be read.
    """
    needed = 0
    with _sections(path) as (pages, sections):
        for kind, _, start, size, _ in sections:
            if kind == _NOTE:
                needed |= _isa_needed(pages[start : start + size])
    return (needed & 0b1111).bit_length()


def opened(path: Path) -> tuple[str, ...]:
    """Return the names of libraries in a file's data, sorted: what it may open when it runs.

    A name there is only that: a program may try several, and go on without any.

    Raises:
        BuildError: Naming the file, if it is damaged or cannot be read.
    """
    found: set[bytes] = set()
    with _sections(path) as (pages, sections):
        for kind, flags, start, size, _ in sections:
            # Neither code nor the table of names that the loader reads, which is of another kind.
            if kind == _PROGBITS and flags & _ALLOCATED and not flags & _EXECUTABLE:
                found.update(_SONAME.findall(pages, start, start + size))
                # The first text of a section has no zero in front of it.
                found.update(
                    _SONAME.findall(b"\0" + pages[start : start + min(size, _LONGEST_NAME)])
                )
    return tuple(sorted(name.decode("ascii") for name in found))


# Kind, flags, offset, size and linked section of each.
_Sections = list[tuple[int, int, int, int, int]]


@contextlib.contextmanager
def _sections(path: Path) -> Iterator[tuple[mmap.mmap, _Sections]]:
    """Give the content of a file and where its sections are; none for what tells nothing."""
    try:
        with path.open("rb") as stream:
            pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # it is empty
        pages = mmap.mmap(-1, 1)
    except OSError as error:
        raise BuildError(f"cannot read {path}: {error.strerror}") from error
    with pages:
        yield pages, _section_table(path, pages) if _is_x86_64(pages[:20]) else []


def _section_table(path: Path, pages: mmap.mmap) -> _Sections:
    if len(pages) < _HEADER:
        raise _damaged(path, "its header is cut off")
    (start,) = struct.unpack_from("<Q", pages, 0x28)
    width, count = struct.unpack_from("<HH", pages, 0x3A)
    if not start or not count:
        return []
    if width != _SECTION.size or start + count * width > len(pages):
        raise _damaged(path, f"{count} section headers at byte {start} are not there")
    sections = []
    for number in range(count):
        _, kind, flags, _, offset, size, link, _, _, _ = _SECTION.unpack_from(
            pages, start + number * width
        )
        if kind in {_PROGBITS, _NOTE, _VERDEF} and offset + size > len(pages):
            raise _damaged(path, f"its section {number} of {size} bytes is not there")
        sections.append((kind, flags, offset, size, link))
    return sections


def _is_x86_64(start: bytes) -> bool:
    return start[:6] == _ELF64 and int.from_bytes(start[18:20], "little") == _X86_64


def _definitions(
    path: Path, table: bytes, names: int, length: int, pages: mmap.mmap
) -> Iterator[str]:
    """Yield the names in a table of definitions, but for the one that is the file's own."""
    position = 0
    for _ in range(_MOST_DEFINITIONS):
        if position + _DEFINITION.size > len(table):
            raise _damaged(path, "its table of versions is cut off")
        _, flags, _, _, _, first, following = _DEFINITION.unpack_from(table, position)
        if position + first + 4 > len(table):
            raise _damaged(path, "a version without a name")
        (offset,) = struct.unpack_from("<I", table, position + first)
        if not flags & _NAMES_THE_FILE:
            start = names + offset
            text = pages[start : min(start + _LONGEST_NAME, names + length)].partition(b"\0")[0]
            yield text.decode("ascii", "replace")
        if not following:
            return
        position += following
    raise _damaged(path, "its table of versions has no end")


def _isa_needed(notes: bytes) -> int:
    """Return the bits of x86 levels that a section of notes asks for; 0 for other notes."""
    position = needed = 0
    while position + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, position)
        name = notes[position + 12 : position + 12 + name_size]
        start = position + 12 + (name_size + 3 & ~3)
        if kind == _PROPERTIES and name == b"GNU\0":
            needed |= _isa_property(notes[start : start + size])
        position = start + (size + 7 & ~7 if kind == _PROPERTIES else size + 3 & ~3)
    return needed


def _isa_property(properties: bytes) -> int:
    position = needed = 0
    while position + 8 <= len(properties):
        kind, size = struct.unpack_from("<II", properties, position)
        if kind == _ISA_NEEDED:
            needed |= int.from_bytes(properties[position + 8 : position + 8 + size], "little")
        position += 8 + (size + 7 & ~7)
    return needed


def _damaged(path: Path, what: str) -> BuildError:
    return BuildError(f"{path} is damaged: {what}")
