"""The verbs. Each reads its options, makes one call and prints; logic lives below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Collection

from rocbake.boundary import verb

if TYPE_CHECKING:
    from invoke import Context

_TARGET = "GPU target set: gfx1201, or several for one archive: gfx1100,gfx1201; repeat for more archives"
_RECIPE = "recipe to take; repeat for several; all of them if not given"
_JSON = "print the result as JSON on stdout"
_OFFLINE = "use the cache alone, no network"


# The imports inside keep a verb that has nothing to do under a second.


@verb(
    iterable=["target", "recipe"],
    help={
        "target": _TARGET,
        "recipe": _RECIPE,
        "dry_run": "print the plan and stop",
        "json": _JSON,
        "offline": _OFFLINE,
        "force": "build even what is in the store",
    },
)
def build(
    context: Context,
    target: list[str],
    recipe: list[str],
    dry_run: bool = False,
    json: bool = False,
    offline: bool = False,
    force: bool = False,
) -> None:
    """Build images and archives for GPU targets."""
    from rocbake import command

    command.build(target, recipe, dry_run=dry_run, as_json=json, offline=offline, force=force)


@verb(
    iterable=["name"],
    help={
        "name": "container or recipe; repeat for several; all of them if not given",
        "check": "write nothing; exit 3 if a lock is stale or the archive has moved on",
        "record": "write the digests of the artifacts in the store into their locks",
        "json": _JSON,
    },
)
def lock(
    context: Context,
    name: list[str],
    check: bool = False,
    record: bool = False,
    json: bool = False,
) -> None:
    """Resolve every wish into a lock: what exactly, by SHA-256."""
    from rocbake import command

    command.lock(name, check=check, record=record, as_json=json)


namespace = Collection(build, lock)
