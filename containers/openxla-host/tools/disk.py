"""Bazel's disk cache, kept within bounds: its own collection waits for an idle server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 20 * 1000**3


def prune(folder: Path, largest: int = LARGEST) -> str:
    """Remove what was used longest ago until the rest fits; say what is left.

    Bazel touches what it uses. What is removed is a miss for the next build, and no more.
    """
    files = []
    for path in folder.rglob("*"):
        status = path.lstat()
        if path.is_file() and not path.is_symlink():
            files.append((status.st_mtime_ns, status.st_size, path))
    total, gone = sum(size for _, size, _ in files), 0
    for _, size, path in sorted(files):
        if total <= largest:
            break
        path.unlink(missing_ok=True)
        total -= size
        gone += 1
    return f"disk cache: {total / 1e6:.0f} MB, {gone} files removed"
