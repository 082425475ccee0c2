"""Room: how much a build needs, and whether each file system it touches has that.

Checked before the work, because it runs out at the end of it: when an image is exported and
loaded, it is there several times.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rocbake import engine
from rocbake.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rocbake.plan import Plan
    from rocbake.source import Source

# Measured on the HIP SDK: 194 MB of packages are 1.0 GB installed; the engine holds that unpacked
# twice (builder and image store), and compressed twice (0.25 GB each).
_ENGINE_FACTOR = 14
_STORE_FACTOR = 4
_SPARE_BYTES = 500_000_000
_SPARE_INODES = 200_000


def needs(inputs: Iterable[Source]) -> dict[str, int]:
    """Return an estimate, in bytes, of what a build takes: in the engine, the store, the cache."""
    size = sum(source.size for source in inputs)
    return {
        "engine": _ENGINE_FACTOR * size + _SPARE_BYTES,
        "store": _STORE_FACTOR * size + _SPARE_BYTES,
        "cache": 2 * size + _SPARE_BYTES,
    }


def require_room(plan: Plan, *, store: Path, cache: Path) -> None:
    """Check bytes and inodes of every file system that a build writes to.

    Raises:
        EngineError: One of them has too little; all such are named.
    """
    found = problems(needs(plan.inputs), store=store, cache=cache)
    if found:
        raise EngineError(
            "too little room to build:\n  " + "\n  ".join(found),
            hint="invoke clean  shows what of ours could go",
        )


def problems(wanted: dict[str, int], *, store: Path, cache: Path) -> list[str]:
    """Return what there is too little of, for the three places together where they share one."""
    places = {"engine": engine.root_dir(), "store": store, "cache": cache}
    totals: dict[int, tuple[int, list[str], Path]] = {}
    for name, path in places.items():
        if path is None:
            continue
        there = path
        while not there.exists():
            there = there.parent
        device = there.stat().st_dev
        bytes_so_far, names, _ = totals.get(device, (0, [], there))
        totals[device] = (bytes_so_far + wanted[name], [*names, f"{name} ({path})"], there)
    found = []
    for size, names, path in totals.values():
        about = os.statvfs(path)
        free = about.f_bavail * about.f_frsize
        where = ", ".join(names)
        if free < size:
            found.append(f"{where}: about {_gb(size)} needed, {_gb(free)} free")
        # A file system without a fixed number of inodes says 0 of 0.
        if about.f_files and about.f_favail < _SPARE_INODES:
            found.append(f"{where}: {_SPARE_INODES} inodes needed, {about.f_favail} free")
    return found


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
