"""ELF files and the GPU code in them: facts, read from files that may be damaged or hostile.

What the facts mean - whether a library is missing, whether the GPU code is for what was asked -
is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from rocbake import target
from rocbake.errors import BuildError, TargetError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from pathlib import Path

    from elftools.elf.elffile import ELFFile

# How often a file may be read, beside once for each of its bytes: tables that point at themselves
# would be read for ever. The largest number takes ten seconds.
_FEWEST_READS = 20_000
_MOST_READS = 3_000_000

_BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED_MAGIC = b"CCOB"

# Compressed bytes taken at once: four of them can stand for 128 KiB, so this bounds the memory.
_COMPRESSED_CHUNK = 128

# There are fewer targets than this, and none with a longer name.
_MOST_ENTRIES = 1_000
_LONGEST_ENTRY_ID = 1_000

# What is kept of an unpacked bundle: its table of entries, which is at its start.
_TABLE_LIMIT = 32 + _MOST_ENTRIES * (24 + _LONGEST_ENTRY_ID)

# What is kept of it when code is taken out: code of one source file and for few targets.
_EXTRACTED_LIMIT = 1 << 30

# No bundle comes near it: all of rocBLAS for one target is a twentieth of that.
_UNPACKED_LIMIT = 16 << 30

# glibc's name for "packed relative relocations are understood", which came with this release.
_VERSIONS_WITHOUT_NUMBER = {"GLIBC_ABI_DT_RELR": ("GLIBC", "2.36")}


@dataclass(frozen=True, slots=True)
class SymbolVersion:
    """A version that a file asks a library for, such as GLIBC_2.34 of libc.so.6."""

    library: str
    version: str


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """What an ELF file says about itself.

    Attributes:
        kind: "REL" for an object, "EXEC" or "DYN" for a program, "DYN" for a library.
        machine: Such as "X86_64", or "AMDGPU" for GPU code.
        bits: 32 or 64.
        soname: The name that others ask for it by, or None.
        needed: The libraries that it asks for, in its own order.
        rpath: Where to look for them first, such as "$ORIGIN".
        runpath: Where to look for them after the user's own choice.
        interpreter: The loader of a program, or None.
        versions: The symbol versions that it asks for, sorted; without those of a file that has
            no section headers.
        build_id: Bare hexadecimal, or None.
        has_debug: Whether debug information is in it.
    """

    kind: str
    machine: str
    bits: int
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    interpreter: str | None = None
    versions: tuple[SymbolVersion, ...] = ()
    build_id: str | None = None
    has_debug: bool = False


@dataclass(frozen=True, slots=True)
class CodeObject:
    """One piece of GPU code.

    Attributes:
        target: As rocbake.target writes it, such as "gfx90a:xnack+"; what is not in its table is
            given as the file has it.
        offset: Of the code in the file, or of the compressed bundle that it is in; bytes.
        size: Of the code, unpacked; bytes.
    """

    target: str
    offset: int
    size: int


def read(path: Path) -> ElfFacts | None:
    """Return the facts about an ELF file, or None if the file is something else.

    Raises:
        BuildError: Naming the file and the byte, if it is damaged or cannot be read.
    """
    with _mapped(path) as pages:
        if pages is None or pages[:4] != b"\x7fELF":
            return None
        with _understood(path, pages):
            return _facts(_elf(pages))


def newest_versions(files: Iterable[ElfFacts]) -> dict[str, str]:
    """Return the newest version asked for of each kind, over all the files.

    GLIBC_PRIVATE and other names without a number are not in it: see ElfFacts.versions.

    >>> facts = ElfFacts("DYN", "X86_64", 64, versions=(
    ...     SymbolVersion("libc.so.6", "GLIBC_2.9"), SymbolVersion("libc.so.6", "GLIBC_2.10"),
    ...     SymbolVersion("libstdc++.so.6", "GLIBCXX_3.4.32")))
    >>> newest_versions([facts])
    {'GLIBC': '2.10', 'GLIBCXX': '3.4.32'}
    """
    newest: dict[str, str] = {}
    for facts in files:
        for needed in facts.versions:
            kind, number = _split_version(needed.version)
            if number and _numbers(number) > _numbers(newest.get(kind, "")):
                newest[kind] = number
    return dict(sorted(newest.items()))


def code_objects(path: Path) -> tuple[CodeObject, ...]:
    """Return the GPU code in a file, in its order: in a host file, a bundle or as it is.

    A file that is none of these has none.

    Raises:
        BuildError: Naming the file and the byte, if it is damaged or cannot be read.
    """
    with _mapped(path) as pages:
        if pages is None:
            return ()
        with _understood(path, pages):
            return tuple(found for found, _, _ in _found(path, pages, _TABLE_LIMIT))


def extract(path: Path, wanted: Container[str]) -> Iterator[tuple[str, bytes]]:
    """Give target and bytes of each piece of GPU code in a file, in its order.

    Args:
        path: What code_objects understands.
        wanted: The targets, as rocbake.target writes them; code for others is passed over.

    Raises:
        BuildError: Naming the file and the byte, if it is damaged or cannot be read.
    """
    with _mapped(path) as pages:
        if pages is None:
            return
        with _understood(path, pages):
            for found, data, start in _found(path, pages, _EXTRACTED_LIMIT):
                if found.target in wanted:
                    code = data[start : start + found.size]
                    if len(code) < found.size:
                        raise _damaged(path, found.offset, f"{found.size} bytes of code in it")
                    yield found.target, code


class _Pages(mmap.mmap):
    """A file in memory, which refuses to be read for ever.

    All that the ELF library does goes through read(), so a limit here ends every loop.
    """

    _reads = 0

    def read(self, size: int | None = None, /) -> bytes:
        self._reads += 1
        if self._reads > min(_FEWEST_READS + len(self), _MOST_READS):
            raise ValueError("its tables have no end")
        return super().read(size)


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[_Pages | None]:
    """Give the content of a file; None for an empty one, which cannot be mapped."""
    try:
        with path.open("rb") as stream:
            is_empty = stream.seek(0, 2) == 0
            pages = None if is_empty else _Pages(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise BuildError(f"cannot read {path}: {error}") from error
    try:
        yield pages
    finally:
        if pages is not None:
            pages.close()


@contextlib.contextmanager
def _understood(path: Path, pages: _Pages) -> Iterator[None]:
    """Turn whatever comes of a damaged file into one kind of error."""
    try:
        yield
    except (BuildError, ImportError):
        raise
    # The library has a dozen ways to fail on tables that make no sense, down to a TypeError.
    except Exception as error:
        raise _damaged(path, pages.tell(), str(error) or type(error).__name__) from error


def _damaged(path: Path, offset: int, what: str) -> BuildError:
    return BuildError(f"{path} is damaged at byte {offset}: {what}")


def _elf(pages: _Pages) -> ELFFile:
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - costs 100 ms

    return ELFFile(cast("Any", pages))


def _facts(elf: ELFFile) -> ElfFacts:
    from elftools.elf.dynamic import DynamicSection, DynamicSegment  # noqa: PLC0415 - as above
    from elftools.elf.gnuversions import GNUVerNeedSection  # noqa: PLC0415 - as above
    from elftools.elf.sections import NoteSection  # noqa: PLC0415 - as above
    from elftools.elf.segments import NoteSegment  # noqa: PLC0415 - as above

    texts: dict[str, list[str]] = {tag: [] for tag in _TEXT_TAGS}
    versions: set[SymbolVersion] = set()
    build_ids: list[str] = []
    names: set[str] = set()
    # By section where there are any: in a file with nothing but debug information the segments
    # point at what is no longer there.
    for part in elf.iter_sections() if elf.num_sections() else elf.iter_segments():
        names.add(getattr(part, "name", ""))
        if isinstance(part, GNUVerNeedSection):
            for library, auxiliaries in part.iter_versions():
                versions |= {SymbolVersion(library.name or "", one.name) for one in auxiliaries}
        elif isinstance(part, (DynamicSection, DynamicSegment)):
            for tag in part.iter_tags():
                if tag.entry.d_tag in texts:
                    texts[tag.entry.d_tag].append(getattr(tag, _TEXT_TAGS[tag.entry.d_tag]))
        elif isinstance(part, (NoteSection, NoteSegment)):
            notes = part.iter_notes()
            build_ids += [note.n_desc for note in notes if note.n_type == "NT_GNU_BUILD_ID"]
    return ElfFacts(
        kind=str(elf["e_type"]).removeprefix("ET_"),
        machine=str(elf["e_machine"]).removeprefix("EM_"),
        bits=elf.elfclass,
        soname=next(iter(texts["DT_SONAME"]), None),
        needed=tuple(texts["DT_NEEDED"]),
        rpath=_folders(texts["DT_RPATH"]),
        runpath=_folders(texts["DT_RUNPATH"]),
        interpreter=_interpreter(elf),
        versions=tuple(sorted(versions, key=lambda one: (one.library, one.version))),
        build_id=next(iter(build_ids), None),
        has_debug=not names.isdisjoint((".debug_info", ".zdebug_info")),
    )


# The dynamic tags that stand for a text, and what the library calls the text.
_TEXT_TAGS = {
    "DT_SONAME": "soname",
    "DT_NEEDED": "needed",
    "DT_RPATH": "rpath",
    "DT_RUNPATH": "runpath",
}


def _interpreter(elf: ELFFile) -> str | None:
    from elftools.elf.segments import InterpSegment  # noqa: PLC0415 - as above

    for segment in elf.iter_segments():
        if isinstance(segment, InterpSegment) and segment["p_filesz"]:
            return segment.get_interp_name()
    return None


def _folders(values: list[str]) -> tuple[str, ...]:
    return tuple(folder for value in values for folder in value.split(":"))


def _split_version(version: str) -> tuple[str, str]:
    """Return the kind and the number of a symbol version; "" if it has none.

    >>> _split_version("CXXABI_1.3.15"), _split_version("GLIBC_PRIVATE")
    (('CXXABI', '1.3.15'), ('GLIBC_PRIVATE', ''))
    """
    if version in _VERSIONS_WITHOUT_NUMBER:
        return _VERSIONS_WITHOUT_NUMBER[version]
    match = re.fullmatch(r"(\w+?)_([0-9]{1,9}(?:\.[0-9]{1,9})*)", version)
    return (match[1], match[2]) if match else (version, "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if version else ()


# A piece of GPU code, what its bytes are in, and where they start in that.
_Found = tuple[CodeObject, "bytes | _Pages", int]


def _found(path: Path, pages: _Pages, keep: int) -> Iterator[_Found]:
    """Find the GPU code in a file; of a compressed bundle, so many bytes are kept."""
    if pages[:4] == b"\x7fELF":
        yield from _in_elf(path, pages, keep)
    elif pages[:24] == _BUNDLE_MAGIC or pages[:4] == _COMPRESSED_MAGIC:
        yield from _in_bundles(path, pages, 0, len(pages), keep)


def _in_elf(path: Path, pages: _Pages, keep: int) -> Iterator[_Found]:
    elf = _elf(pages)
    if elf["e_machine"] == "EM_AMDGPU":
        yield CodeObject(_target_of_flags(elf["e_flags"], pages[8]), 0, len(pages)), pages, 0
        return
    for section in elf.iter_sections():
        if section.name != ".hip_fatbin":
            continue
        start, size = section["sh_offset"], section["sh_size"]
        if section["sh_type"] == "SHT_NOBITS" or start + size > len(pages):
            raise _damaged(path, start, f"its section .hip_fatbin of {size} bytes is not there")
        yield from _in_bundles(path, pages, start, start + size, keep)


def _target_of_flags(flags: int, abi_version: int) -> str:
    """Return the target that a code object is for, from its ELF header.

    Args:
        flags: e_flags; the numbers are those of LLVM's AMDGPUUsage, "ELF Code Object".
        abi_version: EI_ABIVERSION; before 2, code object V4, features were another thing.

    >>> _target_of_flags(0x04E, 4), _target_of_flags(0xB3F, 4), _target_of_flags(0x5FE, 4)
    ('gfx1201', 'gfx90a:sramecc-:xnack+', 'unknown-0xfe')
    """
    name = target.name_of_machine(flags & 0xFF) or f"unknown-{flags & 0xFF:#04x}"
    if abi_version < 2:  # noqa: PLR2004 - said above
        return name
    states = {"sramecc": flags >> 10 & 3, "xnack": flags >> 8 & 3}
    signs = {2: "-", 3: "+"}  # 0 is not supported, 1 is both
    features = [f":{key}{signs[state]}" for key, state in states.items() if state in signs]
    return "".join((name, *features))


def _in_bundles(path: Path, pages: _Pages, start: int, end: int, keep: int) -> Iterator[_Found]:
    """Read the bundles between two bytes of a file; zeros pad them."""
    content = re.compile(rb"[^\0]")
    while match := content.search(pages, start, end):
        start = match.start()
        if pages[start : start + 24] == _BUNDLE_MAGIC:
            size, entries = _entries(path, start, pages, start, end)
            if start + size > end:
                raise _damaged(path, start, f"a bundle of {size} bytes does not fit in")
            yield from (
                (CodeObject(name, start + offset, size), pages, start + offset)
                for name, offset, size in entries
            )
        elif pages[start : start + 4] == _COMPRESSED_MAGIC:
            size, table, unpacked = _unpack(path, pages, start, end, keep)
            needed, entries = _entries(path, start, table, 0, len(table))
            if needed > unpacked:
                raise _damaged(path, start, f"a bundle of {needed} bytes is only {unpacked} long")
            yield from (
                (CodeObject(name, start, size), table, offset) for name, offset, size in entries
            )
        else:
            raise _damaged(path, start, "something that is no offload bundle")
        start += size


def _entries(
    path: Path, start: int, data: bytes | _Pages, base: int, limit: int
) -> tuple[int, list[tuple[str, int, int]]]:
    """Read the table at the start of a bundle.

    Args:
        path: For errors.
        start: Of the bundle in the file, for errors.
        data: What the bundle is in.
        base: Where the bundle starts in the data.
        limit: Where it must have ended.

    Returns:
        The size of the bundle, and target, offset and size of each code object in it.
    """
    if data[base : base + 24] != _BUNDLE_MAGIC:
        raise _damaged(path, start, "what was compressed is no offload bundle")
    count = _integer(path, start, data[base : min(base + 32, limit)], 24, 8)
    if count > _MOST_ENTRIES:
        raise _damaged(path, start, f"a bundle of {count} entries")
    entries: list[tuple[str, int, int]] = []
    position = base + 32
    end = position - base
    for _ in range(count):
        entry = data[position : min(position + 24 + _LONGEST_ENTRY_ID, limit)]
        offset, size, length = (_integer(path, start, entry, field, 8) for field in (0, 8, 16))
        raw_name = entry[24 : 24 + length]
        if len(raw_name) != length or not re.fullmatch(rb"[\x21-\x7e]+", raw_name):
            raise _damaged(path, start, "a bundle has an entry without a name")
        position += 24 + length
        end = max(end, position - base, offset + size)
        name = _target_of_entry(raw_name.decode())
        if size and name is not None:
            entries.append((name, offset, size))
    if any(offset < position - base for _, offset, _ in entries):
        raise _damaged(path, start, "the code of a bundle overlaps its table")
    return end, entries


def _target_of_entry(entry_id: str) -> str | None:
    """Return the target that an entry of a bundle is for; None for the host.

    An entry is named kind-architecture-vendor-system-environment-target; the environment is
    empty, or left out by old compilers.

    >>> _target_of_entry("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+:sramecc-")
    'gfx90a:sramecc-:xnack+'
    >>> _target_of_entry("hip-amdgcn-amd-amdhsa-gfx906"), _target_of_entry("host-x86_64--")
    ('gfx906', None)
    """
    kind, _, rest = entry_id.partition("-")
    if kind == "host":
        return None
    match = re.search(r"-(gfx[0-9a-f]+(?:-[0-9]+)?(?:-generic)?(?::[a-z]+[+-])*)$", rest)
    name = match[1] if match else rest.partition("--")[2] or entry_id
    try:
        return str(target.parse_target(name))
    except TargetError:
        return name


def _unpack(path: Path, pages: _Pages, start: int, end: int, keep: int) -> tuple[int, bytes, int]:
    """Unpack a compressed bundle, and keep its beginning.

    Three headers are known: magic, version (2 bytes), method (2), then, little-endian,
    1: unpacked size (4), hash (8); 2: whole size (4), unpacked size (4), hash (8);
    3: whole size (8), unpacked size (8), hash (8). The whole size includes the header.

    Returns:
        The size of the compressed bundle, the start of the bundle and its size.
    """
    header = pages[start : min(end, start + 32)]
    version = _integer(path, start, header, 4, 2)
    method = _integer(path, start, header, 6, 2)
    if version not in _HEADERS or method not in (0, 1):
        raise _damaged(path, start, f"compressed bundle of version {version}, method {method}")
    whole_width, unpacked_width = _HEADERS[version]
    first = 8 + whole_width + unpacked_width + 8
    whole = end - start
    if whole_width:
        whole = _integer(path, start, header, 8, whole_width)
    unpacked = _integer(path, start, header, 8 + whole_width, unpacked_width)
    if not first <= whole <= end - start:
        raise _damaged(path, start, f"a compressed bundle of {whole} bytes does not fit in")
    if unpacked > _UNPACKED_LIMIT:
        raise _damaged(path, start, f"a bundle says that it unpacks to {unpacked} bytes")
    frame = _zlib_frame() if method == 0 else _zstd_frame()
    table, size, position = bytearray(), 0, start + first
    while not frame.eof and position < start + whole and size <= unpacked:
        piece = pages[position : min(position + _COMPRESSED_CHUNK, start + whole)]
        position += len(piece)
        try:
            data = frame.decompress(piece)
        except Exception as error:
            raise _damaged(path, position - len(piece), f"compressed bundle: {error}") from error
        size += len(data)
        table += data[: keep - len(table)]
    position -= len(frame.unused_data)
    if not frame.eof or size != unpacked or (whole_width and position != start + whole):
        raise _damaged(path, position, f"a bundle of {unpacked} bytes unpacks to {size}")
    return position - start, bytes(table), size


# Widths of the whole and of the unpacked size, in bytes, by version.
_HEADERS = {1: (0, 4), 2: (4, 4), 3: (8, 8)}


class _Frame(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _zlib_frame() -> _Frame:
    return zlib.decompressobj()


def _zstd_frame() -> _Frame:
    import zstandard  # noqa: PLC0415 - costs 10 ms, and few files need it

    return zstandard.ZstdDecompressor().decompressobj()


def _integer(path: Path, start: int, data: bytes | _Pages, position: int, width: int) -> int:
    """Return a little-endian number, having checked that it is there."""
    field = data[position : position + width]
    if len(field) < width:
        raise _damaged(path, start, "an offload bundle ends within its table")
    return int.from_bytes(field, "little")
