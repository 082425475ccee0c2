"""Cleaning: what of ours could go, shown first; nothing else, in the engine or on the disk."""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocbake import engine, golden, lock
from rocbake.errors import EngineError, LockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rocbake.cache import Cache
    from rocbake.project import Project
    from rocbake.store import Entry, Store


@dataclass(frozen=True)
class Leftover:
    """Something that could go.

    Attributes:
        what: Its kind and name.
        why: Why it could go.
        size: Bytes on disk, as far as known.
        remove: Takes it away.
    """

    what: str
    why: str
    size: int
    remove: Callable[[], object]


def find(project: Project, store: Store, cache: Cache, *, everything: bool) -> list[Leftover]:
    """Return what could go.

    Args:
        project: Its locks say which artifacts and sources are still of use.
        store: Where artifacts are.
        cache: Where sources are.
        everything: Whether what is still of use counts, too.
    """
    entries = store.entries()
    useful = entries if not everything else []
    current = golden.current_keys(project, entries)
    if current is not None:
        useful = [entry for entry in useful if entry.artifact.key in current]
    found = list(_work(store))
    useless = [entry for entry in entries if entry not in useful]
    found += _artifacts(store, useless, everything=everything)
    found += _engine({entry.artifact.key for entry in useful}, everything=everything)
    found += _cache(project, cache, everything=everything)
    return found


def _work(store: Store) -> Iterator[Leftover]:
    for path in store.works():
        yield Leftover(
            f"work {path.name}",
            "inputs and rest of a build",
            _size(path),
            functools.partial(store.remove_work, path),
        )


def _artifacts(store: Store, entries: list[Entry], *, everything: bool) -> Iterator[Leftover]:
    for entry in entries:
        yield Leftover(
            f"artifact {entry.folder.parent.name}/{entry.folder.name}",
            "all was asked for" if everything else "its recipe or lock has changed since",
            _size(entry.folder),
            functools.partial(store.remove, entry),
        )


def _engine(useful: set[str], *, everything: bool) -> Iterator[Leftover]:
    try:
        names, images = engine.leftovers(), engine.images()
    except EngineError:
        # An engine that does not answer holds nothing that could be told of, or removed.
        return
    for name in names:
        yield Leftover(
            f"container {name}",
            "left by a run that was cut off",
            0,
            functools.partial(engine.remove_container, name),
        )
    for image in images:
        if image.key in useful:
            continue
        for reference in image.references or (image.id,):
            if engine.is_in_use(reference):
                continue
            yield Leftover(
                f"image {reference}",
                "all was asked for" if everything else "this store has no artifact of it",
                image.size,
                functools.partial(engine.untag, reference),
            )


def _cache(project: Project, cache: Cache, *, everything: bool) -> Iterator[Leftover]:
    keep = set() if everything else _locked(project)
    if keep is None:
        return
    unused = cache.usage(besides=keep)
    if unused.files:
        yield Leftover(
            f"{unused.files} cached sources",
            "all was asked for" if everything else "in no lock any more",
            unused.size,
            functools.partial(cache.prune, keep),
        )
    root_dir = cache.root / "rootfs"
    if everything and root_dir.exists():
        yield Leftover(
            "root file systems",
            "all was asked for",
            _size(root_dir),
            functools.partial(shutil.rmtree, root_dir),
        )


def _locked(project: Project) -> set[str] | None:
    """Return the digests of every source in any lock; None while one cannot be read."""
    try:
        containers = [lock.read_container(one) for one in project.containers.values()]
        recipes = [lock.read_recipe(one) for one in project.recipes.values()]
    except LockError:
        return None
    return {
        *(source.sha256 for one in containers for source in (*one.packages, *one.sources)),
        *(source.sha256 for one in recipes for source in one.sources),
    }


def _size(path: Path) -> int:
    return sum(one.lstat().st_size for one in path.rglob("*") if not one.is_dir())
