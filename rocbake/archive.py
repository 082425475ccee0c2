"""Archives: a folder as tar, tar.zst or tar.gz whose bytes depend on its content alone, and back.

Not in the bytes: the order of the file system, owners, dates, umask, locale, the path of the
folder and the number of threads. What an archive means, and where it is kept, is for others.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from rocbake.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_BLOCK = 512
_CHUNK = 1 << 20

# The last bytes of every archive: two blocks of zeros, and no padding to a tape's record.
_END = bytes(2 * _BLOCK)

# The header's fields hold these; what does not fit goes into an extended (PAX) header.
_LONGEST_NAME = 100
_LARGEST_OCTAL = 0o77777777777

# Measured on 471 MB of shared libraries, two cores, size, seconds and memory of the process:
#   level 3  155 MB   4 s   31 MB        level 10  139 MB  17 s   76 MB
#   level 6  144 MB   6 s   42 MB        level 12  139 MB  36 s  116 MB
#   level 9  141 MB  11 s   48 MB
# Builds take minutes to hours and an archive is pulled often: seconds for a tenth are well spent,
# but what comes after level 9 is not.
_LEVEL = 9

# A worker takes 12 MB, and more of them would wait for the one thread that reads and hashes.
_MOST_THREADS = 8

# What one worker compresses at a time, in bytes. It decides about the archive's bytes; libzstd's
# own choice, 16 MiB here, gains 1.7 % and takes 158 MB of memory for two workers.
_JOB_SIZE = 1 << 20

# An archive that says it needs a larger window than this was not written here.
_LARGEST_WINDOW = 8 << 20

# Compressed bytes taken at once. Four of them can stand for 128 KiB, so this bounds the memory, and
# costs nothing: 450 MB take 1.1 s this way, 0.7 s in pieces of 128 KiB.
_COMPRESSED_CHUNK = 128

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# RFC 1952. The header that zlib writes by itself has no name, the date 0, and Unix as its system.
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = zlib.MAX_WBITS + 16

# Far above what a name and a link's target take; a larger one is there to fill the memory.
_LARGEST_EXTENDED_HEADER = 64 << 10

# 64 GiB: three times the whole of ROCm.
_UNPACKED_LIMIT = 64 << 30


@dataclass(frozen=True, slots=True)
class TarDigest:
    """Identity of a tar file: SHA-256 as bare hexadecimal, size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class ArchiveDigest:
    """Identity of a compressed archive.

    Attributes:
        sha256: Of the compressed file, bare hexadecimal; another libzstd may give another one.
        size: Of the compressed file, in bytes.
        tar_sha256: Of the tar inside, bare hexadecimal; the same for ever.
        tar_size: Of the tar inside, in bytes.
    """

    sha256: str
    size: int
    tar_sha256: str
    tar_size: int


class MemberType(StrEnum):
    """What a member of an archive can be; nothing else is ever written or unpacked."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


_FLAGS = {
    MemberType.FILE: b"0",
    MemberType.HARDLINK: b"1",
    MemberType.SYMLINK: b"2",
    MemberType.FOLDER: b"5",
}
_TYPES = {flag: kind for kind, flag in _FLAGS.items()}


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive.

    Attributes:
        name: Relative path with `/` between its parts and none at its end.
        type: What it is.
        mode: Permission bits.
        size: Of the content, in bytes; 0 for what is not a file.
        mtime: Seconds since 1970.
        linkname: What a symlink says, or the name of the earlier member a hardlink is; else "".
        sha256: Of a file's content, bare hexadecimal; else "".
    """

    name: str
    type: MemberType
    mode: int
    size: int = 0
    mtime: int = 0
    linkname: str = ""
    sha256: str = ""


class _Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


