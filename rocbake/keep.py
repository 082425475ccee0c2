"""Keeping: a plan is produced, its images pass their tests, and only then is it stored."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rocbake import engine, log, plan, produce, run, testimage
from rocbake.errors import BuildError
from rocbake.store import Artifact, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocbake.oci import Layout
    from rocbake.plan import Layer, Plan
    from rocbake.produce import Product
    from rocbake.workshop import Workshop

_TEST_SECONDS = 1800.0


def make(one: Plan, *, workshop: Workshop, force: bool) -> Iterator[tuple[Entry, float]]:
    """Build one plan; give each artifact as it is stored, and the seconds until then.

    Args:
        one: What to build; containers that the store has already are not stored again.
        workshop: Where things are.
        force: Store every container again, too.

    Raises:
        RocbakeError: The kind says which step failed; see docs/exit-codes.md.
    """
    start = time.monotonic()
    store = workshop.store
    exports = [
        layer
        for layer in produce.exported(one, workshop.project)
        if force or store.find(layer.name, layer.tag, layer.key) is None
    ]
    work = store.work(f"{one.name}-{one.tag}")
    made = produce.produce(one, exports, work, workshop=workshop)
    wanted: list[Plan | Layer] = [*exports, one]
    for what in wanted:
        chain = one.chain(one.runtime if isinstance(what, plan.Plan) else what.name)
        with contextlib.ExitStack() as stack:
            reference = stack.enter_context(_loaded(what, made.images[what.name]))
            subject = _subject(what, chain, reference, made.images[what.name])
            if isinstance(what, plan.Plan):
                subject |= stack.enter_context(_tried(what, made, workshop, reference))
            path = work / f"{what.name}-subject.json"
            path.write_text(json.dumps(subject))
            with log.step(f"Testing the image of {what.name}"):
                run_image_tests(workshop.project.root, path, log_path=made.log_path)
            engine.tag(reference, what.reference)
        artifact = _artifact(what, made, seconds=time.monotonic() - start)
        entry = store.put(made.folder / what.name, artifact)
        yield entry, time.monotonic() - start


@contextlib.contextmanager
def _loaded(what: Plan | Layer, image: Layout) -> Iterator[str]:
    """Bring an image into the engine under a name that nobody uses, for as long as it is tested."""
    reference = engine.staging_reference(what.name)
    with log.step(f"Loading {what.name} into the engine"):
        engine.load(image, reference)
    try:
        yield reference
    finally:
        engine.untag(reference)


@contextlib.contextmanager
def _tried(
    what: Plan, made: Product, workshop: Workshop, reference: str
) -> Iterator[dict[str, Any]]:
    """Say what of a recipe's own tests can run here, and in which image, for as long as they do."""
    commands = workshop.project.recipes[what.name].file.smoke.commands
    told = [one.model_dump(mode="json") for one in commands if one.host]
    if made.tests is None:
        yield {"tried": reference, "commands": told}
        return
    tried = testimage.make(reference, made.folder / what.name / made.tests.file_name)
    try:
        yield {"tried": tried, "commands": told}
    finally:
        engine.untag(tried)


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


def _artifact(what: Plan | Layer, made: Product, *, seconds: float) -> Artifact:
    is_recipe = isinstance(what, plan.Plan)
    return Artifact(
        name=what.name,
        version=what.version,
        tag=what.tag,
        targets=what.targets,
        options=what.options,
        overridden=what.overridden,
        key=what.key,
        image=produce.image_record(what, made.images[what.name]),
        archive=made.archive if is_recipe else None,
        bundled=made.bundled if is_recipe else None,
        tests=made.tests if is_recipe else None,
        built_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(seconds, 1),
        engine=engine.versions(),
    )
