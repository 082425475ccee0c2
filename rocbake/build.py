"""Building: reuse what the store has, produce the rest, test it, and only then keep it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rocbake import engine, golden, log, plan, produce, run
from rocbake.errors import BuildError, ReproError
from rocbake.store import ArchiveRecord, Artifact, Entry, Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rocbake.oci import Layout
    from rocbake.plan import Layer, Plan
    from rocbake.produce import Workshop
    from rocbake.project import Project

_TEST_SECONDS = 1800.0


@dataclass(frozen=True)
class Outcome:
    """What became of one plan or layer.

    Attributes:
        entry: The artifact.
        state: `built` or `reused`.
        recorded: `reproduced`, `differs` or `not recorded`, against the lock.
        difference: The first thing that differs from the lock's record.
        seconds: How long it took.
    """

    entry: Entry
    state: str
    recorded: str
    difference: str | None
    seconds: float


def build(
    made: Sequence[Plan], *, workshop: Workshop, store: Store, force: bool = False
) -> list[Outcome]:
    """Build plans that the store does not have, one after the other.

    Args:
        made: What to build.
        workshop: Where things are.
        store: Where artifacts go.
        force: Build even what the store has.

    Raises:
        RocbakeError: The kind says which step failed; see docs/exit-codes.md.
    """
    outcomes: list[Outcome] = []
    for one in made:
        with store.only_one(one.key):
            entry = None if force else store.find(one.name, one.tag, one.key)
            if entry:
                entry.check()
                outcomes.append(_outcome(workshop.project, entry, "reused", 0.0))
            else:
                outcomes += _build(one, workshop=workshop, store=store, force=force)
    return outcomes


def _build(one: Plan, *, workshop: Workshop, store: Store, force: bool) -> list[Outcome]:
    start = time.monotonic()
    exports = [
        layer
        for layer in one.layers
        if force or store.find(layer.name, layer.tag, layer.key) is None
    ]
    work = store.work(f"{one.name}-{one.tag}")
    made = produce.produce(one, exports, work, workshop=workshop, store_root=store.root)
    outcomes = []
    wanted: list[Plan | Layer] = [*exports, one]
    for what in wanted:
        chain = one.chain(one.runtime if isinstance(what, plan.Plan) else what.name)
        with _loaded(what, made.images[what.name]) as reference:
            subject = _subject(what, chain, reference, made.images[what.name])
            path = work / f"{what.name}-subject.json"
            path.write_text(json.dumps(subject))
            with log.step(f"Testing the image of {what.name}"):
                run_image_tests(workshop.project.root, path, log_path=made.log_path)
            engine.tag(reference, what.reference)
        artifact = _artifact(
            what,
            made.images[what.name],
            made.archive if isinstance(what, plan.Plan) else None,
            seconds=time.monotonic() - start,
        )
        entry = store.put(made.folder / what.name, artifact)
        outcomes.append(_outcome(workshop.project, entry, "built", time.monotonic() - start))
    return outcomes


@contextlib.contextmanager
def _loaded(what: Plan | Layer, image: Layout) -> Iterator[str]:
    """Bring an image into the engine under a name that nobody uses, for as long as it is tested."""
    reference = f"{plan.REPOSITORY}/staging-{what.name}:{what.key[:12]}"
    with log.step(f"Loading {what.name} into the engine"):
        engine.load(image, reference)
    try:
        yield reference
    finally:
        engine.untag(reference)


def _subject(
    what: Plan | Layer, chain: tuple[Layer, ...], reference: str, image: Layout
) -> dict[str, Any]:
    """Return what the image tests are told."""
    return {
        "kind": "recipe" if isinstance(what, plan.Plan) else "container",
        "reference": reference,
        "layout": str(image.folder),
        "layers": [layer.model_dump(mode="json") for layer in chain],
        "plan": what.model_dump(mode="json", by_alias=True),
    }


def run_image_tests(root: Path, subject: Path, *, log_path: Path) -> None:
    """Run a project's Testinfra tests on the image that a subject file describes.

    Raises:
        BuildError: A test failed, or none ran.
    """
    words = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    result = run.run(
        [*words, root / "tests" / "image", "--subject", subject],
        cwd=root,
        env=os.environ | {"DOCKER_HOST": engine.address()},
        timeout=_TEST_SECONDS,
        log_path=log_path,
        check=False,
    )
    lines = result.stdout.strip().splitlines() or ["no output"]
    last = lines[-1].strip("= ")
    if result.returncode != 0:
        failed = [line for line in lines if line.startswith(("E ", "FAILED", "ERROR"))]
        raise BuildError(
            f"an image failed its tests: {last}\n  "
            + "\n  ".join(failed[-20:] or result.stderr.strip().splitlines()[-5:])
            + f"\n  whole log: {log_path}"
        )
    log.say(f"  {last}")


def _artifact(
    what: Plan | Layer, image: Layout, archive: ArchiveRecord | None, *, seconds: float
) -> Artifact:
    return Artifact(
        name=what.name,
        version=what.version,
        tag=what.tag,
        targets=what.targets,
        key=what.key,
        image=produce.image_record(what, image),
        archive=archive,
        built_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(seconds, 1),
        engine=engine.versions(),
    )


def _outcome(project: Project, entry: Entry, state: str, seconds: float) -> Outcome:
    recorded = golden.find(project, entry.artifact)
    if recorded is None:
        return Outcome(entry, state, "not recorded", None, seconds)
    difference = golden.compare(entry, recorded)
    return Outcome(entry, state, "differs" if difference else "reproduced", difference, seconds)


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
