"""Producing: from a plan to its images, its packed archive and its manifest, in a work folder.

What happens to them then - kept, compared, thrown away - is for others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocbake import (
    archive,
    bake,
    bazel,
    deps,
    digest,
    disk,
    engine,
    fetch,
    log,
    manifest,
    mirror,
    oci,
    rootfs,
)
from rocbake import store as stores
from rocbake.errors import BuildError
from rocbake.store import ArchiveRecord, ImageRecord, TestsRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocbake.bazel import Remote
    from rocbake.manifest import Kind
    from rocbake.oci import Layout
    from rocbake.plan import Layer, Plan
    from rocbake.project import Project
    from rocbake.workshop import Workshop


@dataclass(frozen=True)
class Product:
    """What a build gave, each image in a folder of its own below `folder`.

    Attributes:
        folder: `<name>/image/` for each image; the recipe's has the archive and manifest beside.
        images: By name: the layers that were exported, and the recipe's own.
        archive: The record of the packed archive.
        bundled: The record of the archive with ROCm's libraries, where the product needs more of
            them than the runtime image has.
        tests: The record of what only tests need, where there is such a thing.
        log_path: The build's log.
    """

    folder: Path
    images: dict[str, Layout]
    archive: ArchiveRecord
    bundled: ArchiveRecord | None
    tests: TestsRecord | None
    log_path: Path


def exported(plan: Plan, project: Project) -> list[Layer]:
    """Return the layers whose images are kept; the others are only built in.

    Kept are those that the product runs on, and the SDK with what is below it, if it is not too
    large for that.
    """
    kept = [*plan.chain(plan.runtime)]
    if project.containers[plan.sdk].file.exported:
        kept += plan.chain(plan.sdk)
    return [layer for layer in plan.layers if layer in kept]


def produce(plan: Plan, exports: Sequence[Layer], work: Path, *, workshop: Workshop) -> Product:
    """Build one plan.

    Args:
        plan: What to build.
        exports: The layers that are wanted as images, besides the recipe's own.
        work: An absent folder; it holds the bake file and everything it names afterwards.
        workshop: Where things are.

    Raises:
        EngineError: The engine cannot build, or there is too little room.
        FetchError: A source cannot be had.
        BuildError: A step failed, or the product may not be exported.
    """
    log_path = work / stores.LOG
    files, tar = gather(plan, work, workshop=workshop, log_path=log_path)
    if plan.deps:
        files[plan.deps.sha256] = deps.bring(
            plan,
            plan.deps,
            work / "downloads",
            files=files,
            rootfs=tar,
            workshop=workshop,
            log_path=log_path,
        )
    bake.lay_out(plan, workshop.project, work, files=files, rootfs=tar)
    bake_file = work / "bake.json"
    with _netrc(workshop.remote) as netrc:
        description = bake.describe(
            plan,
            [layer.name for layer in exports],
            jobs=workshop.jobs,
            fresh=f" {uuid.uuid4()}" if workshop.fresh else "",
            remote=workshop.remote,
            netrc=netrc,
        )
        bake_file.write_text(json.dumps(description, indent=2) + "\n")
        with log.step(f"Building {plan.name} for {','.join(plan.targets)}"):
            engine.bake(bake_file, ["default"], log_path=log_path)
    folder = work / "product"
    wanted: list[Plan | Layer] = [*exports, plan]
    images = {
        one.name: _collect_image(one.name, work, folder, log_path, epoch=one.epoch)
        for one in wanted
    }
    place = folder / plan.name
    dist, bundle = work / "out" / bake.DIST, work / "out" / bake.BUNDLE
    bundled = None
    if any(bundle.iterdir()):
        bundled = _pack(plan, _merge(dist, bundle, work / "bundled"), place, kind="bundled")
    return Product(
        folder=folder,
        images=images,
        archive=_pack(plan, dist, place, kind="plain"),
        bundled=bundled,
        tests=_pack_tests(plan, work / "out" / bake.TESTS, place),
        log_path=log_path,
    )


@contextlib.contextmanager
def _netrc(remote: Remote | None) -> Iterator[Path | None]:
    """Give a file with the logins for a remote cache, of the user's netrc, and take it away."""
    user = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    text = bazel.credentials(remote, user) if remote else ""
    if not text:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rocbake-") as folder:
        path = Path(folder) / "netrc"
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
        yield path


