"""Unpacking: what was archived here, read back, whoever had it in between.

Nothing that is never written here is unpacked, and nothing is left of what is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rocbake.errors import BuildError
from rocbake.member import (
    BLOCK,
    CHUNK,
    GZIP,
    TYPES,
    Member,
    MemberType,
    check_links,
    explained,
    is_plain,
    padded,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# An archive that says it needs a larger window than this was not written here.
_LARGEST_WINDOW = 8 << 20

# Compressed bytes taken at once. Four of them can stand for 128 KiB, so this bounds the memory, and
# costs nothing: 450 MB take 1.1 s this way, 0.7 s in pieces of 128 KiB.
_COMPRESSED_CHUNK = 128

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"

# Far above what a name and a link's target take; a larger one is there to fill the memory.
_LARGEST_EXTENDED_HEADER = 64 << 10

# 64 GiB: three times the whole of ROCm.
_UNPACKED_LIMIT = 64 << 30


def read_members(path: Path, *, limit: int = _UNPACKED_LIMIT) -> Iterator[Member]:
    """Read the members of an archive that was written here, contents hashed, in flat memory.

    Args:
        path: The archive.
        limit: How many bytes of tar there may be; a small archive can unpack to a full disk.

    Raises:
        BuildError: Naming the archive and the member, if it is damaged, too large, or holds what
            is never written here: see unpack.
    """
    with _opened(path, limit) as source:
        for member, content in _members(source):
            if member.type is not MemberType.FILE:
                yield member
                continue
            digest = hashlib.sha256()
            for chunk in content:
                digest.update(chunk)
            yield replace(member, sha256=digest.hexdigest())


def unpack(path: Path, destination: Path, *, limit: int = _UNPACKED_LIMIT) -> None:
    """Unpack a tar, tar.zst or tar.gz that was written here, whoever had it in between.

    Modes become 0755 and 0644, owners are not taken over, dates are.

    Args:
        path: The archive.
        destination: A folder that does not exist yet; it does afterwards, or nothing is left.
        limit: As for read_members.

    Raises:
        BuildError: Naming the archive and the member, if it is damaged or too large, or a member
            has an absolute name or one with `..`, comes twice or before its folder, is a device,
            setuid, setgid or sticky, or links to the outside; or if something cannot be written.
    """
    if os.path.lexists(destination):
        raise BuildError(f"{destination} exists, {path.name} is not unpacked over it")
    with explained(f"cannot unpack {path}"):
        part = Path(
            tempfile.mkdtemp(
                dir=destination.parent, prefix=f".{destination.name[:200]}.", suffix=".part"
            )
        )
        try:
            with _opened(path, limit) as source:
                _unpack_members(source, part)
            part.chmod(0o755)
            part.rename(destination)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


def _unpack_members(source: _Source, top: Path) -> None:
    folders = []
    for member, content in _members(source):
        path = top / member.name
        match member.type:
            case MemberType.FOLDER:
                path.mkdir()
                folders.append((path, member.mtime))
            case MemberType.FILE:
                _unpack_file(member, content, path)
            case MemberType.SYMLINK:
                os.symlink(member.linkname, path)  # noqa: PTH211 - a Path would drop "./"
                os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)
            case MemberType.HARDLINK:
                path.hardlink_to(top / member.linkname)
    # Last, and the innermost first, because what is put into a folder changes its date.
    for path, mtime in reversed(folders):
        path.chmod(0o755)
        os.utime(path, (mtime, mtime))


def _unpack_file(member: Member, content: Iterator[bytes], path: Path) -> None:
    with path.open("xb") as stream:
        for chunk in content:
            stream.write(chunk)
        stream.flush()
        os.fchmod(stream.fileno(), 0o755 if member.mode & 0o100 else 0o644)
        os.utime(stream.fileno(), (member.mtime, member.mtime))


class _Source:
    """The bytes of a tar, in order, and where in it we are."""

    def __init__(self, path: Path, pieces: Iterator[bytes], limit: int) -> None:
        self._path = path
        self._pieces = pieces
        self._limit = limit
        self._buffer = b""
        self.offset = 0

    def error(self, what: str) -> BuildError:
        return BuildError(f"{self._path}: {what} (byte {self.offset} of the tar)")

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes; only for sizes that fit into memory."""
        return b"".join(self.chunks(size))

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield exactly so many bytes, piece by piece."""
        if self.offset + size > self._limit:
            raise self.error(f"is larger than {self._limit} bytes when unpacked")
        while size:
            chunk = self._buffer or self._next()
            chunk, self._buffer = chunk[:size], chunk[size:]
            size -= len(chunk)
            self.offset += len(chunk)
            yield chunk

    def finish(self) -> None:
        """Make sure that nothing but zeros follows."""
        rest = self._buffer
        while rest or (rest := next(self._pieces, b"")):
            if rest.strip(b"\0"):
                raise self.error("has something after its end")
            self.offset += len(rest)
            if self.offset > self._limit:
                raise self.error(f"is larger than {self._limit} bytes when unpacked")
            rest = b""

    def _next(self) -> bytes:
        piece = next(self._pieces, b"")
        if not piece:
            raise self.error("ends too early")
        return piece


@contextlib.contextmanager
def _opened(path: Path, limit: int) -> Iterator[_Source]:
    with explained(f"cannot read {path}"), path.open("rb") as stream:
        magic = stream.read(len(_ZSTD_MAGIC))
        stream.seek(0)
        if magic == _ZSTD_MAGIC:
            pieces = _decompress(stream, path)
        elif magic.startswith(_GZIP_MAGIC):
            pieces = _inflate(stream, path)
        else:
            pieces = iter(lambda: stream.read(CHUNK), b"")
        yield _Source(path, pieces, limit)


def _inflate(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=GZIP)
    try:
        while not member.eof:
            piece = member.unconsumed_tail or stream.read(CHUNK)
            if not piece:
                raise BuildError(f"{path}: ends too early")
            # Bounded: a few bytes can stand for a thousand times as many.
            if data := member.decompress(piece, CHUNK):
                yield data
    except zlib.error as error:
        raise BuildError(f"{path}: {error} (before byte {stream.tell()})") from error
    if member.unused_data or stream.read(1):
        raise BuildError(f"{path}: has something after its gzip member")


def _decompress(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    import zstandard  # noqa: PLC0415 - as above

    frame = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
    while piece := stream.read(_COMPRESSED_CHUNK):
        if frame.eof:
            raise BuildError(f"{path}: has something after its zstd frame")
        try:
            data = frame.decompress(piece)
        except zstandard.ZstdError as error:
            raise BuildError(f"{path}: {error} (before byte {stream.tell()})") from error
        if data:
            yield data
    if not frame.eof or frame.unused_data:
        why = "has something after its zstd frame" if frame.eof else "ends too early"
        raise BuildError(f"{path}: {why}")


def _members(source: _Source) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """Yield every member, checked, with its content, which must be taken before the next one."""
    types: dict[str, MemberType] = {}
    links: dict[str, str] = {}
    while (member := _next_member(source)) is not None:
        _check_member(source, member, types)
        types[member.name] = member.type
        if member.type is MemberType.SYMLINK:
            links[member.name] = member.linkname
        yield member, source.chunks(member.size)
        if source.read(padded(member.size) - member.size).strip(b"\0"):
            raise source.error(f"{shown(member.name)} is padded with something")
    source.finish()
    try:
        check_links(links)
    except BuildError as error:
        raise source.error(str(error)) from None


def _check_member(source: _Source, member: Member, types: Mapping[str, MemberType]) -> None:
    name = shown(member.name)
    parent = member.name.rpartition("/")[0]
    if not is_plain(member.name):
        raise source.error(f"{name} is not a relative path without . and ..")
    if member.name in types:
        raise source.error(f"{name} comes twice")
    if parent and types.get(parent) is not MemberType.FOLDER:
        raise source.error(f"{name} does not come after its folder")
    if member.mode & ~0o777:
        raise source.error(f"{name} is setuid, setgid or sticky: mode {member.mode:04o}")
    if member.size and member.type is not MemberType.FILE:
        raise source.error(f"{name} is a {member.type} with content")
    is_link = member.type in (MemberType.SYMLINK, MemberType.HARDLINK)
    if is_link is (member.linkname == "") or "\0" in member.linkname:
        raise source.error(f"{name} is a {member.type} to {member.linkname!r}")
    if member.type is MemberType.HARDLINK and types.get(member.linkname) is not MemberType.FILE:
        raise source.error(
            f"{name} is a hardlink to {shown(member.linkname)}, which is not a file before it"
        )


def _next_member(source: _Source) -> Member | None:
    """Read one header, and the extended one before it; None is the end of the archive."""
    block = source.read(BLOCK)
    if not any(block):
        if any(source.read(BLOCK)):
            raise source.error("has one block of zeros where there must be two")
        return None
    records: dict[bytes, bytes] = {}
    if _flag(source, block) == b"x":
        size = _number(source, block[124:136])
        if size > _LARGEST_EXTENDED_HEADER:
            raise source.error(f"has an extended header of {size} bytes")
        records = _records(source, source.read(padded(size))[:size])
        block = source.read(BLOCK)
    flag = _flag(source, block)
    before, name = (block[start:end].rstrip(b"\0") for start, end in ((345, 500), (0, 100)))
    name = records.get(b"path", before + b"/" + name if before else name)
    linkname = records.get(b"linkpath", block[157:257].rstrip(b"\0"))
    kind = TYPES.get(flag)
    if kind is None:
        raise source.error(
            f"{shown(os.fsdecode(name))} is neither a file, a folder nor a link: type {flag!r}"
        )
    if kind is MemberType.FOLDER:
        name = name.removesuffix(b"/")
    return Member(
        _text(source, name),
        kind,
        mode=_number(source, block[100:108]),
        size=_number(source, records.get(b"size", block[124:136]), 10 if b"size" in records else 8),
        mtime=_number(source, block[136:148]),
        linkname=_text(source, linkname),
    )


def _flag(source: _Source, block: bytes) -> bytes:
    """Return the type in a header, having checked that it is a whole one."""
    if block[257:265] != b"ustar\x0000":
        raise source.error("has no tar header where one must be")
    blanked = block[:148] + b" " * 8 + block[156:]
    if _number(source, block[148:156]) != sum(blanked):
        raise source.error("has a header with a wrong checksum")
    return block[156:157]


def _number(source: _Source, field: bytes, base: int = 8) -> int:
    digits = field.rstrip(b" \0")
    pattern = rb"[0-7]{1,11}" if base == 8 else rb"[0-9]{1,19}"  # noqa: PLR2004 - said by itself
    if not re.fullmatch(pattern, digits):
        raise source.error(f"has {digits!r} where a number must be")
    return int(digits, base)


def _records(source: _Source, data: bytes) -> dict[bytes, bytes]:
    """Read an extended header: only what is written here, because the rest changes the meaning."""
    records: dict[bytes, bytes] = {}
    while data:
        digits = data.partition(b" ")[0]
        length = int(digits) if re.fullmatch(rb"[0-9]{1,5}", digits) else 0
        key, equals, value = data[len(digits) + 1 : length].partition(b"=")
        known = key in (b"path", b"linkpath", b"size") and key not in records
        if not (known and equals and value.endswith(b"\n") and length <= len(data)):
            raise source.error("has an extended header that was not written here")
        records[key] = value[:-1]
        data = data[length:]
    return records


def _text(source: _Source, name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise source.error(f"{name!a} is not UTF-8") from None
