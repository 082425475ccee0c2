"""Doctor: everything that would go wrong, found at once, each with what to type."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocbake import disk, engine, lock, mirror, project
from rocbake.errors import EngineError, FetchError, LockError, RecipeError, RocbakeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocbake.cache import Cache
    from rocbake.project import Project
    from rocbake.store import Store


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes:
        subject: What it was.
        says: What was found.
        remedy: What to type if it is wrong; None if it is right.
        exit_code: The exit code of the kind of failure it would become; 0 if it is right.
    """

    subject: str
    says: str
    remedy: str | None = None
    exit_code: int = 0


def examine(store: Store, cache: Cache) -> list[Finding]:
    """Look at everything a build stands on."""
    found = list(_engine())
    found += _tools()
    try:
        loaded = project.load()
    except RecipeError as wrong:
        found += [
            Finding("recipes", line, "mend the file", wrong.exit_code)
            for line in str(wrong).splitlines()
        ]
        return found
    found.append(
        Finding("recipes", ", ".join(loaded.recipes) + " on " + ", ".join(loaded.containers))
    )
    found += _locks(loaded)
    found += _mirrors(loaded)
    found += _room(loaded, store, cache)
    return found


def _engine() -> Iterator[Finding]:
    faults = engine.problems()
    for what, remedy in faults:
        yield Finding("engine", what, remedy, EngineError.exit_code)
    if faults:
        return
    about = engine.describe()
    names = engine.versions()
    yield Finding(
        "engine",
        f"Docker {names['docker']} (API {about['api']}) at {about['address']}, "
        f"buildx {names['buildx']}, store {about['store']}"
        + (", rootless" if about["rootless"] else ""),
    )


def _tools() -> Iterator[Finding]:
    for tool, purpose in (
        ("mmdebstrap", "makes the root file system"),
        ("apt-get", "makes locks; building needs none"),
        ("git", "fetches sources of the kind git"),
    ):
        path = shutil.which(tool)
        if path:
            yield Finding(tool, path)
        elif tool == "apt-get":
            yield Finding(tool, f"not here; it {purpose}")
        else:
            code = EngineError.exit_code if tool == "mmdebstrap" else FetchError.exit_code
            yield Finding(tool, f"not on PATH; it {purpose}", "./bootstrap", code)


def _locks(loaded: Project) -> Iterator[Finding]:
    for recipe in loaded.recipes.values():
        try:
            locks, _ = lock.require_fresh(recipe.containers, recipe)
        except LockError as stale:
            for line in str(stale).splitlines():
                yield Finding("locks", line, stale.hint, stale.exit_code)
            continue
        snapshot = max(one.snapshot for one in locks.values())
        count = sum(len(one.packages) for one in locks.values())
        yield Finding("locks", f"{recipe.name}: {count} packages as of {snapshot}")


def _mirrors(loaded: Project) -> Iterator[Finding]:
    try:
        mirrors = mirror.load()
    except RocbakeError as wrong:
        yield Finding("mirrors", str(wrong), wrong.hint or "mend the file", wrong.exit_code)
        return
    for name in sorted({one.archive.name for one in loaded.containers.values()}):
        places = mirrors.archives.get(name, ())
        if places:
            yield Finding("mirrors", f"{name}: {', '.join(map(mirror.redact, places))}")
        else:
            yield Finding(
                "mirrors",
                f"{name}: none known on this machine; a full cache is enough to build",
                f"export ROCBAKE_MIRRORS={name}=<address of a mirror>",
                FetchError.exit_code,
            )


def _room(loaded: Project, store: Store, cache: Cache) -> Iterator[Finding]:
    total = dict.fromkeys(("engine", "store", "cache"), 0)
    for recipe in loaded.recipes.values():
        try:
            locks, recipe_lock = lock.require_fresh(recipe.containers, recipe)
        except LockError:
            continue
        packages = [deb for one in locks.values() for deb in one.packages]
        wanted = disk.needs([*packages, *recipe_lock.sources])
        total = {place: max(total[place], wanted[place]) for place in total}
    try:
        faults = disk.problems(total, store=store.root, cache=cache.root)
    except EngineError:
        return
    for line in faults:
        yield Finding("room", line, "invoke clean", EngineError.exit_code)
    if not faults:
        yield Finding("room", "enough for the largest recipe")