def gather(
    plan: Plan, work: Path, *, workshop: Workshop, log_path: Path
) -> tuple[dict[str, Path], Path]:
    """Bring every source but what Bazel downloads, and make the root file system.

    Args:
        plan: What is built.
        work: An absent folder, which is made.
        workshop: Where things are.
        log_path: Where the output of programs goes.

    Returns:
        Where each source is, by SHA-256, and the root file system as a tar.

    Raises:
        EngineError: The engine cannot build, or there is too little room.
        FetchError: A source cannot be had.
    """
    engine.require_usable()
    engine.reap()
    disk.require_room(plan, store=workshop.store.root, cache=workshop.cache.root)
    files = fetch.fetch(
        plan.inputs,
        cache=workshop.cache,
        mirrors=mirror.load(),
        snapshot=plan.snapshot,
        offline=workshop.offline,
        # Re-read, so that what goes into the build is what the lock names.
        thorough=True,
    )
    work.mkdir()
    root = plan.layers[0]
    kept = work if workshop.fresh else workshop.cache.root / stores.ROOTFS
    tar = rootfs.find(root, kept)
    if tar is None:
        with log.step(f"Making the root file system from {len(root.packages)} packages"):
            tar = rootfs.keep(root, kept, files=files, log_path=log_path)
    return files, tar


def _collect_image(name: str, work: Path, folder: Path, log_path: Path, *, epoch: int) -> Layout:
    place = folder / name
    place.mkdir(parents=True)
    (work / "out" / name).replace(place / stores.IMAGE)
    shutil.copyfile(log_path, place / stores.LOG)
    image = oci.read(place / stores.IMAGE)
    _require_not_newer(image, epoch)
    return image


def _merge(dist: Path, bundle: Path, folder: Path) -> Path:
    """Put the product and all that it needs of ROCm below one folder, as second names."""

    def link(source: str, destination: str) -> None:
        Path(destination).unlink(missing_ok=True)
        os.link(source, destination)

    libraries = [one for one in sorted(bundle.iterdir()) if one.name != bake.OVERLAY]
    places = [(dist, folder), *((one, folder / "lib") for one in libraries)]
    if (bundle / bake.OVERLAY).is_dir():
        places.append((bundle / bake.OVERLAY, folder))
    for source, destination in places:
        shutil.copytree(source, destination, symlinks=True, dirs_exist_ok=True, copy_function=link)
    return folder


def _pack(plan: Plan, root: Path, place: Path, *, kind: Kind) -> ArchiveRecord:
    """Read the product, and pack it with its manifest, which lies beside the archive, too."""
    data = manifest.make(root, plan, kind=kind).to_json()
    file_name, prefix, beside = plan.archive_name, plan.archive_folder, stores.MANIFEST
    if kind == "bundled":
        prefix, beside = f"{plan.stem}-bundled", stores.BUNDLED_MANIFEST
        file_name = f"{prefix}.tar.zst"
    (root / stores.MANIFEST).write_bytes(data)
    (place / beside).write_bytes(data)
    with log.step(f"Packing {file_name}"):
        packed = archive.write_archive(root, place / file_name, prefix=prefix, epoch=plan.epoch)
    return ArchiveRecord(
        file_name=file_name,
        sha256=packed.sha256,
        size=packed.size,
        tar_sha256=packed.tar_sha256,
        manifest_sha256=digest.sha256_bytes(data),
    )


def _pack_tests(plan: Plan, tests: Path, place: Path) -> TestsRecord | None:
    """Pack what only tests need; it goes into no image and no archive."""
    if not any(tests.iterdir()):
        return None
    file_name = f"{plan.stem}-tests.tar.zst"
    with log.step(f"Packing {file_name}"):
        packed = archive.write_archive(tests, place / file_name, prefix="tests", epoch=plan.epoch)
    return TestsRecord(file_name=file_name, sha256=packed.sha256, size=packed.size)


def _require_not_newer(image: Layout, epoch: int) -> None:
    """Refuse an image with a file newer than its epoch: its date would be the builder's."""
    for index, instruction in enumerate(image.layers_history):
        with image.open_layer(index) as tar:
            for member in tar:
                if member.mtime > epoch:
                    raise BuildError(
                        f"layer {index} ({instruction}): {member.name} is newer than the epoch: "
                        f"expected at most {epoch}, got {member.mtime}"
                    )


def image_record(what: Plan | Layer, image: Layout) -> ImageRecord:
    """Return what an artifact's record says of its image."""
    return ImageRecord(
        reference=what.reference,
        config=image.config.digest,
        layers=image.diff_ids,
        manifest=image.manifest.digest,
        size=image.size,
    )
