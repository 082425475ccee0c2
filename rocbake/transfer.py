"""Push and pull: a whole artifact to a remote store, or from one, if it is vouched for and fits.

Pulling needs this checkout and Python: no engine, no ROCm, no root.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from rocbake import fit, golden, host, log, oci, unpack
from rocbake import store as stores
from rocbake.digest import sha256_file
from rocbake.download import Downloader
from rocbake.errors import BuildError, TrustError
from rocbake.manifest import Manifest
from rocbake.mirror import redact
from rocbake.remote import RemoteArtifact, RemoteFile, parse_index, travels
from rocbake.store import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocbake.cache import Cache
    from rocbake.plan import Plan
    from rocbake.project import Project
    from rocbake.remote import Remote
    from rocbake.store import ArchiveRecord, Artifact, Store

_MANIFESTS = (stores.MANIFEST, stores.BUNDLED_MANIFEST)


@dataclass(frozen=True)
class Pushed:
    """What a push did: files in all, and bytes that were not there before."""

    files: int
    written: int


def push(entry: Entry, remote: Remote) -> Pushed:
    """Write an artifact into a remote store, its index last; what is there is not written again.

    Raises:
        BuildError: A stored file is damaged.
        UsageError: The remote store cannot be written to.
    """
    entry.check()
    oci.read(entry.folder / stores.IMAGE).verify()
    files = []
    written = 0
    with log.step(f"Pushing {entry.artifact.image.reference}"):
        for path in sorted(entry.folder.rglob("*")):
            name = path.relative_to(entry.folder).as_posix()
            if not path.is_file() or not travels(name):
                continue
            one = RemoteFile(path=name, sha256=sha256_file(path), size=path.stat().st_size)
            written += remote.put(path, one.sha256, one.size)
            files.append(one)
        remote.put_index(RemoteArtifact(artifact=entry.artifact, files=tuple(files)))
    return Pushed(len(files), written)


def pull(
    plan: Plan,
    remote: Remote,
    *,
    project: Project,
    store: Store,
    cache: Cache,
    skip_fit: bool = False,
) -> Entry:
    """Bring the artifact of a plan from a remote store into this one.

    Args:
        plan: What for; its key names the artifact.
        remote: Where from.
        project: Its locks say what the artifact must be.
        store: Where to.
        cache: Where beginnings of files wait, so that a transfer goes on where it broke off.
        skip_fit: Whether it is taken though it does not fit this machine.

    Raises:
        DownloadError: The remote store has no such artifact, or a file of it cannot be had.
        TrustError: It is not what the lock recorded, or the lock recorded nothing.
        FitError: It does not fit this machine.
    """
    with store.only_one(f"{plan.name}-{plan.tag}"):
        there = store.find(plan.name, plan.tag, plan.key)
        if there:
            there.check()
            return there
        work = store.work(f"{plan.name}-{plan.tag}")
        work.mkdir()
        try:
            found = _index(plan, remote, work)
            _require_recorded(found.artifact, project)
            small = [one for one in found.files if one.path in _MANIFESTS]
            large = [one for one in found.files if one.path not in _MANIFESTS]
            files = work / "files"
            _bring(small, remote, files, cache)
            _require_fit(found.artifact, files, skip=skip_fit)
            with log.step(f"Pulling {found.artifact.image.reference}"):
                _bring(large, remote, files, cache)
                _require_same(Entry(files, found.artifact), project)
            return store.put(files, found.artifact)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _index(plan: Plan, remote: Remote, work: Path) -> RemoteArtifact:
    url = remote.index_url(plan.name, plan.tag, plan.key)
    path = work / "index"
    with Downloader() as downloader:
        downloader.get(url, path)
    found = parse_index(path.read_bytes(), url)
    one = found.artifact
    for what, wanted, got in (
        ("key", plan.key, one.key),
        ("name", plan.name, one.name),
        ("version", plan.version, one.version),
        ("tag", plan.tag, one.tag),
        ("targets", plan.targets, one.targets),
        ("options", plan.options, one.options),
        ("overridden options", plan.overridden, one.overridden),
        # The engine is told to give this name to the image.
        ("image", plan.reference, one.image.reference),
    ):
        if got != wanted:
            raise TrustError(
                f"{redact(url)}: not the artifact that was asked for: its {what}: "
                f"expected {wanted}, got {got}"
            )
    return found


def _bring(files: Sequence[RemoteFile], remote: Remote, folder: Path, cache: Cache) -> None:
    """Bring files, verified; what a transfer that broke off had of them is gone on with."""
    with log.progress() as progress:
        bar = progress.add_task("", total=sum(one.size for one in files))
        with Downloader(on_bytes=lambda count: progress.advance(bar, count)) as downloader:
            for one in files:
                place = folder / one.path
                place.parent.mkdir(parents=True, exist_ok=True)
                with cache.lock(one.sha256):
                    part = cache.part_path(one.sha256)
                    url = remote.blob_url(one.sha256)
                    downloader.get(url, part, sha256=one.sha256, size=one.size)
                    shutil.move(part, place)
                place.chmod(0o644)


def _require_recorded(artifact: Artifact, project: Project) -> None:
    """Check an artifact's record against the reviewed lock, before anything large is brought."""
    recorded = golden.find(project, artifact)
    if recorded is None:
        raise TrustError(
            f"{artifact.name} {artifact.tag}: the lock recorded no digest for key {artifact.key}, "
            "so nobody vouches for what is there",
            hint=f"invoke build --recipe {artifact.name} --target {','.join(artifact.targets)}, "
            "or a checkout whose lock has it",
        )
    got = {
        "archive": artifact.archive.identity if artifact.archive else None,
        "bundled archive": artifact.bundled.sha256 if artifact.bundled else None,
        "tests": artifact.tests.sha256 if artifact.tests else None,
        "image configuration": artifact.image.config,
    }
    expected = (recorded.archive, recorded.bundled, recorded.tests, recorded.config)
    for (what, here), wanted in zip(got.items(), expected, strict=True):
        if here != wanted:
            raise TrustError(
                f"{artifact.name} {artifact.tag}: its {what} is not what the lock recorded: "
                f"expected {wanted}, got {here}"
            )


