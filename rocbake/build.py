"""Building: from plans to artifacts in the store, as a list of steps that each do one thing."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rocbake import archive, bake, disk, engine, fetch, lock, log, manifest, oci, plan, rootfs, run
from rocbake import store as stores
from rocbake.errors import BuildError, ReproError
from rocbake.store import ArchiveRecord, Artifact, Entry, ImageRecord, Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from rocbake.cache import Cache
    from rocbake.lock import Recorded
    from rocbake.mirror import Mirrors
    from rocbake.oci import Layout
    from rocbake.plan import Layer, Plan
    from rocbake.project import Project
    from rocbake.recipe import Recipe
    from rocbake.target import TargetSet

_TEST_SECONDS = 1800.0


@dataclass(frozen=True)
class Outcome:
    """What became of one plan or layer.

    Attributes:
        entry: The artifact.
        state: `built` or `reused`.
        recorded: `reproduced`, `differs` or `not recorded`, against the lock.
        difference: What differs from the lock's record, if anything.
        seconds: How long it took.
    """

    entry: Entry
    state: str
    recorded: str
    difference: str | None
    seconds: float


@dataclass(frozen=True)
class Builder:
    """Where things are, and what was asked for.

    Attributes:
        force: Build even what the store has.
        offline: Use the cache alone.
        fresh: From nothing: no cached layer, no kept root file system.
    """

    project: Project
    store: Store
    cache: Cache
    mirrors: Mirrors
    force: bool = False
    offline: bool = False
    fresh: bool = False

    def build(self, plans: Sequence[Plan]) -> list[Outcome]:
        """Build plans that the store does not have, one after the other.

        Raises:
            RocbakeError: The kind says which step failed; see docs/exit-codes.md.
        """
        outcomes: list[Outcome] = []
        for one in plans:
            with self.store.only_one(one.key):
                entry = None if self.force else self.store.find(one.name, one.tag, one.key)
                if entry:
                    entry.check()
                    outcomes.append(self._outcome(entry, "reused", 0.0))
                    continue
                outcomes += self._build(one)
        return outcomes

    def _build(self, one: Plan) -> list[Outcome]:
        start = time.monotonic()
        engine.require_usable()
        engine.reap()
        disk.require_room(one, store=self.store.root, cache=self.cache.root)
        files = fetch.fetch(
            one.inputs,
            cache=self.cache,
            mirrors=self.mirrors,
            snapshot=one.snapshot,
            offline=self.offline,
        )
        work = self.store.work(f"{one.name}-{one.tag}")
        work.mkdir()
        log_path = work / stores.LOG
        exports = [layer for layer in one.layers if self.force or not self._has(layer)]
        self._run_bake(one, exports, work, files=files, log_path=log_path)
        outcomes = []
        for layer in exports:
            entry = self._keep_image(layer, work, log_path, start)
            outcomes.append(self._outcome(entry, "built", time.monotonic() - start))
        entry = self._keep_recipe(one, work, log_path, start)
        outcomes.append(self._outcome(entry, "built", time.monotonic() - start))
        return outcomes

    def _has(self, layer: Layer) -> bool:
        return self.store.find(layer.name, layer.tag, layer.key) is not None

    def _run_bake(
        self,
        one: Plan,
        exports: Sequence[Layer],
        work: Path,
        *,
        files: Mapping[str, Path],
        log_path: Path,
    ) -> None:
        root = one.layers[0]
        tar = self.cache.root / "rootfs" / f"{rootfs.key(root)}.tar"
        if self.fresh or not tar.exists():
            with log.step(f"Making the root file system from {len(root.packages)} packages"):
                rootfs.make(root, tar, files=files, log_path=log_path)
        bake.lay_out(one, self.project, work, files=files, rootfs=tar)
        bake_file = work / "bake.json"
        description = bake.describe(one, [layer.name for layer in exports])
        bake_file.write_text(json.dumps(description, indent=2) + "\n")
        with log.step(f"Building {one.name} for {','.join(one.targets)}"):
            engine.bake(bake_file, ["default"], log_path=log_path, no_cache=self.fresh)

    def _keep_image(self, layer: Layer, work: Path, log_path: Path, start: float) -> Entry:
        """Test a container's image, then store it and give it its name in the engine."""
        staged = work / "keep" / layer.name
        image = self._stage_image(layer.name, work, staged, log_path, epoch=layer.epoch)
        self._test(layer.name, layer, image, work, log_path)
        artifact = self._artifact(layer, layer.tag, (), image, None, start)
        engine.tag(_staging(layer), layer.reference)
        engine.untag(_staging(layer))
        return self.store.put(staged, artifact)

    def _stage_image(
        self, name: str, work: Path, staged: Path, log_path: Path, *, epoch: int
    ) -> Layout:
        staged.mkdir(parents=True)
        (work / "out" / name).replace(staged / stores.IMAGE)
        shutil.copyfile(log_path, staged / stores.LOG)
        image = oci.read(staged / stores.IMAGE)
        _require_not_newer(image, epoch)
        return image

    def _keep_recipe(self, one: Plan, work: Path, log_path: Path, start: float) -> Entry:
        """Read the product, test its image, pack it, store it."""
        dist = work / "out" / bake.DIST
        described = manifest.make(dist, one)
        staged = work / "keep" / one.name
        image = self._stage_image(one.name, work, staged, log_path, epoch=one.epoch)
        self._test(one.name, one, image, work, log_path)
        data = described.to_json()
        (dist / stores.MANIFEST).write_bytes(data)
        (staged / stores.MANIFEST).write_bytes(data)
        file_name = f"{one.stem}.tar.zst"
        with log.step(f"Packing {file_name}"):
            packed = archive.write_archive(
                dist, staged / file_name, prefix=one.stem, epoch=one.epoch
            )
        record = ArchiveRecord(
            file_name=file_name,
            sha256=packed.sha256,
            size=packed.size,
            tar_sha256=packed.tar_sha256,
            manifest_sha256=stores.digest.sha256_bytes(data),
        )
        artifact = self._artifact(one, one.tag, one.targets, image, record, start)
        engine.tag(_staging(one), one.reference)
        engine.untag(_staging(one))
        return self.store.put(staged, artifact)

    def _test(
        self, name: str, what: Plan | Layer, image: Layout, work: Path, log_path: Path
    ) -> None:
        """Run the image tests of this project on an image that nobody can see yet."""
        reference = _staging(what)
        with log.step(f"Loading {name} into the engine"):
            engine.load(image, reference)
        try:
            test_image(self.project, what, reference, image.folder, work=work, log_path=log_path)
        except BaseException:
            engine.untag(reference)
            raise

    def _artifact(
        self,
        what: Plan | Layer,
        tag: str,
        targets: tuple[str, ...],
        image: Layout,
        record: ArchiveRecord | None,
        start: float,
    ) -> Artifact:
        return Artifact(
            name=what.name,
            version=what.version if isinstance(what, plan.Plan) else what.tag,
            tag=tag,
            targets=targets,
            key=what.key,
            image=ImageRecord(
                reference=what.reference,
                config=image.config.digest,
                layers=image.diff_ids,
                manifest=image.manifest.digest,
                size=image.size,
            ),
            archive=record,
            built_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=round(time.monotonic() - start, 1),
            engine=engine.versions(),
        )

    def _outcome(self, entry: Entry, state: str, seconds: float) -> Outcome:
        recorded = self._recorded(entry.artifact)
        if recorded is None:
            return Outcome(entry, state, "not recorded", None, seconds)
        difference = compare(entry.artifact, recorded)
        return Outcome(
            entry, state, "differs" if difference else "reproduced", difference, seconds
        )

    def _recorded(self, artifact: Artifact) -> Recorded | None:
        owner = self.project.recipes.get(artifact.name)
        records = (
            lock.read_recipe(owner).recorded
            if owner
            else lock.read_container(self.project.containers[artifact.name]).recorded
        )
        record = records.get(artifact.tag)
        return record if record and record.key == artifact.key else None