class _Hashed:
    """Pass bytes on to a sink, and know their SHA-256 and number."""

    def __init__(self, sink: _Sink, progress: Callable[[int], None] | None = None) -> None:
        self._sink = sink
        self._progress = progress
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes, /) -> int:
        self._sink.write(data)
        self._hash.update(data)
        self.size += len(data)
        if self._progress:
            self._progress(len(data))
        return len(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Compressed:
    """Compress what is written, and pass it on."""

    def __init__(self, sink: _Sink, compressor: _Compressor) -> None:
        self._sink = sink
        self._compressor = compressor

    def write(self, data: bytes, /) -> None:
        self._sink.write(self._compressor.compress(data))

    def finish(self) -> None:
        self._sink.write(self._compressor.flush())


def write_tar(
    root: Path,
    destination: Path | BinaryIO,
    *,
    prefix: str,
    epoch: int,
    progress: Callable[[int], None] | None = None,
) -> TarDigest:
    """Write a folder as a plain tar.

    Args:
        root: The folder. Its own name and mode do not count.
        destination: A path, replaced once the tar is whole, or a binary stream.
        prefix: Folder inside the tar to put everything into, such as "rocbake-1.0"; "" for none.
        epoch: The date of every member, in seconds since 1970. Those of the files do not count,
            so that a copy or a new checkout gives the same bytes.
        progress: Called with the number of bytes of the tar that were just written.

    Raises:
        BuildError: Naming the member, if it is a device, a pipe, a socket, setuid, setgid or
            sticky, a link that is absolute or leaves the folder, has a name that is not UTF-8,
            or changes meanwhile; or if something cannot be read or written.
    """
    plan = _plan(root, prefix)
    if isinstance(destination, Path):
        _check_outside(root, destination)
        with _explained(f"cannot write {destination}"), _atomic(destination) as stream:
            return _write_members(plan, stream, epoch, progress)
    with _explained(f"cannot archive {root}"):
        return _write_members(plan, destination, epoch, progress)


def write_archive(
    root: Path,
    destination: Path,
    *,
    prefix: str,
    epoch: int,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> ArchiveDigest:
    """Write a folder as tar.zst, or as tar.gz where the name ends so.

    A tar.zst is one frame, with the size and a checksum of its content. A tar.gz is for those who
    take nothing else: one member, without name and date. Every deflate writes other bytes, so it
    is known by its tar.

    Args:
        root: As for write_tar.
        destination: Path of the archive, replaced once it is whole.
        prefix: As for write_tar.
        epoch: As for write_tar.
        threads: How many compress; None for one a processor. The bytes are the same for any.
        progress: Called with the number of bytes of the tar that were just compressed.

    Raises:
        BuildError: As for write_tar.
    """
    plan = _plan(root, prefix)
    _check_outside(root, destination)
    with _explained(f"cannot write {destination}"), _atomic(destination) as stream:
        packed = _Hashed(stream)
        compressor = (
            zlib.compressobj(wbits=_GZIP)
            if destination.name.endswith(".gz")
            else _zstd(_tar_size(plan), threads)
        )
        sink = _Compressed(packed, compressor)
        tar = _write_members(plan, sink, epoch, progress)
        sink.finish()
    return ArchiveDigest(packed.sha256, packed.size, tar.sha256, tar.size)


def _zstd(size: int, threads: int | None) -> _Compressor:
    import zstandard  # noqa: PLC0415 - costs 10 ms that a reused build has not

    workers = min(threads or os.cpu_count() or 1, _MOST_THREADS)
    compressor = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(
            _LEVEL,
            # Never 0: without workers libzstd takes another path and gives other bytes.
            threads=max(workers, 1),
            job_size=_JOB_SIZE,
            write_checksum=True,
            write_content_size=True,
        )
    )
    return compressor.compressobj(size=size)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A member that is going to be written, and the file that it is read from."""

    member: Member
    path: str


def _plan(root: Path, prefix: str) -> list[_Planned]:
    """Return what is in a folder, sorted by the bytes of the names, every type checked."""
    if prefix and not _is_plain(prefix):
        raise BuildError(f"archive prefix {prefix!r} must be a relative path without . and ..")
    with _explained(f"cannot archive {root}"):
        found = sorted(_walk(os.fspath(root)), key=operator.itemgetter(0))
    names: dict[tuple[int, int], str] = {}
    links: dict[str, str] = {}
    planned = []
    parents = prefix.split("/") if prefix else []
    for depth in range(len(parents)):
        parent = "/".join(parents[: depth + 1])
        planned.append(_Planned(Member(parent, MemberType.FOLDER, 0o755), ""))
    for raw_name, entry in found:
        name = os.fsdecode(raw_name)
        with _explained(f"cannot archive {root}"):
            member = _inspect(name, entry, names)
        if member.type is MemberType.SYMLINK:
            links[name] = member.linkname
        planned.append(_Planned(_below(prefix, member), entry.path))
    _check_links(links)
    return planned


def _walk(root: str) -> Iterator[tuple[bytes, os.DirEntry[str]]]:
    folders = [(root, "")]
    while folders:
        folder, name = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                child = f"{name}/{entry.name}" if name else entry.name
                yield os.fsencode(child), entry
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, child))


def _inspect(name: str, entry: os.DirEntry[str], names: dict[tuple[int, int], str]) -> Member:
    """Return the member that a file becomes; names are those of files with several hard links."""
    status = entry.stat(follow_symlinks=False)
    _check_utf8(name, name)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(entry.path)  # noqa: PTH115 - a Path would drop "./"
        _check_utf8(name, target)
        return Member(name, MemberType.SYMLINK, 0o777, linkname=target)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise BuildError(f"{_shown(name)} is neither a file, a folder nor a link")
    if status.st_mode & 0o7000:
        raise BuildError(
            f"{_shown(name)} is setuid, setgid or sticky: mode {stat.S_IMODE(status.st_mode):04o}"
        )
    if stat.S_ISDIR(status.st_mode):
        return Member(name, MemberType.FOLDER, 0o755)
    mode = 0o755 if status.st_mode & 0o100 else 0o644
    if status.st_nlink > 1:
        first = names.setdefault((status.st_dev, status.st_ino), name)
        if first != name:
            return Member(name, MemberType.HARDLINK, mode, linkname=first)
    return Member(name, MemberType.FILE, mode, status.st_size)


def _below(prefix: str, member: Member) -> Member:
    """Return the member inside the prefix; only a hard link names another member in full."""
    if not prefix:
        return member
    linkname = member.linkname
    if member.type is MemberType.HARDLINK:
        linkname = f"{prefix}/{linkname}"
    return Member(
        f"{prefix}/{member.name}", member.type, member.mode, member.size, linkname=linkname
    )


def _tar_size(plan: list[_Planned]) -> int:
    headers = sum(len(_header(planned.member, 0)) for planned in plan)
    return headers + sum(_padded(planned.member.size) for planned in plan) + len(_END)


def _write_members(
    plan: list[_Planned], sink: _Sink, epoch: int, progress: Callable[[int], None] | None
) -> TarDigest:
    if not 0 <= epoch <= _LARGEST_OCTAL:
        raise BuildError(f"epoch {epoch} is not a date that a tar can hold")
    tar = _Hashed(sink, progress)
    for planned in plan:
        tar.write(_header(planned.member, epoch))
        if planned.member.type is MemberType.FILE:
            _write_content(planned, tar)
    tar.write(_END)
    return TarDigest(tar.sha256, tar.size)


def _write_content(planned: _Planned, tar: _Hashed) -> None:
    left = planned.member.size
    # A file that was swapped for a link or a pipe since it was looked at must not be followed.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(planned.path, flags), "rb", buffering=0) as stream:
        while chunk := stream.read(min(_CHUNK, left) or 1):
            if len(chunk) > left:
                raise BuildError(f"{_shown(planned.member.name)} grew while it was archived")
            tar.write(chunk)
            left -= len(chunk)
    if left:
        raise BuildError(f"{_shown(planned.member.name)} shrank while it was archived")
    tar.write(bytes(_padded(planned.member.size) - planned.member.size))


def _header(member: Member, epoch: int) -> bytes:
    """Return the blocks before a member's content: an extended header if needed, and its own."""
    name = (member.name + ("/" if member.type is MemberType.FOLDER else "")).encode()
    linkname = member.linkname.encode()
    records = b""
    if len(name) > _LONGEST_NAME or not name.isascii():
        records += _record(b"path", name)
    if len(linkname) > _LONGEST_NAME or not linkname.isascii():
        records += _record(b"linkpath", linkname)
    if member.size > _LARGEST_OCTAL:
        records += _record(b"size", b"%d" % member.size)
    block = _block(
        name,
        linkname,
        mode=member.mode,
        size=member.size,
        mtime=epoch,
        flag=_FLAGS[member.type],
    )
    if not records:
        return block
    # One name for all extended headers: a reader that knows none of them sees one odd file.
    before = _block(b"././@PaxHeader", mode=0o644, size=len(records), mtime=epoch, flag=b"x")
    return before + records.ljust(_padded(len(records)), b"\0") + block


def _record(key: bytes, value: bytes) -> bytes:
    r"""Return a record of an extended header, whose length counts its own digits.

    >>> _record(b"path", b"abc")
    b'12 path=abc\n'
    """
    rest = len(key) + len(value) + len(b" =\n")
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _block(
    name: bytes, linkname: bytes = b"", *, mode: int, size: int, mtime: int, flag: bytes
) -> bytes:
    """Return a ustar header; what does not fit is cut, an extended header says it in full."""
    fields = (
        name[:_LONGEST_NAME].ljust(100, b"\0"),
        b"%07o\0" % mode,
        b"%07o\0" % 0,  # user
        b"%07o\0" % 0,  # group
        b"%011o\0" % (size if size <= _LARGEST_OCTAL else 0),
        b"%011o\0" % mtime,
        b" " * 8,  # the checksum, which counts itself as blanks
        flag,
        linkname[:_LONGEST_NAME].ljust(100, b"\0"),
        b"ustar\x0000",
        bytes(32 + 32),  # the names of user and group
        b"%07o\0" * 2 % (0, 0),  # the numbers of a device
        bytes(155 + 12),  # the prefix of a long name, and padding
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _check_utf8(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        what = "has a name" if text == name else "is a link to a name"
        raise BuildError(f"{_shown(name)} {what} that is not UTF-8") from None


def _check_outside(root: Path, destination: Path) -> None:
    if root.resolve() in destination.resolve().parents:
        raise BuildError(f"{destination} is inside the folder to be archived, {root}")


def _is_plain(path: str) -> bool:
    """Tell whether a relative path says what it means: no empty part, no `.` and no `..`."""
    return not {"", ".", ".."} & set(path.split("/")) and "\0" not in path


def _leaves(name: str, links: Mapping[str, str]) -> bool:
    """Tell whether following a symlink goes above the top of the archive at any point.

    Args:
        name: The symlink.
        links: What each symlink of the archive says, by its name. Their folders are real ones.

    >>> _leaves("a/b", {"a/b": "../c"}), _leaves("a/b", {"a/b": "../../c"})
    (False, True)
    """
    here = name.split("/")[:-1]
    todo = deque(links[name].split("/"))
    # As many links as Linux follows: beyond that, and in a circle, nothing can be reached.
    followed = 0
    while todo and followed < 40:  # noqa: PLR2004 - said above
        part = todo.popleft()
        if part in ("", "."):
            continue
        if part == "..":
            if not here:
                return True
            here.pop()
            continue
        here.append(part)
        target = links.get("/".join(here))
        if target is not None:
            here.pop()
            followed += 1
            todo.extendleft(reversed(target.split("/")))
    return False


def _check_links(links: Mapping[str, str]) -> None:
    for name, target in links.items():
        if target.startswith("/"):
            raise BuildError(f"{_shown(name)} is an absolute link, to {target!r}")
        if _leaves(name, links):
            raise BuildError(f"{_shown(name)} is a link out of the archive, to {target!r}")


def _shown(name: str) -> str:
    """Return a member's name as it can be printed anywhere: quoted if anything in it is odd."""
    return name if name.isprintable() and name.strip() == name != "" else ascii(name)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn a failure of the operating system into one that says what could not be done."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"{what}: {error}") from error


@contextlib.contextmanager
def _atomic(destination: Path) -> Iterator[BinaryIO]:
    """Give a file that takes the destination's place once everything is on disk, or vanishes."""
    descriptor, name = tempfile.mkstemp(
        dir=destination.parent, prefix=f".{destination.name[:200]}.", suffix=".part"
    )
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        part.replace(destination)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(destination.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    with _explained(f"cannot unpack {path}"):
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
    with _explained(f"cannot read {path}"), path.open("rb") as stream:
        magic = stream.read(len(_ZSTD_MAGIC))
        stream.seek(0)
        if magic == _ZSTD_MAGIC:
            pieces = _decompress(stream, path)
        elif magic.startswith(_GZIP_MAGIC):
            pieces = _inflate(stream, path)
        else:
            pieces = iter(lambda: stream.read(_CHUNK), b"")
        yield _Source(path, pieces, limit)


def _inflate(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=_GZIP)
    try:
        while not member.eof:
            piece = member.unconsumed_tail or stream.read(_CHUNK)
            if not piece:
                raise BuildError(f"{path}: ends too early")
            # Bounded: a few bytes can stand for a thousand times as many.
            if data := member.decompress(piece, _CHUNK):
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
        if source.read(_padded(member.size) - member.size).strip(b"\0"):
            raise source.error(f"{_shown(member.name)} is padded with something")
    source.finish()
    try:
        _check_links(links)
    except BuildError as error:
        raise source.error(str(error)) from None


def _check_member(source: _Source, member: Member, types: Mapping[str, MemberType]) -> None:
    name = _shown(member.name)
    parent = member.name.rpartition("/")[0]
    if not _is_plain(member.name):
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
            f"{name} is a hardlink to {_shown(member.linkname)}, which is not a file before it"
        )


def _next_member(source: _Source) -> Member | None:
    """Read one header, and the extended one before it; None is the end of the archive."""
    block = source.read(_BLOCK)
    if not any(block):
        if any(source.read(_BLOCK)):
            raise source.error("has one block of zeros where there must be two")
        return None
    records: dict[bytes, bytes] = {}
    if _flag(source, block) == b"x":
        size = _number(source, block[124:136])
        if size > _LARGEST_EXTENDED_HEADER:
            raise source.error(f"has an extended header of {size} bytes")
        records = _records(source, source.read(_padded(size))[:size])
        block = source.read(_BLOCK)
    flag = _flag(source, block)
    before, name = (block[start:end].rstrip(b"\0") for start, end in ((345, 500), (0, 100)))
    name = records.get(b"path", before + b"/" + name if before else name)
    linkname = records.get(b"linkpath", block[157:257].rstrip(b"\0"))
    kind = _TYPES.get(flag)
    if kind is None:
        raise source.error(
            f"{_shown(os.fsdecode(name))} is neither a file, a folder nor a link: type {flag!r}"
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
