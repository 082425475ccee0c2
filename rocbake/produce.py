"""Producing: from a plan to its images, its packed archive and its manifest, in a work folder.

What happens to them then - kept, compared, thrown away - is for others.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocbake import archive, bake, digest, disk, engine, fetch, log, manifest, mirror, oci, rootfs
from rocbake import store as stores
from rocbake.errors import BuildError
from rocbake.store import ArchiveRecord, ImageRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocbake.oci import Layout
    from rocbake.plan import Layer, Plan
    from rocbake.workshop import Workshop


@dataclass(frozen=True)
class Product:
    """What a build gave, each image in a folder of its own below `folder`.

    Attributes:
        folder: `<name>/image/` for each image; the recipe's has the archive and manifest beside.
        images: By name: the layers that were exported, and the recipe's own.
        archive: The record of the packed archive.
        log_path: The build's log.
    """

    folder: Path
    images: dict[str, Layout]
    archive: ArchiveRecord
    log_path: Path


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
    log_path = work / stores.LOG
    root = plan.layers[0]
    kept = work if workshop.fresh else workshop.cache.root / stores.ROOTFS
    tar = rootfs.find(root, kept)
    if tar is None:
        with log.step(f"Making the root file system from {len(root.packages)} packages"):
            tar = rootfs.keep(root, kept, files=files, log_path=log_path)
    bake.lay_out(plan, workshop.project, work, files=files, rootfs=tar)
    bake_file = work / "bake.json"
    description = bake.describe(plan, [layer.name for layer in exports])
    bake_file.write_text(json.dumps(description, indent=2) + "\n")
    with log.step(f"Building {plan.name} for {','.join(plan.targets)}"):
        engine.bake(bake_file, ["default"], log_path=log_path, no_cache=workshop.fresh)
    folder = work / "product"
    wanted: list[Plan | Layer] = [*exports, plan]
    images = {
        one.name: _collect_image(one.name, work, folder, log_path, epoch=one.epoch)
        for one in wanted
    }
    packed = _pack(plan, work / "out" / bake.DIST, folder / plan.name)
    return Product(folder=folder, images=images, archive=packed, log_path=log_path)


def _collect_image(name: str, work: Path, folder: Path, log_path: Path, *, epoch: int) -> Layout:
    place = folder / name
    place.mkdir(parents=True)
    (work / "out" / name).replace(place / stores.IMAGE)
    shutil.copyfile(log_path, place / stores.LOG)
    image = oci.read(place / stores.IMAGE)
    _require_not_newer(image, epoch)
    return image


def _pack(plan: Plan, dist: Path, place: Path) -> ArchiveRecord:
    """Read the product, and pack it with its manifest, which lies beside the archive, too."""
    data = manifest.make(dist, plan).to_json()
    for folder in (dist, place):
        (folder / stores.MANIFEST).write_bytes(data)
    file_name = f"{plan.stem}.tar.zst"
    with log.step(f"Packing {file_name}"):
        packed = archive.write_archive(dist, place / file_name, prefix=plan.stem, epoch=plan.epoch)
    return ArchiveRecord(
        file_name=file_name,
        sha256=packed.sha256,
        size=packed.size,
        tar_sha256=packed.tar_sha256,
        manifest_sha256=digest.sha256_bytes(data),
    )


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
