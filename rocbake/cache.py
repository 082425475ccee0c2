"""The cache of sources: files named by their SHA-256, each whole or absent.

It knows nothing of where files come from. Any number of processes may share one cache.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import filelock
import platformdirs

from rocbake import log
from rocbake.digest import is_sha256, sha256_file
from rocbake.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

_CHUNK_BYTES = 1 << 20
_READ_ONLY = 0o444


def default_root() -> Path:
    """Return where the cache is: `ROCBAKE_CACHE`, else the user's cache folder for rocbake."""
    named = os.environ.get("ROCBAKE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    return platformdirs.user_cache_path("rocbake")


@dataclass(frozen=True)
class Usage:
    """How many files there are, and their bytes altogether."""

    files: int = 0
    size: int = 0


class Cache:
    """One folder of verified files.

    Below the root: `sha256/<two digits>/<digest>` holds the files, `part/` what is on its way,
    `lock/` one lock file a digest, `quarantine/` what turned out to be damaged. A lock is held by
    a living process, never by a file, so what a killed process left behind hinders nobody.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else default_root()

    def path(self, sha256: str) -> Path:
        """Return where the file with this digest is, or would be."""
        if not is_sha256(sha256):
            raise ValueError(f"not a SHA-256: {sha256!r}")
        return self.root / "sha256" / sha256[:2] / sha256

    def part_path(self, sha256: str) -> Path:
        """Return where the beginning of that file waits until the rest has come."""
        return self.root / "part" / f"{self.path(sha256).name}.part"

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Tell whether the file is here, and of that many bytes; its content is not read."""
        try:
            found = self.path(sha256).stat().st_size
        except OSError:
            return False
        return size is None or found == size

    def verify(self, sha256: str) -> bool:
        """Read the whole file, and tell whether it is here and is what its name says."""
        try:
            return sha256_file(self.path(sha256)) == sha256
        except OSError:
            return False

    @contextlib.contextmanager
    def lock(self, sha256: str) -> Iterator[None]:
        """Hold the only right, among all processes and threads, to write the file.

        Raises:
            FetchError: The lock file cannot be written.
        """
        path = self.root / "lock" / f"{sha256}.lock"
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(path)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def scratch_dir(self, prefix: str) -> tempfile.TemporaryDirectory[str]:
        """Make a folder on the cache's file system that is removed when it is left.

        Raises:
            FetchError: There can be none.
        """
        part_dir = self.root / "part"
        with writing(part_dir):
            part_dir.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryDirectory(dir=part_dir, prefix=prefix)

    def accept(self, path: Path, sha256: str) -> Path:
        """Move a file that was verified while it was written, and lies on this file system.

        The bytes are on the disk before the name is, so that a power cut leaves no false entry.

        Raises:
            FetchError: The cache cannot be written.
        """
        target = self.path(sha256)
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
            path.replace(target)
            target.chmod(_READ_ONLY)
            _sync_dir(target.parent)
        return target

    def put(self, source: Path | IO[bytes], *, sha256: str | None = None) -> tuple[str, int]:
        """Copy a file or stream into the cache; return its digest and its size in bytes.

        Args:
            source: Where the bytes are; a stream is read to its end and left open.
            sha256: What the digest must be; None accepts any.

        Raises:
            FetchError: The digest is another one, or the cache cannot be written.
        """
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(source.open("rb")) if isinstance(source, Path) else source
            folder = Path(stack.enter_context(self.scratch_dir("put-")))
            path = folder / "file"
            digest = hashlib.sha256()
            size = 0
            with writing(path), path.open("wb") as target:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    size += target.write(chunk)
            found = digest.hexdigest()
            if sha256 not in (None, found):
                raise FetchError(
                    f"not put into the cache: {source}\n  expected sha256 {sha256}\n"
                    f"  got      sha256 {found}"
                )
            self.accept(path, found)
        return found, size

    def quarantine(self, sha256: str) -> None:
        """Move a damaged file out of the way, and say so; a file that is not here is no fault.

        Raises:
            FetchError: The cache cannot be written.
        """
        path = self.path(sha256)
        target = self.root / "quarantine" / sha256
        with writing(target):
            if not path.exists():
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        log.warn(f"damaged file in the cache, moved to {target}; it is fetched again")

    def usage(self, *, besides: AbstractSet[str] = frozenset()) -> Usage:
        """Count the whole files besides some digests; those on their way do not count."""
        return _count(path for path in self._entries() if path.name not in besides)

    def prune(self, keep: AbstractSet[str]) -> Usage:
        """Remove every file whose digest is not to be kept; return what went.

        Beginnings of such files and everything in quarantine go too, uncounted. What another
        process is writing right now stays.

        Raises:
            FetchError: The cache cannot be written.
        """
        gone = []
        for path in self._entries():
            if path.name not in keep:
                gone.append(_count([path]))
                with writing(path):
                    path.unlink(missing_ok=True)
        shutil.rmtree(self.root / "quarantine", ignore_errors=True)
        for path in sorted((self.root / "part").glob("*")):
            digest = path.name.partition(".")[0]
            if digest not in keep and not self._is_locked(digest):
                _remove(path)
        return Usage(sum(usage.files for usage in gone), sum(usage.size for usage in gone))

    def _entries(self) -> list[Path]:
        found = (self.root / "sha256").glob("??/*")
        return sorted(path for path in found if is_sha256(path.name))

    def _is_locked(self, sha256: str) -> bool:
        path = self.root / "lock" / f"{sha256}.lock"
        if not path.exists():
            return False
        try:
            with filelock.FileLock(path, timeout=0):
                return False
        except (filelock.Timeout, OSError):
            return True


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Explain every failure of the file system while something is written at the path.

    Raises:
        FetchError: With the path, its file system and the bytes left on it.
    """
    try:
        yield
    except OSError as error:
        mount, free = room(path)
        reason = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "invoke clean, or set" if full else "set"
        raise FetchError(
            f"cannot write {path}: {reason}\n  file system {mount}, {free / 1e6:.1f} MB free",
            hint=f"{remedy} ROCBAKE_CACHE to a folder that can be written and has room",
        ) from error


def room(path: Path) -> tuple[Path, int]:
    """Return where the file system of a path, existing or to be, is mounted, and its free bytes."""
    place = path.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    while not place.is_mount():
        place = place.parent
    return place, free


def _count(paths: Iterator[Path] | list[Path]) -> Usage:
    files = size = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # another process pruned it
            size += path.stat().st_size
            files += 1
    return Usage(files, size)


def _sync_dir(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
