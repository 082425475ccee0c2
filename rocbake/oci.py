"""OCI image layouts on disk: read, checked, and handed on as one tar stream.

Identity is the configuration's digest and the diffIDs: they do not change with the compression.
Format: https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import zstandard

from rocbake import digest
from rocbake.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DAMAGE = (tarfile.TarError, zstandard.ZstdError)
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Blob:
    """One file of a layout: its `sha256:…` digest, size in bytes and media type."""

    digest: str
    size: int
    media_type: str


@dataclass(frozen=True)
class Layout:
    """One image in a folder.

    Attributes:
        folder: The layout's root, with `oci-layout`, `index.json` and `blobs/`.
        manifest: The image manifest.
        config: The image configuration; its digest is the image's identity.
        layers: The compressed layers, lowest first.
        diff_ids: The digests of the uncompressed layers, in the same order.
        settings: The `config` object of the configuration: user, environment, labels, command.
        layers_history: For each layer, the instruction that made it.
    """

    folder: Path
    manifest: Blob
    config: Blob
    layers: tuple[Blob, ...]
    diff_ids: tuple[str, ...]
    settings: dict[str, Any]
    layers_history: tuple[str, ...]

    def path(self, blob: Blob) -> Path:
        """Return where a blob lies."""
        algorithm, _, value = blob.digest.partition(":")
        return self.folder / "blobs" / algorithm / value

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Every blob of the image."""
        return (self.manifest, self.config, *self.layers)

    @property
    def size(self) -> int:
        """Bytes of all blobs, compressed."""
        return sum(blob.size for blob in self.blobs)

    def verify(self) -> None:
        """Hash every blob.

        Raises:
            BuildError: A blob is missing or not what its name says.
        """
        for blob in self.blobs:
            path = self.path(blob)
            got = f"sha256:{digest.sha256_file(path)}" if path.is_file() else "no file"
            if got != blob.digest:
                raise BuildError(f"{path}: expected {blob.digest}, got {got}")

    def check_sizes(self) -> None:
        """Look whether every blob is there in its size: a glance, where `verify` reads them all.

        Raises:
            BuildError: One is not.
        """
        for blob in self.blobs:
            path = self.path(blob)
            got = f"{path.stat().st_size} bytes" if path.is_file() else "no file"
            if got != f"{blob.size} bytes":
                raise BuildError(f"{path}: expected {blob.size} bytes, got {got}")

    @contextlib.contextmanager
    def open_layer(self, index: int) -> Iterator[tarfile.TarFile]:
        """Open a layer as an uncompressed tar stream, read once from front to back.

        Raises:
            BuildError: It turns out not to be one, at once or while it is read.
        """
        path = self.path(self.layers[index])
        try:
            with (
                path.open("rb") as stream,
                _decompressed(stream) as content,
                tarfile.open(fileobj=content, mode="r|") as tar,
            ):
                yield tar
        except (OSError, EOFError, ValueError, zlib.error, *_DAMAGE) as wrong:
            raise BuildError(f"{path}: layer {index} cannot be read: {wrong}") from wrong

    def write_tar(self, stream: IO[bytes], reference: str) -> None:
        """Write the image as a tar that `docker load` and `podman load` take.

        It holds both forms: the OCI layout, and the older manifest.json for engines without the
        containerd image store.
        """
        name, _, tag = reference.rpartition(":")
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [
                {
                    "mediaType": self.manifest.media_type,
                    "digest": self.manifest.digest,
                    "size": self.manifest.size,
                    "annotations": {
                        "io.containerd.image.name": f"docker.io/{reference}",
                        "org.opencontainers.image.ref.name": tag,
                    },
                }
            ],
        }

        def place(blob: Blob) -> str:
            return f"blobs/sha256/{blob.digest.removeprefix('sha256:')}"

        old = [
            {
                "Config": place(self.config),
                "RepoTags": [f"{name}:{tag}"],
                "Layers": [place(layer) for layer in self.layers],
            }
        ]
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for member, value in (
                ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
                ("index.json", index),
                ("manifest.json", old),
            ):
                data = json.dumps(value).encode()
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            for blob in {blob.digest: blob for blob in self.blobs}.values():
                info = tarfile.TarInfo(place(blob))
                info.size = blob.size
                with self.path(blob).open("rb") as source:
                    tar.addfile(info, source)


def read(folder: Path) -> Layout:
    """Read a layout that holds exactly one image.

    Raises:
        BuildError: It is not such a layout.
    """
    try:
        (entry,) = _json(folder / "index.json")["manifests"]
        manifest = _blob(entry)
        content = _json(_place(folder, manifest))
        config = _blob(content["config"])
        settings = _json(_place(folder, config))
        history = [
            item.get("created_by", "")
            for item in settings.get("history", [])
            if not item.get("empty_layer")
        ]
        layers = tuple(map(_blob, content["layers"]))
        diff_ids = tuple(map(_digest, settings["rootfs"]["diff_ids"]))
        if not len(layers) == len(diff_ids) == len(history):
            raise ValueError(  # noqa: TRY301 - one kind for all
                f"{len(layers)} layers, {len(diff_ids)} diffIDs, {len(history)} instructions"
            )
        return Layout(
            folder=folder,
            manifest=manifest,
            config=config,
            layers=layers,
            diff_ids=diff_ids,
            settings=dict(settings["config"]),
            layers_history=tuple(map(str, history)),
        )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as wrong:
        raise BuildError(f"{folder}: not an OCI layout of one image: {wrong}") from wrong


def members(layout: Layout, index: int) -> Iterator[tuple[tarfile.TarInfo, str | None]]:
    """Walk through a layer: each member, and the SHA-256 of its content if it is a file."""
    with layout.open_layer(index) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() else None
            content = None
            if stream:
                with stream:
                    content = digest.sha256_stream(stream)
            yield member, content


def names(layout: Layout) -> Iterator[str]:
    """Give the path of every member of every layer, lowest layer first."""
    for index in range(len(layout.layers)):
        with layout.open_layer(index) as tar:
            for member in tar:
                yield member.name


def _json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: expected an object")  # noqa: TRY004 - one kind for all
    return value


def _blob(entry: dict[str, Any]) -> Blob:
    return Blob(
        digest=_digest(entry["digest"]),
        size=int(entry["size"]),
        media_type=str(entry["mediaType"]),
    )


def _digest(name: str) -> str:
    if not name.startswith("sha256:") or not digest.is_sha256(name.removeprefix("sha256:")):
        raise ValueError(f"not a sha256 digest: {name!r}")
    return name


def _place(folder: Path, blob: Blob) -> Path:
    return folder / "blobs" / "sha256" / blob.digest.removeprefix("sha256:")


def _decompressed(stream: BinaryIO) -> IO[bytes]:
    magic = stream.read(4)
    stream.seek(0)
    if magic == _ZSTD:
        decompressor = zstandard.ZstdDecompressor()
        return decompressor.stream_reader(stream, read_across_frames=True)
    if magic[:2] == _GZIP:
        return cast("IO[bytes]", gzip.open(stream))
    return stream
