"""Exporting: an artifact's files into a folder of the user's, checked on the way, by rename."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rocbake import digest, log, oci, store
from rocbake.errors import BuildError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocbake.store import Entry


def export(entry: Entry, folder: Path, *, image: bool, bundled: bool = False) -> list[Path]:
    """Copy the archive, its checksum and its manifest, or the image as one tar, into a folder.

    Args:
        entry: The artifact.
        folder: Where the files go; made if absent.
        image: Whether the image is wanted, as `docker load` takes it, and not the archive.
        bundled: Whether the archive is wanted that carries its ROCm libraries.

    Returns:
        The files written.

    Raises:
        BuildError: A stored file is damaged.
        UsageError: The folder cannot be written, or the artifact has no archive.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _image(entry, folder) if image else _archive(entry, folder, bundled=bundled)
    except OSError as failed:
        raise UsageError(f"{folder}: cannot be written: {failed.strerror}") from failed


def in_shell(environment: Mapping[str, str], archive: Path) -> list[str]:
    """Return the lines that a person pastes to have an exported archive used.

    >>> in_shell({"XLA_TARGET": "rocm", "XLA_BUILD": ""}, Path("/x.tar.gz"))
    ['export XLA_TARGET=rocm', 'unset XLA_BUILD']
    """
    return [
        f"export {name}={shlex.quote(value)}" if value else f"unset {name}"
        for name, value in _filled(environment, archive)
    ]


def to_github(environment: Mapping[str, str], archive: Path, *, job: Mapping[str, str]) -> None:
    """Set the same for the later steps of a job of GitHub Actions, where nothing can be unset.

    Raises:
        UsageError: This is no such job.
    """
    file = job.get("GITHUB_ENV")
    if not file:
        raise UsageError(
            "--github-env: GITHUB_ENV is not set, so this is no step of GitHub Actions",
            hint="leave out --github-env, and paste the lines that are printed",
        )
    lines = [f"{name}={value}\n" for name, value in _filled(environment, archive)]
    try:
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.writelines(lines)
    except OSError as failed:
        raise UsageError(f"{file}: cannot be written: {failed.strerror}") from failed


def _filled(environment: Mapping[str, str], archive: Path) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        yield name, value.replace("{archive}", str(archive.absolute()))


def _archive(entry: Entry, folder: Path, *, bundled: bool) -> list[Path]:
    if entry.artifact.archive is None:
        raise UsageError(
            f"{entry.artifact.name} is a container; it has an image and no archive",
            hint="add --image",
        )
    record, described_by = entry.artifact.archive, store.MANIFEST
    if bundled:
        if entry.artifact.bundled is None:
            raise UsageError(
                f"{entry.artifact.name} needs no more of ROCm than the HIP runtime, and has no "
                "bundled archive",
                hint="leave out --bundled",
            )
        record, described_by = entry.artifact.bundled, store.BUNDLED_MANIFEST
    source = entry.folder / record.file_name
    stem = record.file_name.rpartition(".tar.")[0]
    archive, checksum = folder / record.file_name, folder / f"{record.file_name}.sha256"
    manifest = folder / f"{stem}.manifest.json"
    with (
        log.step(f"Exporting {record.file_name}"),
        _written(archive) as packed,
        _written(manifest) as described,
        _written(checksum) as summed,
    ):
        for original, partial, expected in (
            (source, packed, record.sha256),
            (entry.folder / described_by, described, record.manifest_sha256),
        ):
            got = "no file"
            if original.is_file():
                shutil.copyfile(original, partial)
                # The copy is hashed, not the source: what is handed out is what was looked at.
                got = digest.sha256_file(partial)
            if got != expected:
                raise BuildError(
                    f"{original}: damaged since it was stored: "
                    f"expected sha256 {expected}, got {got}",
                    hint=f"invoke build --recipe {entry.artifact.name} --force",
                )
        summed.write_text(f"{record.sha256}  {record.file_name}\n")
    return [archive, checksum, manifest]


def _image(entry: Entry, folder: Path) -> list[Path]:
    artifact = entry.artifact
    layout = oci.read(entry.folder / store.IMAGE)
    layout.verify()
    path = folder / f"{artifact.name}-{artifact.version}-{artifact.tag}.image.tar"
    with log.step(f"Exporting {path.name}"), _written(path) as partial:
        stream: IO[bytes]
        with partial.open("wb") as stream:
            layout.write_tar(stream, artifact.image.reference)
    return [path]


@contextlib.contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Give a place to write to, which takes the path's name only when all is well."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