def plans(
    recipes: Iterable[Recipe], target_sets: Sequence[TargetSet]
) -> list[Plan]:
    """Resolve every recipe for every target set.

    Raises:
        LockError: A lock is missing or stale.
        TargetError: A target is newer than a recipe's ROCm.
    """
    made = []
    for recipe in recipes:
        locks, recipe_lock = lock.require_fresh(recipe.containers, recipe)
        assert recipe_lock is not None  # noqa: S101 - a recipe was given
        made += [
            plan.make(recipe, targets, locks=locks, recipe_lock=recipe_lock)
            for targets in target_sets
        ]
    return made


def compare(artifact: Artifact, recorded: Recorded) -> str | None:
    """Return how an artifact differs from what a lock recorded, or None.

    The compressed bytes of an image are left out: they change with the engine's version.
    """
    if artifact.archive and recorded.archive and artifact.archive.sha256 != recorded.archive:
        return f"archive: expected sha256 {recorded.archive}, got {artifact.archive.sha256}"
    for number, (expected, got) in enumerate(
        zip(recorded.layers, artifact.image.layers, strict=False)
    ):
        if expected != got:
            return f"image, layer {number}: expected {expected}, got {got}"
    if recorded.config != artifact.image.config:
        return f"image configuration: expected {recorded.config}, got {artifact.image.config}"
    return None


