"""Verifying: build again from nothing, compare every image and the archive, show the difference."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocbake import log, oci, produce, run, store, unpack
from rocbake.errors import ReproError, RocbakeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocbake.oci import Layout
    from rocbake.plan import Layer, Plan
    from rocbake.produce import Product
    from rocbake.store import ArchiveRecord, Entry, TestsRecord
    from rocbake.workshop import Workshop

_DIFFOSCOPE_SECONDS = 600.0
_DIFFOSCOPE_LINES = 200


@dataclass(frozen=True)
class Comparison:
    """One artifact against a second build of it.

    Attributes:
        name: What was compared.
        parts: How many layers, and archives, were compared.
        difference: The first thing that differs, or None.
        detail: A longer view of it, from diffoscope.
    """

    name: str
    parts: str
    difference: str | None = None
    detail: str | None = None


def verify(one: Plan, *, workshop: Workshop) -> list[Comparison]:
    """Build a plan again, with no cache, and compare it with what the store has.

    Raises:
        UsageError: The store has no build to compare with.
        RocbakeError: The second build failed.
    """
    kept = workshop.store
    entries: list[tuple[Plan | Layer, Entry]] = []
    exported = produce.exported(one, workshop.project)
    wanted: list[Plan | Layer] = [*exported, one]
    for what in wanted:
        entry = kept.find(what.name, what.tag, what.key)
        if entry is None:
            raise UsageError(
                f"the store has no {what.reference} of these locks to compare with",
                hint=f"invoke build {one.words}",
            )
        entry.check()
        entries.append((what, entry))
    with kept.only_one(f"verify-{one.name}-{one.tag}"):
        work = kept.work(f"verify-{one.name}-{one.tag}")
        made = produce.produce(one, exported, work, workshop=workshop)
        comparisons = [
            _compare(what.reference, entry, made, made.images[what.name]) for what, entry in entries
        ]
        # A difference is kept to be looked at; nothing else is worth the room.
        if not any(one.difference for one in comparisons):
            shutil.rmtree(work)
    return comparisons


def require_equal(comparisons: Sequence[Comparison]) -> None:
    """Check that no comparison found a difference.

    Raises:
        ReproError: One did.
    """
    wrong = [one for one in comparisons if one.difference]
    if wrong:
        raise ReproError(
            "\n".join(f"{one.name}: {one.difference}" for one in wrong),
            hint="both builds are kept: compare artifacts/ with artifacts/.work/",
        )


def _compare(name: str, entry: Entry, made: Product, image: Layout) -> Comparison:
    artifact = entry.artifact
    count = len(artifact.image.layers)
    parts = f"{count} layer{'' if count == 1 else 's'}"
    if artifact.archive:
        parts += ", archive"
        difference, detail = _archive_difference(entry, made, made.folder / artifact.name)
        if difference:
            return Comparison(name, parts, difference, detail)
        for what, packed, again in (
            ("bundled archive", artifact.bundled, made.bundled),
            ("tests", artifact.tests, made.tests),
        ):
            if packed:
                parts += f", {what}"
            if packed != again:
                difference = _packed_difference(entry, made, what, packed, again)
                return Comparison(name, parts, difference)
    first = oci.read(entry.folder / store.IMAGE)
    difference = image_difference(first, image)
    return Comparison(name, parts, difference)


def _archive_difference(entry: Entry, made: Product, folder: Path) -> tuple[str | None, str | None]:
    recorded = entry.artifact.archive
    if recorded is None or recorded.sha256 == made.archive.sha256:
        return None, None
    first, second = store.file_digests(entry.folder), store.file_digests(folder)
    for path in sorted({*first, *second}):
        if first.get(path) != second.get(path):
            told = f"archive: {path}: sha256 {first.get(path)}, and again {second.get(path)}"
            return told, _detail(entry, made, folder, path)
    return f"archive: sha256 {recorded.sha256}, and again {made.archive.sha256}", None


def _packed_difference(
    entry: Entry,
    made: Product,
    what: str,
    packed: ArchiveRecord | TestsRecord | None,
    again: ArchiveRecord | TestsRecord | None,
) -> str:
    if packed and again and what == "bundled archive":
        manifest = store.BUNDLED_MANIFEST
        first = store.file_digests(entry.folder, manifest)
        second = store.file_digests(made.folder / entry.artifact.name, manifest)
        for path in sorted({*first, *second}):
            if first.get(path) != second.get(path):
                return f"{what}: {path}: sha256 {first.get(path)}, and again {second.get(path)}"
    digests = [one.sha256 if one else "none" for one in (packed, again)]
    return f"{what}: sha256 {digests[0]}, and again {digests[1]}"


def _detail(entry: Entry, made: Product, folder: Path, path: str) -> str | None:
    """Return diffoscope's view of one file, if diffoscope is installed, or why there is none."""
    if not shutil.which("diffoscope") or entry.archive_path is None:
        return None
    packed = (entry.archive_path, folder / made.archive.file_name)
    try:
        return _diffoscope(packed, folder / "unpacked", path)
    except (RocbakeError, OSError) as failed:
        # That there is a difference is what counts; a longer view of it is a courtesy.
        return f"no view from diffoscope: {failed}"


def _diffoscope(archives: Sequence[Path], unpacked: Path, path: str) -> str | None:
    unpacked.mkdir(parents=True)
    sides = []
    for number, packed in enumerate(archives):
        side = unpacked / str(number)
        unpack.unpack(packed, side)
        stem = packed.name.rpartition(".tar.")[0]
        sides.append(side / stem / path)
    result = run.run(
        ["diffoscope", "--text", "-", *sides], timeout=_DIFFOSCOPE_SECONDS, check=False
    )
    # 1 is its word for a difference.
    if result.returncode not in {0, 1}:
        said = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        return f"no view from diffoscope: {said[-1]}"
    return "\n".join(result.stdout.splitlines()[:_DIFFOSCOPE_LINES]) or None


def image_difference(first: Layout, second: Layout) -> str | None:
    """Return the first file, or else the first layer or setting, in which two images differ."""
    if len(first.diff_ids) != len(second.diff_ids):
        return f"{len(first.diff_ids)} layers, and again {len(second.diff_ids)}"
    for number, (one, other) in enumerate(zip(first.diff_ids, second.diff_ids, strict=True)):
        if one != other:
            where = f"layer {number} ({first.layers_history[number]})"
            return f"{where}: {_member_difference(first, second, number)}"
    if first.config.digest != second.config.digest:
        for key in sorted({*first.settings, *second.settings}):
            if first.settings.get(key) != second.settings.get(key):
                return f"{key}: {first.settings.get(key)}, and again {second.settings.get(key)}"
        return f"configuration: {first.config.digest}, and again {second.config.digest}"
    return None


def _member_difference(first: Layout, second: Layout, number: int) -> str:
    log.say(f"  looking for the first file that differs in layer {number}")
    pairs = itertools.zip_longest(oci.members(first, number), oci.members(second, number))
    for one, other in pairs:
        if one is None or other is None:
            member = (one or other)[0]
            return f"{member.name} is in one of them only"
        if one[0].name != other[0].name:
            return f"{one[0].name} stands where {other[0].name} is in the other"
        for key in ("type", "mode", "uid", "gid", "mtime", "size", "linkname", "pax_headers"):
            was, now = getattr(one[0], key), getattr(other[0], key)
            if was != now:
                return f"{one[0].name}: {key} {was!r}, and again {now!r}"
        if one[1] != other[1]:
            return f"{one[0].name}: sha256 {one[1]}, and again {other[1]}"
    return "the same files, packed differently"
