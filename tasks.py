"""The verbs. Each reads its options and makes one call, into rocbake/command.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke.collection import Collection

try:
    from rocbake import command
    from rocbake.asked import Asked
    from rocbake.boundary import verb
except ModuleNotFoundError as missing:  # a checkout that is newer than its .venv, or has none
    raise SystemExit(f"✗ {missing.name} is not installed here\n  → ./bootstrap") from missing

if TYPE_CHECKING:
    from invoke.context import Context

_HELP = {
    "target": "GPU target set: gfx1201; gfx1100,gfx1201 for one archive with both; repeatable",
    "recipe": "recipe to take; repeatable; all of them if not given",
    "json": "print the result as JSON",
    "offline": "use the cache alone, no network",
    "set": "NAME=VALUE: a build option that is not to be as its rules say; repeatable",
    "jobs": "compilers at a time, 1 to 1024; as many as cores and memory allow if not given",
}


def _help(*shared: str, **own: str) -> dict[str, str]:
    return {name: _HELP[name] for name in shared} | own


@verb(
    iterable=["target", "recipe", "set"],
    help=_help(
        "target",
        "recipe",
        "set",
        "json",
        "offline",
        "jobs",
        dry_run="print the plan and stop",
        force="build even what is in the store",
        no_pull="build even what the remote store of ROCBAKE_REMOTE has",
        bazel_remote_cache="address of Bazel's remote cache, for recipes that Bazel builds",
        bazel_remote_executor="address of Bazel's remote execution; logins are in ~/.netrc",
    ),
)
def build(
    context: Context,
    target: list[str],
    recipe: list[str],
    set: list[str],
    dry_run: bool = False,
    json: bool = False,
    offline: bool = False,
    force: bool = False,
    no_pull: bool = False,
    jobs: str | None = None,
    bazel_remote_cache: str = "",
    bazel_remote_executor: str = "",
) -> None:
    """Build images and archives for GPU targets."""
    command.build(
        target,
        recipe,
        dry_run=dry_run,
        as_json=json,
        offline=offline,
        force=force,
        settings=set,
        jobs=jobs,
        remote_cache=bazel_remote_cache,
        remote_executor=bazel_remote_executor,
        no_pull=no_pull,
    )


@verb(
    iterable=["name", "target"],
    help=_help(
        "json",
        target="GPU target set whose own files are recorded, too: AMD's ROCm, gigabytes each",
        name="container or recipe; repeatable; all of them if not given",
        check="write nothing; exit 3 if a lock is stale or the archive has moved on",
        record="write the digests of the artifacts in the store into their locks",
    ),
)
def lock(
    context: Context,
    name: list[str],
    target: list[str],
    check: bool = False,
    record: bool = False,
    json: bool = False,
) -> None:
    """Resolve every wish into a lock: what exactly, by SHA-256."""
    command.lock(name, target, check=check, record=record, as_json=json)


@verb(
    iterable=["recipe", "target", "set"],
    help=_help(
        "recipe",
        "set",
        "json",
        "offline",
        target="GPU target set whose builds are to need no network; repeatable",
    ),
)
def fetch(
    context: Context,
    recipe: list[str],
    target: list[str],
    set: list[str],
    offline: bool = False,
    json: bool = False,
) -> None:
    """Bring every locked source into the cache; --offline lists what is missing there."""
    command.fetch(recipe, target, offline=offline, as_json=json, settings=set)


@verb(name="list", help=_help("json", targets="every GPU target instead"))
def list_(context: Context, targets: bool = False, json: bool = False) -> None:
    """Print recipes, containers and the artifacts in the store."""
    command.list_(targets=targets, as_json=json)


@verb(
    iterable=["target", "set"],
    help=_help(
        "target", "set", "json", recipe="recipe, where there are several", log="the build's log"
    ),
)
def show(
    context: Context,
    target: list[str],
    set: list[str],
    recipe: str = "",
    json: bool = False,
    log: bool = False,
) -> None:
    """Print what is known of one artifact."""
    command.show_(target, recipe, as_json=json, build_log=log, settings=set)


@verb(
    iterable=["target", "recipe", "set"],
    help=_help("target", "recipe", "set", "json", "offline", "jobs"),
)
def verify(
    context: Context,
    target: list[str],
    recipe: list[str],
    set: list[str],
    json: bool = False,
    offline: bool = False,
    jobs: str | None = None,
) -> None:
    """Build again from nothing and compare: archive, configuration, every layer."""
    command.verify(target, recipe, as_json=json, offline=offline, settings=set, jobs=jobs)


@verb(
    iterable=["target", "set"],
    help=_help(
        "target",
        "set",
        recipe="recipe, where there are several",
        into="folder that the files go to",
        image="the image, as `docker load` takes it, instead of the archive",
        bundled="the archive that carries its ROCm libraries",
        github_env="set what the archive's users set for the later steps of a GitHub Actions job",
    ),
)
def export(
    context: Context,
    target: list[str],
    set: list[str],
    recipe: str = "",
    into: str = "",
    image: bool = False,
    bundled: bool = False,
    github_env: bool = False,
) -> None:
    """Copy an archive, its checksum and its manifest to a folder."""
    command.export(
        target,
        recipe,
        into,
        image=image,
        bundled=bundled,
        github_env=github_env,
        settings=set,
    )


@verb(
    iterable=["target", "set"],
    help=_help(
        "target",
        "set",
        "json",
        recipe="recipe, where there are several",
        to="remote store, file:///FOLDER; ROCBAKE_REMOTE if not given",
    ),
)
def push(
    context: Context,
    target: list[str],
    set: list[str],
    recipe: str = "",
    to: str = "",
    json: bool = False,
) -> None:
    """Write an artifact into a remote store; what is there is not written again."""
    command.push(target, recipe, to, as_json=json, settings=set)


@verb(
    iterable=["target", "recipe", "set"],
    help=_help(
        "target",
        "recipe",
        "set",
        "json",
        from_="remote store, https://HOST/FOLDER or file:///FOLDER; ROCBAKE_REMOTE if not given",
        no_fit_check="take what does not fit this machine; what is passed over is told",
    ),
)
def pull(
    context: Context,
    target: list[str],
    recipe: list[str],
    set: list[str],
    from_: str = "",
    no_fit_check: bool = False,
    json: bool = False,
) -> None:
    """Bring artifacts from a remote store, if the locks vouch for them and they fit."""
    command.pull(target, recipe, from_, no_fit_check=no_fit_check, as_json=json, settings=set)


@verb(
    help=_help(
        "json",
        yes="remove it",
        all="also what is still of use: every artifact, image and source",
    )
)
def clean(context: Context, yes: bool = False, all: bool = False, json: bool = False) -> None:
    """Show what of ours could go; --yes removes it."""
    command.clean(everything=all, yes=yes, as_json=json)


@verb(help=_help("json"))
def doctor(context: Context, json: bool = False) -> None:
    """Find everything that would go wrong, and what to type about it."""
    command.doctor(as_json=json)


@verb(
    iterable=["target", "recipe", "relax"],
    optional=["emulate"],
    help=_help(
        "target",
        "recipe",
        "json",
        gpu_target="try the card of this target",
        device_index="try the card of this number, as ROCm on this host counts",
        render_node="try the card of this node: /dev/dri/renderD128, or its link in by-path",
        override="HSA_OVERRIDE_GFX_VERSION in the container, such as 11.0.0",
        relax="give up a protection: privileged, seccomp, ipc or network; repeatable",
        memory="GiB that the container may use",
        timeout="seconds that a probe may take",
        require_gpu="no GPU is a failure (exit code 9), and not a state of its own (10)",
        host="on the processor, as far as the recipe allows; never counts for a GPU",
        emulate="run the device code on an emulator: tinygrad, or the one named",
        junit="write JUnit XML to this file",
        dry_run="print how the container would be run, and stop",
        print_run="print that as docker and podman lines, and stop",
    ),
)
def smoke(
    context: Context,
    target: list[str],
    recipe: list[str],
    relax: list[str],
    gpu_target: str = "",
    device_index: str = "",
    render_node: str = "",
    override: str | None = None,
    memory: str = "8",
    timeout: str = "120",
    require_gpu: bool = False,
    host: bool = False,
    emulate: str | bool | None = None,
    junit: str = "",
    dry_run: bool = False,
    print_run: bool = False,
    json: bool = False,
) -> None:
    """Try what was built on the GPU, and prove that the GPU computed."""
    asked = Asked(
        targets=target,
        recipes=recipe,
        gpu_target=gpu_target,
        device_index=device_index,
        render_node=render_node,
        override=override,
        relax=relax,
        memory=memory,
        timeout=timeout,
        host=host,
        # With nothing after it, Invoke gives True.
        emulator="tinygrad" if emulate is True else str(emulate or ""),
        require_gpu=require_gpu,
    )
    command.smoke(asked, dry_run=dry_run, print_run=print_run, junit=junit, as_json=json)


@verb(help={"unit": "only the fast ones, which need no container engine"})
def test(context: Context, unit: bool = False) -> None:
    """Run this project's tests."""
    command.test(unit=unit)


@verb
def check(context: Context) -> None:
    """Run linters, type checker and layering rules on this project."""
    command.check()


namespace = Collection(
    build,
    check,
    clean,
    doctor,
    export,
    fetch,
    list_,
    lock,
    pull,
    push,
    show,
    smoke,
    test,
    verify,
)
