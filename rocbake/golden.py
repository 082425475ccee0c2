"""Golden digests: what a build gave once, recorded in its lock, for every later build to match."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocbake import lock, plan, store, target
from rocbake.errors import LockError, TargetError
from rocbake.lock import Recorded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocbake.option import Option
    from rocbake.project import Project
    from rocbake.store import Artifact, Entry


def find(project: Project, artifact: Artifact) -> Recorded | None:
    """Return what the lock recorded for an artifact's plan, if it did."""
    owner = project.recipes.get(artifact.name)
    kept = (
        lock.read_recipe(owner).recorded
        if owner
        else lock.read_container(project.containers[artifact.name]).recorded
    )
    record = kept.get(artifact.tag)
    return record if record and record.key == artifact.key else None


def compare(entry: Entry, recorded: Recorded) -> str | None:
    """Return the first thing in which an artifact differs from a record, or None.

    The compressed bytes of an image are left out: they change with the engine's version.
    """
    artifact = entry.artifact
    if artifact.archive and artifact.archive.identity != recorded.archive:
        here = store.file_digests(entry.folder)
        for path in sorted({*here, *recorded.files}):
            if here.get(path) != recorded.files.get(path):
                return (
                    f"archive: {path}: expected sha256 {recorded.files.get(path, 'no such file')}, "
                    f"got {here.get(path, 'no such file')}"
                )
        return f"archive: expected sha256 {recorded.archive}, got {artifact.archive.identity}"
    for what, expected_sha256, packed in (
        ("bundled archive", recorded.bundled, artifact.bundled),
        ("tests", recorded.tests, artifact.tests),
    ):
        got_sha256 = packed.sha256 if packed else None
        if got_sha256 != expected_sha256:
            return f"{what}: expected sha256 {expected_sha256}, got {got_sha256}"
    image = artifact.image
    for number, expected in enumerate(recorded.layers):
        got = image.layers[number] if number < len(image.layers) else "no such layer"
        if expected != got:
            return f"image, layer {number}: expected {expected}, got {got}"
    if recorded.config != image.config:
        return f"image configuration: expected {recorded.config}, got {image.config}"
    return None


def current_keys(project: Project, entries: Sequence[Entry]) -> set[str] | None:
    """Return the keys that today's locks give for the artifacts' targets.

    None while a lock is stale: nothing can be said then, and nothing of value goes by mistake.
    """
    keys: set[str] = set()
    for recipe in project.recipes.values():
        built = {
            (one.targets, tuple(sorted(one.overridden.items())))
            for one in (entry.artifact for entry in entries)
            if one.name == recipe.name
        }
        # Its containers are of use whether or not it was built.
        for names, overridden in built or {(("gfx1201",), ())}:
            targets = target.parse_target_set([",".join(names)])
            asked = _known(overridden, recipe.options)
            one = recipe.built_for(targets, asked)
            try:
                locks, recipe_lock = lock.require_fresh(one.containers, one)
                made = plan.make(one, targets, locks=locks, recipe_lock=recipe_lock, asked=asked)
            except LockError:
                return None
            except TargetError:
                # There are containers' files for other targets, and none for these any more.
                continue
            keys |= {made.key, *(layer.key for layer in made.layers)}
    return keys


def _known(
    overridden: tuple[tuple[str, str], ...], options: Mapping[str, Option]
) -> dict[str, str]:
    """Return what may still be asked for: an option, or a value of it, may be gone since."""
    return {
        name: value
        for name, value in overridden
        if name in options and value in options[name].values
    }


def record(project: Project, entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Write the digests of stored artifacts into the locks that their plans came from.

    Args:
        project: Whose locks are written.
        entries: What is recorded; where two have one name and tag, the last one stays.

    Returns:
        By name of container or recipe: the lines that tell what was recorded.

    Raises:
        BuildError: An artifact is damaged.
        LockError: There is nothing to record.
    """
    changes: dict[str, list[str]] = {}
    for entry in entries:
        artifact = entry.artifact
        entry.check()
        recorded = Recorded(
            key=artifact.key,
            config=artifact.image.config,
            layers=artifact.image.layers,
            archive=artifact.archive.identity if artifact.archive else None,
            files=store.file_digests(entry.folder) if artifact.archive else {},
            bundled=artifact.bundled.sha256 if artifact.bundled else None,
            tests=artifact.tests.sha256 if artifact.tests else None,
        )
        owner = project.recipes.get(artifact.name)
        if owner:
            recipe_lock = lock.read_recipe(owner)
            merged = {**recipe_lock.recorded, artifact.tag: recorded}
            lock.write(recipe_lock.model_copy(update={"recorded": merged}), owner.folder)
        elif artifact.name in project.containers:
            container = project.containers[artifact.name]
            container_lock = lock.read_container(container)
            merged = {**container_lock.recorded, artifact.tag: recorded}
            lock.write(container_lock.model_copy(update={"recorded": merged}), container.folder)
        else:
            continue
        what = artifact.archive.sha256 if artifact.archive else artifact.image.config
        changes.setdefault(artifact.name, []).append(f"{artifact.tag}: {what}")
    if not changes:
        raise LockError(
            "the store has nothing that these locks name", hint="invoke build --target gfx1201"
        )
    return changes