def require_reproduced(outcomes: Iterable[Outcome]) -> None:
    """Check that nothing differs from what the locks recorded.

    Raises:
        ReproError: Something does.
    """
    wrong = [
        f"{one.entry.artifact.image.reference}: {one.difference}"
        for one in outcomes
        if one.difference
    ]
    if wrong:
        raise ReproError(
            "built, and not what the lock recorded:\n  " + "\n  ".join(wrong),
            hint="invoke verify  shows the first file that differs between two builds here",
        )


def test_image(
    project: Project,
    what: Plan | Layer,
    reference: str,
    layout: Path,
    *,
    work: Path,
    log_path: Path,
) -> None:
    """Run the Testinfra tests on one image.

    Raises:
        BuildError: A test failed, or none ran.
    """
    work.mkdir(parents=True, exist_ok=True)
    subject = work / f"{what.name}-subject.json"
    subject.write_text(
        json.dumps(
            {
                "kind": "recipe" if isinstance(what, plan.Plan) else "container",
                "reference": reference,
                "layout": str(layout),
                "plan": what.model_dump(mode="json", by_alias=True),
            }
        )
    )
    with log.step(f"Testing the image of {what.name}"):
        result = run.run(
            [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider",
             project.root / "tests" / "image", "--subject", subject],
            cwd=project.root,
            env=os.environ | {"DOCKER_HOST": engine.address()},
            timeout=_TEST_SECONDS,
            log_path=log_path,
            check=False,
        )  # fmt: skip
    last = (result.stdout.strip().splitlines() or ["no output"])[-1]
    if result.returncode != 0:
        failed = [line for line in result.stdout.splitlines() if line.startswith(("E ", "FAILED", "ERROR"))]
        raise BuildError(
            f"the image of {what.name} failed its tests: {last}\n  "
            + "\n  ".join(failed[-20:])
            + f"\n  whole log: {log_path}"
        )
    log.say(f"  {last.strip('= ')}")


def _require_not_newer(image: Layout, epoch: int) -> None:
    """Refuse an image with a file newer than its epoch: its date would be the builder's."""
    for index, _ in enumerate(image.layers):
        with image.open_layer(index) as tar:
            for member in tar:
                if member.mtime > epoch:
                    raise BuildError(
                        f"layer {index} ({image.layers_history[index]}): {member.name} is newer "
                        f"than the epoch: expected at most {epoch}, got {member.mtime}"
                    )


def _staging(what: Plan | Layer) -> str:
    return f"{plan.REPOSITORY}/staging-{what.name}:{what.key[:12]}"
