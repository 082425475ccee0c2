"""The store: finished builds below artifacts/, each whole or absent.

<name>/<tag>-<key>/artifact.json     what it is, with the digest of everything beside it
                   manifest.json     what is in the archive   (a recipe's)
                   <stem>.tar.zst    the archive               (a recipe's)
                   <stem>-bundled.tar.zst, manifest-bundled.json   the one with ROCm's libraries
                   <stem>-tests.tar.zst   what only its tests need
                   image/            the image as an OCI layout
                   build.log
                   smoke/<time>.json reports of smoke tests, one each
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rocbake import digest, log
from rocbake.errors import BuildError, UsageError
from rocbake.source import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORD = "artifact.json"
MANIFEST = "manifest.json"
BUNDLED_MANIFEST = "manifest-bundled.json"
IMAGE = "image"
LOG = "build.log"
ROOTFS = "rootfs"
SMOKE = "smoke"
_KEY_LENGTH = 12


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImageRecord(_Model):
    """The image of an artifact; its identity is `config` and `layers`."""

    reference: Annotated[str, Field(description="its name in the engine")]
    config: Annotated[str, Field(description="digest of the configuration")]
    layers: Annotated[tuple[str, ...], Field(description="diffIDs, lowest first")]
    manifest: Annotated[str, Field(description="digest of the manifest, which names zstd blobs")]
    size: Annotated[int, Field(description="bytes of all blobs")]


class ArchiveRecord(_Model):
    """The archive of an artifact."""

    file_name: str
    sha256: Sha256
    size: int
    tar_sha256: Annotated[Sha256, Field(description="of the tar inside, whatever the compression")]
    manifest_sha256: Annotated[Sha256, Field(description="of its manifest, which lies beside it")]

    @property
    def identity(self) -> str:
        """The SHA-256 that every build of a plan gives: of a .tar.gz, that of the tar inside.

        Pinned libzstd writes the same bytes everywhere; deflate is what the machine has.
        """
        return self.tar_sha256 if self.file_name.endswith(".gz") else self.sha256


class TestsRecord(_Model):
    """The tar of what only an artifact's tests need: programs, models, recordings."""

    file_name: str
    sha256: Sha256
    size: int