def _require_fit(artifact: Artifact, folder: Path, *, skip: bool) -> None:
    """Check that the archive, or the one that brings its libraries, runs on this machine."""
    here = host.read(environment=os.environ)
    verdicts = [
        (name, fit.check(_read_manifest(folder / name), here))
        for record, name in _described(artifact)
        if record
    ]
    if any(verdict.fits for _, verdict in verdicts):
        for name, verdict in verdicts:
            if not verdict.fits:
                which = "the plain archive" if name == stores.MANIFEST else "the bundled archive"
                log.say(f"  {which} does not fit this machine; the other one does")
        return
    for _, verdict in verdicts[:1]:
        for line in fit.require(verdict, artifact.image.reference, skip=skip):
            log.say(f"  {line}")


def _described(artifact: Artifact) -> tuple[tuple[ArchiveRecord | None, str], ...]:
    """Return each archive with the name of the manifest that must lie beside it."""
    return tuple(zip((artifact.archive, artifact.bundled), _MANIFESTS, strict=True))


def _read_manifest(path: Path) -> Manifest:
    """Read a manifest that anybody may have written."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as wrong:
        why = wrong.errors()[0]["msg"] if isinstance(wrong, ValidationError) else wrong.strerror
        raise TrustError(f"{path.name}: not the manifest of an archive: {why}") from wrong


def _require_same(entry: Entry, project: Project) -> None:
    """Hash everything that was brought, and hold it against the lock once more."""
    artifact = entry.artifact
    recorded = golden.find(project, artifact)
    try:
        entry.check()
        image = oci.read(entry.folder / stores.IMAGE)
        image.verify()
        _require_own_manifest(entry)
    except BuildError as damaged:
        raise TrustError(f"not what its own record says: {damaged}") from damaged
    if (image.config.digest, image.diff_ids) != (artifact.image.config, artifact.image.layers):
        raise TrustError(
            f"{artifact.image.reference}: expected the image {artifact.image.config}, "
            f"got {image.config.digest}"
        )
    if recorded is None or (difference := golden.compare(entry, recorded)):
        raise TrustError(f"{artifact.image.reference}: not what the lock recorded: {difference}")


def _require_own_manifest(entry: Entry) -> None:
    """Check that the manifests beside the archives are those that lie in them."""
    for record, name in _described(entry.artifact):
        if record is None:
            continue
        inside = [
            one.sha256
            for one in unpack.read_members(entry.folder / record.file_name)
            if one.name.count("/") == 1 and one.name.endswith(f"/{stores.MANIFEST}")
        ]
        if inside != [sha256_file(entry.folder / name)]:
            raise BuildError(f"{name} is not the one in {record.file_name}")
