"""Remote stores: artifacts in a folder that a web server can hand out, files by their digests.

<name>/<tag>-<key>/remote.json   what the artifact is, and its files; written last
blobs/sha256/<digest>            every file, once

Anything that serves files serves one: a folder of this machine, a web server, a bucket behind one.
Only a folder can be written to.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Annotated, Literal, Self
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from rocbake import digest
from rocbake import store as stores
from rocbake.errors import FetchError, UsageError
from rocbake.mirror import redact
from rocbake.source import Sha256
from rocbake.store import Artifact, key_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "ROCBAKE_REMOTE"
INDEX = "remote.json"
_SCHEMES = ("file", "http", "https")
# What nobody vouches for, and what is about one machine.
_KEPT_HERE = {stores.RECORD, stores.LOG}
# No part begins with a dot, so none can be `..`.
_Path = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*$")
]


def travels(path: str) -> bool:
    """Return whether a file of an artifact's folder is the same for everybody."""
    return path not in _KEPT_HERE and not path.startswith(f"{stores.SMOKE}/")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RemoteFile(_Model):
    """One file of an artifact."""

    path: Annotated[_Path, Field(description="below the artifact's folder in the store")]
    sha256: Sha256
    size: Annotated[int, Field(ge=0, description="bytes")]


class RemoteArtifact(_Model):
    """What remote.json says."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    artifact: Annotated[Artifact, Field(description="as in artifact.json")]
    files: tuple[RemoteFile, ...]

    @model_validator(mode="after")
    def _paths_are_those_of_an_artifact(self) -> Self:
        paths = [one.path for one in self.files]
        folders = {parent.as_posix() for path in paths for parent in PurePosixPath(path).parents}
        if twice := [path for path, count in Counter(paths).items() if count > 1]:
            raise ValueError(f"{twice[0]} is listed twice")
        for path in paths:
            if path in folders:
                raise ValueError(f"{path} is listed as a file and as a folder")
            if not travels(path):
                raise ValueError(f"{path} is about one machine")
        artifact = self.artifact
        for record in (artifact.archive, artifact.bundled, artifact.tests):
            if record and record.file_name not in paths:
                raise ValueError(f"{record.file_name} is not listed")
        return self

    def to_json(self) -> bytes:
        """Return the canonical bytes."""
        return digest.canonical_json(self.model_dump(mode="json", by_alias=True)) + b"\n"


def parse_index(data: bytes, url: str) -> RemoteArtifact:
    """Read a remote.json, which may come from anybody.

    Raises:
        FetchError: It is none.
    """
    try:
        return RemoteArtifact.model_validate(json.loads(data))
    except (ValidationError, ValueError, RecursionError) as wrong:
        why = wrong.errors()[0]["msg"] if isinstance(wrong, ValidationError) else str(wrong)
        raise FetchError(f"{redact(url)}: not the index of an artifact: {why}") from wrong


@dataclass(frozen=True)
class Remote:
    """The address of a remote store, without a slash at its end."""

    address: str

    def index_url(self, name: str, tag: str, key: str) -> str:
        """Return where it says what the artifact of a key is."""
        return f"{self.address}/{quote(name)}/{quote(key_folder(tag, key))}/{INDEX}"

    def blob_url(self, sha256: str) -> str:
        """Return where the file of a digest is."""
        return f"{self.address}/blobs/sha256/{sha256}"

    @property
    def folder(self) -> Path:
        """The folder that it is on this machine.

        Raises:
            UsageError: It is elsewhere, and can only be read.
        """
        parts = urlsplit(self.address)
        if parts.scheme != "file":
            raise UsageError(
                f"{redact(self.address)} can only be read",
                hint="invoke push --to file:///FOLDER, and have the folder served or copied",
            )
        return Path(url2pathname(parts.path))

    def put(self, path: Path, sha256: str, size: int) -> int:
        """Write a file, unless it is there; return how many bytes were written.

        Raises:
            UsageError: The folder cannot be written to.
        """
        place = self.folder / "blobs" / "sha256" / sha256
        if place.is_file() and place.stat().st_size == size:
            return 0
        with path.open("rb") as source:
            _write(place, source)
        return size

    def put_index(self, found: RemoteArtifact) -> None:
        """Write what an artifact is; from now on it is there for others.

        Raises:
            UsageError: The folder cannot be written to.
        """
        one = found.artifact
        url = self.index_url(one.name, one.tag, one.key)
        place = self.folder / Path(url.removeprefix(f"{self.address}/"))
        with tempfile.TemporaryFile() as source:
            source.write(found.to_json())
            source.seek(0)
            _write(place, source)


def _write(place: Path, source: IO[bytes]) -> None:
    """Write beside the place, and give it its name when all of it is on the disk."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:40]}-")
        try:
            with os.fdopen(descriptor, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
                os.fchmod(target.fileno(), 0o644)
            Path(name).replace(place)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as failed:
        raise UsageError(f"{place}: cannot be written: {failed.strerror}") from failed


def parse(address: str, environment: Mapping[str, str], *, option: str) -> Remote:
    """Read the address of a remote store, of an option or else of ROCBAKE_REMOTE.

    Raises:
        UsageError: There is none, or it is no address.
    """
    named, text = (option, address) if address else (VARIABLE, environment.get(VARIABLE, ""))
    if not text:
        raise UsageError(
            f"no remote store was named: neither {option} nor {VARIABLE}",
            hint=f"add {option} https://HOST/FOLDER or {option} file:///FOLDER",
        )
    expected = f"{named}: expected https://HOST/FOLDER, http:// or file:///FOLDER"
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in _SCHEMES and bool(parts.hostname or parts.scheme == "file")
    except ValueError as odd:
        raise UsageError(f"{expected}, got {redact(text)}") from odd
    if not is_good or parts.query or parts.fragment or (parts.scheme == "file" and parts.netloc):
        raise UsageError(f"{expected}, got {redact(text)}")
    if parts.username is not None:
        raise UsageError(
            f"{named}: a login in an address ends up in logs",
            hint=f"put it into ~/.netrc: machine {parts.hostname} login NAME password SECRET",
        )
    return Remote(text.rstrip("/"))