class Artifact(_Model):
    """What artifact.json says."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    name: str
    version: str
    tag: str
    targets: Annotated[tuple[str, ...], Field(description="empty for a container's image")]
    options: Annotated[dict[str, str], Field(description="value of each build option")] = {}
    overridden: Annotated[
        dict[str, str], Field(description="those that are not as their rules gave them")
    ] = {}
    key: Sha256
    image: ImageRecord
    archive: ArchiveRecord | None
    bundled: Annotated[
        ArchiveRecord | None, Field(description="the archive that carries its ROCm libraries")
    ] = None
    tests: TestsRecord | None = None
    built_at: Annotated[str, Field(description="ISO 8601, UTC")]
    seconds: float
    engine: dict[str, str]


@dataclass(frozen=True)
class Entry:
    """An artifact and the folder it lies in."""

    folder: Path
    artifact: Artifact

    @property
    def archive_path(self) -> Path | None:
        """Where the archive is, if it has one."""
        archive = self.artifact.archive
        return self.folder / archive.file_name if archive else None

    @property
    def tests_path(self) -> Path | None:
        """Where the tar for its tests is, if it has one."""
        tests = self.artifact.tests
        return self.folder / tests.file_name if tests else None

    def check(self) -> None:
        """Hash the archives, their manifests, and what its tests need.

        Raises:
            BuildError: One of them is not what was stored.
        """
        artifact = self.artifact
        files: dict[str, str] = {}
        for archive, manifest in (
            (artifact.archive, MANIFEST),
            (artifact.bundled, BUNDLED_MANIFEST),
        ):
            if archive:
                files |= {archive.file_name: archive.sha256, manifest: archive.manifest_sha256}
        if artifact.tests:
            files[artifact.tests.file_name] = artifact.tests.sha256
        for name, expected in files.items():
            path = self.folder / name
            got = digest.sha256_file(path) if path.is_file() else "no file"
            if got != expected:
                raise BuildError(
                    f"{path}: damaged since it was stored: expected sha256 {expected}, got {got}",
                    hint=f"invoke build --recipe {self.artifact.name} --force",
                )


class Store:
    """The folder artifacts/."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entries(self) -> list[Entry]:
        """Return every whole artifact, newest last; what is being written is never among them.

        A record that cannot be read is warned of and left out.
        """
        found = []
        for record in sorted(self.root.glob(f"*/*/{RECORD}")):
            if record.parent.name.startswith(".") or record.parent.parent.name.startswith("."):
                continue
            try:
                found.append(Entry(record.parent, _read(record)))
            except UsageError as damaged:
                log.warn(damaged.for_humans())
        return sorted(found, key=lambda entry: (entry.artifact.built_at, str(entry.folder)))

    def find(self, name: str, tag: str, key: str) -> Entry | None:
        """Return the artifact built under this key."""
        folder = self.folder(name, tag, key)
        if not (folder / RECORD).is_file():
            return None
        entry = Entry(folder, _read(folder / RECORD))
        return entry if entry.artifact.key == key else None

    def folder(self, name: str, tag: str, key: str) -> Path:
        """Return where the artifact of this key lies, or would."""
        return self.root / name / key_folder(tag, key)

    def put(self, staged: Path, artifact: Artifact) -> Entry:
        """Take a folder with everything but artifact.json into the store, by one rename."""
        (staged / RECORD).write_text(
            json.dumps(artifact.model_dump(mode="json", by_alias=True), indent=2) + "\n"
        )
        for path in staged.rglob("*"):
            if path.is_file():
                _sync(path)
        final = self.folder(artifact.name, artifact.tag, artifact.key)
        # Two builds may bring the same container at the same moment.
        with self.only_one(artifact.key):
            self._swap(staged, final)
        return Entry(final, artifact)

    def _swap(self, staged: Path, final: Path) -> None:
        final.parent.mkdir(parents=True, exist_ok=True)
        old = None
        if final.exists():
            # There is no rename over a full folder: the old one steps aside first, under a name
            # that nobody lists.
            old = self.work(f"old-{final.parent.name}-{final.name}")
            final.replace(old)
        staged.replace(final)
        _sync(final.parent)
        if old:
            # One key stands for the same bytes: what was found out about them stays true.
            with contextlib.suppress(FileNotFoundError):
                (old / SMOKE).replace(final / SMOKE)
            shutil.rmtree(old)

    def put_report(self, entry: Entry, started_at: str, text: str) -> Path:
        """Keep the report of a smoke test beside its artifact.

        Args:
            entry: The artifact.
            started_at: ISO 8601, UTC; the name of the file.
            text: A JSON document.
        """
        folder = entry.folder / SMOKE
        folder.mkdir(exist_ok=True)
        path = folder / f"{started_at.replace(':', '')}.json"
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(text, encoding="utf-8")
        _sync(part)
        part.replace(path)
        return path

    def work(self, name: str) -> Path:
        """Return an absent place for work in progress, on the same file system; emptied first."""
        folder = self.root / ".work" / name
        if folder.exists():
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder

    @contextlib.contextmanager
    def only_one(self, name: str) -> Iterator[None]:
        """Let one process at a time do the work of this name; the kernel frees it at our end."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{name}.lock"):
            yield

    def remove(self, entry: Entry) -> None:
        """Take an artifact out of the store; one that is cut off leaves nothing that is listed."""
        with self.only_one(entry.artifact.key), contextlib.suppress(FileNotFoundError):
            gone = self.work(f"old-{entry.folder.parent.name}-{entry.folder.name}")
            entry.folder.replace(gone)
            shutil.rmtree(gone)

    def works(self) -> list[Path]:
        """Return what is left of work in progress that no process is at."""
        return [path for path in sorted((self.root / ".work").glob("*")) if self._free(path.name)]

    def remove_work(self, path: Path) -> None:
        """Remove what is left of work in progress, unless a process has taken it up since."""
        with contextlib.ExitStack() as stack:
            for guard in self._guards(path.name):
                try:
                    stack.enter_context(FileLock(guard, timeout=0))
                except Timeout:
                    return
            if path.exists():
                shutil.rmtree(path)

    def _free(self, work: str) -> bool:
        try:
            for guard in self._guards(work):
                with FileLock(guard, timeout=0):
                    pass
        except Timeout:
            return False
        return True

    def _guards(self, work: str) -> list[Path]:
        """Return the locks that were ever taken for a piece of work: its own name, or its key."""
        folder = self.root / ".locks"
        own = folder / f"{work}.lock"
        key = work.rpartition("-")[2] if work.startswith("old-") else ""
        swaps = folder.glob(f"{key}*.lock") if len(key) == _KEY_LENGTH else ()
        return [path for path in (own, *swaps) if path.exists()]


def key_folder(tag: str, key: str) -> str:
    """Return the name of an artifact's folder below its recipe's."""
    return f"{tag}-{key[:_KEY_LENGTH]}"


def file_digests(folder: Path, manifest: str = MANIFEST) -> dict[str, str]:
    """Return the SHA-256 of each file in an artifact's archive, as its manifest lists them."""
    try:
        return {
            entry["path"]: entry["sha256"]
            for entry in read_manifest(folder, manifest)["files"]
            if entry["sha256"]
        }
    except (KeyError, TypeError) as wrong:
        raise _damaged(folder / manifest, f"no list of files: {wrong}") from wrong


def read_manifest(folder: Path, manifest: str = MANIFEST) -> dict[str, Any]:
    """Return what the manifest of an artifact's archive says.

    Raises:
        BuildError: There is none, or it is none.
    """
    path = folder / manifest
    try:
        value = json.loads(path.read_bytes())
    except OSError as wrong:
        raise _damaged(path, wrong.strerror or str(wrong)) from wrong
    except (ValueError, RecursionError) as wrong:
        raise _damaged(path, f"not JSON: {wrong}") from wrong
    missing = {"files", "needed", "versions"} - set(value if isinstance(value, dict) else ())
    if missing:
        raise _damaged(path, f"no {', '.join(sorted(missing))}")
    return dict(value)


def read_log(folder: Path) -> str:
    """Return the log of an artifact's build.

    Raises:
        UsageError: It was kept without one, or the log is gone.
    """
    path = folder / LOG
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as wrong:
        raise UsageError(
            f"{path}: no log of the build: {wrong.strerror}", hint="invoke build --force"
        ) from wrong


def _damaged(path: Path, why: str) -> BuildError:
    return BuildError(f"{path}: damaged since it was stored: {why}", hint="invoke build --force")


def _read(record: Path) -> Artifact:
    try:
        return Artifact.model_validate_json(record.read_bytes())
    except (OSError, ValidationError) as wrong:
        why = str(wrong)
        if isinstance(wrong, ValidationError):
            first = wrong.errors()[0]
            place = ".".join(map(str, first["loc"]))
            why = f"{place}: {first['msg']}" if place else first["msg"]
        raise UsageError(
            f"{record}: not the record of an artifact: {why}",
            hint=f"move {record.parent} away and run invoke build again",
        ) from wrong


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
