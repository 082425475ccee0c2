"""What each verb does, in one call, and how its result is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rocbake import mirror, project, show, target
from rocbake.cache import Cache
from rocbake.errors import LockError, TargetError, UsageError
from rocbake.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocbake.project import Project


def _store(from_project: Project) -> Store:
    return Store(from_project.root / "artifacts")


def _print_json(value: Any) -> None:  # noqa: ANN401 - any JSON value
    print(json.dumps(value, indent=2))  # noqa: T201 - results go to stdout


def build(
    targets: Sequence[str],
    recipes: Sequence[str],
    *,
    dry_run: bool,
    as_json: bool,
    offline: bool,
    force: bool,
) -> None:
    """Build, or show what would be built."""
    from rocbake import build as building  # noqa: PLC0415 - other verbs do without it

    if not targets:
        raise TargetError(
            "name a GPU target: a build has no GPU to look at", hint="invoke build --target gfx1201"
        )
    sets = target.parse_many(targets)
    loaded = project.load()
    plans = building.plans(loaded.choose(list(recipes)), sets)
    store = _store(loaded)
    if dry_run:
        if as_json:
            _print_json([one.model_dump(mode="json", by_alias=True) for one in plans])
        else:
            show.plans(plans, store=store, cache=Cache())
        return
    builder = building.Builder(
        project=loaded,
        store=store,
        cache=Cache(),
        mirrors=mirror.load(),
        force=force,
        offline=offline,
    )
    outcomes = builder.build(plans)
    if as_json:
        _print_json(show.outcomes_json(outcomes))
    else:
        show.outcomes(outcomes)
    building.require_reproduced(outcomes)


def lock(names: Sequence[str], *, check: bool, record: bool, as_json: bool) -> None:
    """Make locks, check them, or write digests of finished builds into them."""
    from rocbake.resolve import Resolver  # noqa: PLC0415 - a reused build needs no resolver

    if check and record:
        raise UsageError("--check and --record exclude each other")
    loaded = project.load()
    if record:
        from rocbake import record as recording  # noqa: PLC0415 - as above

        show.changes(recording.write(loaded, _store(loaded), names), as_json=as_json)
        return
    with Resolver(loaded, cache=Cache(), mirrors=mirror.load()) as resolver:
        changes = resolver.lock(names, write=not check)
    show.changes(changes, as_json=as_json)
    behind = [change.name for change in changes if change.lines]
    if check and behind:
        raise LockError(
            f"the wish or the archive has moved on: {', '.join(behind)}",
            hint="invoke lock " + " ".join(f"--name {name}" for name in behind),
        )
