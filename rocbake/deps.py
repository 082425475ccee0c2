"""What Bazel downloads: brought once, by a stage of the build that alone has a network.

Like a fixed-output derivation of Nix: the stage may ask whom it likes, and what it leaves is known
by its digest. It is a repository cache, files named by their own digests, kept as one tar.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from rocbake import archive, bake, engine, fetch, log, mirror
from rocbake.errors import FetchError
from rocbake.source import Deps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rocbake.plan import Plan
    from rocbake.workshop import Workshop

_PART = "deps.tar"
# What the container's tools print of a download that upstream names no checksum for.
_UNSURE = re.compile(r"(?<= )no checksum: .+$", re.MULTILINE)


def bring(
    plan: Plan,
    locked: Deps,
    work: Path,
    *,
    files: Mapping[str, Path],
    rootfs: Path,
    workshop: Workshop,
    log_path: Path,
) -> Path:
    """Return the tar of what a plan's Bazel downloads, downloading it if nobody has.

    Args:
        plan: What is built.
        locked: What its lock says the downloads are.
        work: A folder of its own, absent still, in which they are brought.
        files: Every other source, by SHA-256.
        rootfs: The root container's file system as a tar.
        workshop: Where things are.
        log_path: Where the stage's output goes.

    Raises:
        FetchError: They cannot be had, or are not what the lock says.
        BuildError: A layer below could not be built.
    """
    cache = workshop.cache
    if not _is_here(locked, workshop):
        got = download(plan, work, files=files, rootfs=rootfs, workshop=workshop, log_path=log_path)
        if got.sha256 != locked.sha256:
            raise FetchError(
                f"{plan.name}: what Bazel downloads is not what the lock says\n"
                f"      expected sha256 {locked.sha256} ({locked.size} bytes)\n"
                f"      got      sha256 {got.sha256} ({got.size} bytes)",
                hint=f"invoke lock --name {plan.name} --target {','.join(plan.targets)}  "
                "records what came, if you trust it",
            )
    return cache.path(locked.sha256)


def _is_here(locked: Deps, workshop: Workshop) -> bool:
    """Tell whether the tar is in the cache, or comes from a vault that has it by its digest."""
    mirrors = mirror.load()
    if not (workshop.offline or mirrors.blobs):
        return workshop.cache.verify(locked.sha256)
    try:
        fetch.fetch([locked], cache=workshop.cache, mirrors=mirrors, offline=workshop.offline)
    except FetchError as failed:
        if workshop.offline:
            raise
        log.warn(f"{failed}\n  Bazel is asked for it instead")
        return False
    return True


def download(
    plan: Plan,
    work: Path,
    *,
    files: Mapping[str, Path],
    rootfs: Path,
    workshop: Workshop,
    log_path: Path,
) -> Deps:
    """Have Bazel download what a plan needs, take it into the cache, and say what it is.

    The arguments are those of `bring`.

    Raises:
        BuildError: The stage, or a layer below it, failed.
    """
    work.mkdir()
    # It is there to find out what they are.
    others = tuple(one for one in plan.sources if not isinstance(one, Deps))
    plan = plan.model_copy(update={"sources": others})
    bake.lay_out(plan, workshop.project, work, files=files, rootfs=rootfs)
    bake_file = work / "bake.json"
    bake_file.write_text(json.dumps(bake.describe(plan, []), indent=2) + "\n")
    with log.step(f"Downloading what Bazel needs for {plan.name}"):
        engine.bake(bake_file, [bake.DEPS], log_path=log_path)
        part = work / _PART
        # Neither a date nor a name of this build: the next one must give the same.
        packed = archive.write_tar(work / "out" / bake.DEPS, part, prefix="", epoch=0)
        workshop.cache.put(part, sha256=packed.sha256)
    for line in _UNSURE.findall(log_path.read_text(errors="replace")):
        log.warn(line)
    return Deps(sha256=packed.sha256, size=packed.size)
