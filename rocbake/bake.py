"""A plan as a bake file: one target a layer, linked by contexts, every input below one folder.

Anyone can run the file by hand: `docker buildx bake --file bake.json`.
Format: https://docs.docker.com/build/bake/reference/
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

from rocbake import bazel
from rocbake.container import SHARED, TOOLS
from rocbake.errors import BuildError
from rocbake.plan import Layer, container_files, dockerfile_of, recipe_files, tool_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rocbake.bazel import Remote
    from rocbake.plan import Plan
    from rocbake.project import Project
    from rocbake.source import Source

DIST = "dist"
BUNDLE = "bundle"
TESTS = "tests"
# What Bazel downloads, and the stage that it builds in.
DEPS = "deps"
_BUILT = "built"
# The one folder of a bundle that is laid over the product, and not below its lib/.
OVERLAY = "overlay"
RUNTIME = "runtime"
_PRODUCTS = (DIST, BUNDLE, TESTS)
_NO_SECOND_NAME = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}
# The engine's client hands the user's proxies on to every step, credentials and all, unless told
# otherwise. No step here has a network.
_NO_PROXY = {
    name: ""
    for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY")
    for name in (proxy, proxy.lower())
}
ROOTFS = "rootfs.tar"
_FOLDER_MODE = 0o755
# Timestamps are clamped to the epoch, and each layer is compressed once, in a format that takes a
# fifth of the time that gzip takes.
_EXPORT = (
    "type=oci,dest={dest},tar=false,rewrite-timestamp=true,oci-mediatypes=true,"
    "compression=zstd,compression-level=3,force-compression=true"
)


def describe(
    plan: Plan,
    exports: Iterable[str],
    *,
    jobs: int | None = None,
    fresh: str = "",
    remote: Remote | None = None,
    netrc: Path | None = None,
) -> dict[str, Any]:
    """Return the bake file of a plan.

    Args:
        plan: What to build.
        exports: The layers that are exported as images, besides the recipe's own.
        jobs: How many compilers may run at once; what the container has room for if None.
        fresh: What no build had before, for one from nothing: no layer is taken from BuildKit's
            cache, and no object from a compiler cache. Empty for others.
        remote: Bazel's remote cache and executor; they change nothing of what comes out.
        netrc: A file with the logins for them.
    """
    exports = set(exports)
    targets: dict[str, Any] = {}
    for layer in plan.layers:
        targets[layer.name] = _target(
            layer.epoch, f"containers/{layer.name}", labels=_labels(layer)
        ) | {"contexts": _contexts(layer)}
        if layer.name in exports:
            targets[layer.name]["output"] = [_EXPORT.format(dest=f"out/{layer.name}")]
    arguments = {
        "GPU_TARGETS": ",".join(plan.targets),
        "VERSION": plan.version,
        "OPTIONS": " ".join(f"{name}={value}" for name, value in sorted(plan.options.items())),
        # None changes what comes out. The SDK's key tells ccache one compiler from another, and
        # with something new in it BuildKit runs the step again. Told to ignore its cache, it would
        # throw away what ccache has for other builds.
        "JOBS": str(jobs or ""),
        "CCACHE": "" if fresh else "1",
        "SDK": plan.chain(plan.sdk)[-1].key + fresh,
    }
    runtime = plan.runtime
    if runtime == plan.sdk:
        # Bake takes no target twice among the contexts of another, so it gets a second name.
        runtime = RUNTIME
        targets[runtime] = _target(plan.epoch, ".", labels={}) | {
            "dockerfile-inline": f"FROM {plan.sdk}\n",
            "contexts": {plan.sdk: f"target:{plan.sdk}"},
        }
        del targets[runtime]["dockerfile"]
    contexts = {
        "sdk": f"target:{plan.sdk}",
        RUNTIME: f"target:{runtime}",
        "recipe": f"recipes/{plan.name}",
        "sources": "sources",
        TOOLS: f"containers/{plan.tools or plan.sdk}/{TOOLS}",
    }
    common = _target(plan.epoch, "recipes", labels={}) | {"contexts": contexts}
    common["args"] |= arguments
    if plan.bazel:
        common["dockerfile"] = dockerfile_of(plan.bazel)
        common["args"]["BAZEL"] = json.dumps(bazel.for_container(plan.bazel, plan.targets))
        targets[DEPS] = common | {
            "target": DEPS,
            "network": "default",
            "output": [f"type=local,dest=out/{DEPS}"],
        }
        targets[_BUILT] = common | {"target": "building"}
        if remote:
            targets[_BUILT] |= {
                "target": "building-remotely",
                "network": "default",
                "args": common["args"] | {"REMOTE": json.dumps(remote.words)},
                "secret": [f"id=netrc,src={netrc}"] if netrc else [],
            }
        common["contexts"] = contexts | {_BUILT: f"target:{_BUILT}"}
    for product in _PRODUCTS:
        targets[product] = common | {
            "target": product,
            "output": [f"type=local,dest=out/{product}"],
        }
    targets[plan.name] = _target(plan.epoch, f"recipes/{plan.name}", labels=_labels(plan)) | {
        "contexts": {
            RUNTIME: f"target:{plan.runtime}",
            DIST: f"target:{DIST}",
            BUNDLE: f"target:{BUNDLE}",
        },
        "output": [_EXPORT.format(dest=f"out/{plan.name}")],
    }
    if fresh:
        for name in (*(layer.name for layer in plan.layers), plan.name):
            targets[name]["no-cache"] = True
    return {
        "group": {"default": {"targets": [*sorted(exports), *_PRODUCTS, plan.name]}},
        "target": targets,
    }


def _target(epoch: int, folder: str, *, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "context": folder,
        "dockerfile": "Dockerfile",
        "platforms": ["linux/amd64"],
        "network": "none",
        "args": {**_NO_PROXY, "SOURCE_DATE_EPOCH": str(epoch)},
        "attest": ["type=provenance,disabled=true", "type=sbom,disabled=true"],
        "labels": dict(labels),
    }


def _contexts(layer: Layer) -> dict[str, str]:
    if layer.parent is None:
        return {}
    contexts = {
        layer.parent: f"target:{layer.parent}",
        "packages": f"packages/{layer.name}",
        SHARED: f"containers/{SHARED}",
    }
    if layer.files_beside:
        contexts["sources"] = f"layer-sources/{layer.name}"
    return contexts


def _labels(what: Plan | Layer) -> dict[str, str]:
    labels = {
        "dev.rocbake.key": what.key,
        "org.opencontainers.image.title": what.name,
    }
    if what.rocm:
        labels["dev.rocbake.rocm"] = what.rocm
    if isinstance(what, Layer):
        labels["org.opencontainers.image.version"] = what.tag
    else:
        labels["org.opencontainers.image.version"] = what.version
        labels["dev.rocbake.targets"] = ",".join(what.targets)
    return labels


def lay_out(
    plan: Plan, project: Project, folder: Path, *, files: Mapping[str, Path], rootfs: Path
) -> None:
    """Put every input of a plan below a folder, in the places that its bake file names.

    Nothing but locked files and the project's own are there, and the project's own have the same
    modes whatever the checkout's umask was.

    Args:
        plan: What to build.
        project: Where its containers and recipes are.
        folder: An empty folder.
        files: Where each source lies, by SHA-256.
        rootfs: The root container's file system as a tar.
    """
    containers, recipes = project.root / "containers", project.root / "recipes"
    for layer in plan.layers:
        own = folder / "containers" / layer.name
        _copy(containers / layer.name / "Dockerfile", own / "Dockerfile")
        if layer.parent is None:
            _link(rootfs, own / ROOTFS)
        else:
            _link_all(layer.packages, folder / "packages" / layer.name, files)
            _link_all(layer.files_beside, folder / "layer-sources" / layer.name, files)
    tools = plan.tools or plan.sdk
    for relative in tool_files(containers, tools):
        _copy(containers / relative, folder / "containers" / relative)
    (folder / "containers" / tools / TOOLS).mkdir(exist_ok=True)
    for script in (containers / SHARED).glob("*.sh"):
        _copy(script, folder / "containers" / SHARED / script.name)
    recipe = project.recipes[plan.name]
    dockerfile = dockerfile_of(plan.bazel)
    _copy(recipes / dockerfile, folder / "recipes" / dockerfile)
    for relative in recipe.files():
        _copy(recipe.folder / relative, folder / "recipes" / plan.name / relative)
    _link_all(plan.sources, folder / "sources", files)
    _require_unchanged(plan, folder)
    # BuildKit takes the modes of folders, and those of copies, which the umask gave them.
    for path in (one for one in folder.rglob("*") if one.is_dir() and not one.is_symlink()):
        path.chmod(_FOLDER_MODE)


def _require_unchanged(plan: Plan, folder: Path) -> None:
    """Check that what was copied is what the plan's key stands for: files change while we fetch."""
    changed = [
        f"containers/{layer.name}"
        for layer in plan.layers
        if container_files(folder / "containers", layer.name) != layer.files
    ]
    recipe = folder / "recipes" / plan.name
    copied = [path.relative_to(recipe) for path in recipe.rglob("*") if not path.is_dir()]
    now = recipe_files(
        folder,
        plan.name,
        copied,
        dockerfile=dockerfile_of(plan.bazel),
        tools=plan.tools or plan.sdk,
    )
    if now != plan.files:
        changed.append(f"recipes/{plan.name}")
    if changed:
        raise BuildError(
            f"changed since the build began: {', '.join(changed)}",
            hint="run the same command again",
        )


def _link_all(sources: Iterable[Source], folder: Path, files: Mapping[str, Path]) -> None:
    folder.mkdir(parents=True)
    for source in sources:
        place = folder / source.file_name
        if place.exists():
            raise BuildError(f"two sources are called {source.file_name}: {source.label} is one")
        _link(files[source.sha256], place)


def _link(source: Path, destination: Path) -> None:
    """Give a file a second name; copy it where the two are on different file systems."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, destination)
    except OSError as failed:
        # Anything else, such as a name that is taken, must not be written over: it may be a
        # second name of a file in the cache.
        if failed.errno not in _NO_SECOND_NAME:
            raise
        shutil.copyfile(source, destination)
        destination.chmod(source.stat().st_mode)


def _copy(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        destination.symlink_to(source.readlink())
        return
    shutil.copyfile(source, destination)
    destination.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
