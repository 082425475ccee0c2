"""Digests: of bytes, files and folders, and the one canonical form of JSON that is hashed."""

from __future__ import annotations

import hashlib
import os
import re
from typing import IO, TYPE_CHECKING, Any

import rfc8785

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_sha256(text: str) -> bool:
    """Tell whether the text is a bare lower-case hexadecimal SHA-256."""
    return _SHA256.fullmatch(text) is not None


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of the bytes as bare hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's content as bare hexadecimal, in flat memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_stream(stream: IO[bytes]) -> str:
    """Return the SHA-256 of what is left of a stream as bare hexadecimal, in flat memory.

    For streams that are no real files; `hashlib.file_digest` asks for more than reading.
    """
    total = hashlib.sha256()
    while chunk := stream.read(1 << 20):
        total.update(chunk)
    return total.hexdigest()


def canonical_json(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return the JSON Canonicalization Scheme (RFC 8785) form of a JSON value."""
    return rfc8785.dumps(value)


def sha256_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the SHA-256 of the canonical form of a JSON value."""
    return sha256_bytes(canonical_json(value))


def sha256_files(root: Path, relative_paths: Iterable[Path]) -> str:
    """Return one digest for files below a folder: names, contents, link targets, executable bits.

    Times, owners, the other permission bits and the order given do not count: they differ from
    one checkout to the next.
    """
    entries = []
    for relative in sorted(set(relative_paths), key=lambda path: os.fsencode(path.as_posix())):
        path = root / relative
        if path.is_symlink():
            entries.append([relative.as_posix(), "link", str(path.readlink())])
        else:
            kind = "program" if path.stat().st_mode & 0o100 else "file"
            entries.append([relative.as_posix(), kind, sha256_file(path)])
    return sha256_json(entries)
