"""Freezing: what Bazel downloads, found out by running it and recorded in the recipe's lock."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from rocbake import deps, lock, plan, produce, store
from rocbake.source import Deps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocbake.recipe import Recipe
    from rocbake.target import TargetSet
    from rocbake.workshop import Workshop


def freeze(recipes: Sequence[Recipe], targets: TargetSet, *, workshop: Workshop) -> dict[str, str]:
    """Have Bazel download what recipes need, and write the digest of it into their locks.

    What it downloads is the same for every target set; one is needed to configure it.

    Args:
        recipes: Which; those that Bazel does not build are passed over.
        targets: What for.
        workshop: Where things are.

    Returns:
        By name of recipe: what was recorded.

    Raises:
        LockError: A lock is stale, or does not name every other file yet.
        RocbakeError: The kind says which step failed; see docs/exit-codes.md.
    """
    recorded: dict[str, str] = {}
    for one in recipes:
        if not one.file.bazel:
            continue
        recipe = one.built_for(targets, {})
        locks, recipe_lock = lock.require_fresh(recipe.containers, recipe)
        others = tuple(each for each in recipe_lock.sources if not isinstance(each, Deps))
        bare = recipe_lock.model_copy(update={"sources": others})
        made = plan.make(recipe, targets, locks=locks, recipe_lock=bare)
        plan.require_recorded([_without_deps(made)])
        place = f"{made.name}-{made.tag}"
        with workshop.store.only_one(place):
            work = workshop.store.work(place)
            try:
                found = _download(made, work, workshop)
            finally:
                shutil.rmtree(work, ignore_errors=True)
        lock.write(bare.model_copy(update={"sources": (*others, found)}), recipe.folder)
        recorded[made.name] = f"+ {found.label} {found.sha256[:12]}"
    return recorded


def bring(made: plan.Plan, *, workshop: Workshop) -> dict[str, Path]:
    """Bring what a plan's Bazel downloads into the cache; nothing for a plan that has no such.

    Returns:
        Where it is, by its SHA-256.

    Raises:
        FetchError: It cannot be had, or is not what the lock says.
        RocbakeError: The kind says which step failed; see docs/exit-codes.md.
    """
    if made.deps is None:
        return {}
    if workshop.cache.verify(made.deps.sha256):
        return {made.deps.sha256: workshop.cache.path(made.deps.sha256)}
    place = f"{made.name}-{made.tag}"
    with workshop.store.only_one(place):
        work = workshop.store.work(place)
        log_path = work / store.LOG
        try:
            files, tar = produce.gather(made, work, workshop=workshop, log_path=log_path)
            path = deps.bring(
                made,
                made.deps,
                work / "downloads",
                files=files,
                rootfs=tar,
                workshop=workshop,
                log_path=log_path,
            )
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return {made.deps.sha256: path}


def _download(made: plan.Plan, work: Path, workshop: Workshop) -> Deps:
    log_path = work / store.LOG
    files, tar = produce.gather(made, work, workshop=workshop, log_path=log_path)
    return deps.download(
        made, work / "downloads", files=files, rootfs=tar, workshop=workshop, log_path=log_path
    )


def _without_deps(made: plan.Plan) -> plan.Plan:
    """Return a plan in which what is to be found out is not said to be missing."""
    missing = {
        name: tuple(label for label in labels if label != plan.DOWNLOADS)
        for name, labels in made.missing.items()
    }
    return made.model_copy(
        update={"missing": {name: labels for name, labels in missing.items() if labels}}
    )
