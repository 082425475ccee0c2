"""Archives: a folder as tar, tar.zst or tar.gz whose bytes depend on its content alone.

Not in the bytes: the order of the file system, owners, dates, umask, locale, the path of the
folder and the number of threads. What an archive means, and where it is kept, is for others.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import stat
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from rocbake.errors import BuildError
from rocbake.member import (
    BLOCK,
    CHUNK,
    FLAGS,
    GZIP,
    Member,
    MemberType,
    check_links,
    explained,
    is_plain,
    padded,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The last bytes of every archive: two blocks of zeros, and no padding to a tape's record.
_END = bytes(2 * BLOCK)

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
        with explained(f"cannot write {destination}"), _atomic(destination) as stream:
            return _write_members(plan, stream, epoch, progress)
    with explained(f"cannot archive {root}"):
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
    with explained(f"cannot write {destination}"), _atomic(destination) as stream:
        packed = _Hashed(stream)
        compressor = (
            zlib.compressobj(wbits=GZIP)
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
    if prefix and not is_plain(prefix):
        raise BuildError(f"archive prefix {prefix!r} must be a relative path without . and ..")
    with explained(f"cannot archive {root}"):
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
        with explained(f"cannot archive {root}"):
            member = _inspect(name, entry, names)
        if member.type is MemberType.SYMLINK:
            links[name] = member.linkname
        planned.append(_Planned(_below(prefix, member), entry.path))
    check_links(links)
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
        raise BuildError(f"{shown(name)} is neither a file, a folder nor a link")
    if status.st_mode & 0o7000:
        raise BuildError(
            f"{shown(name)} is setuid, setgid or sticky: mode {stat.S_IMODE(status.st_mode):04o}"
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
    return headers + sum(padded(planned.member.size) for planned in plan) + len(_END)


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
        while chunk := stream.read(min(CHUNK, left) or 1):
            if len(chunk) > left:
                raise BuildError(f"{shown(planned.member.name)} grew while it was archived")
            tar.write(chunk)
            left -= len(chunk)
    if left:
        raise BuildError(f"{shown(planned.member.name)} shrank while it was archived")
    tar.write(bytes(padded(planned.member.size) - planned.member.size))


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
        flag=FLAGS[member.type],
    )
    if not records:
        return block
    # One name for all extended headers: a reader that knows none of them sees one odd file.
    before = _block(b"././@PaxHeader", mode=0o644, size=len(records), mtime=epoch, flag=b"x")
    return before + records.ljust(padded(len(records)), b"\0") + block


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


def _check_utf8(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        what = "has a name" if text == name else "is a link to a name"
        raise BuildError(f"{shown(name)} {what} that is not UTF-8") from None


def _check_outside(root: Path, destination: Path) -> None:
    if root.resolve() in destination.resolve().parents:
        raise BuildError(f"{destination} is inside the folder to be archived, {root}")


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
