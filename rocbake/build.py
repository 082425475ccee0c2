"""Building: reuse what the store has, make the rest, and hold both against the locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocbake import golden, log, oci, store
from rocbake.errors import BuildError, FetchError, ReproError, TrustError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocbake.plan import Plan
    from rocbake.project import Project
    from rocbake.remote import Remote
    from rocbake.store import Entry
    from rocbake.workshop import Workshop


@dataclass(frozen=True)
class Outcome:
    """What became of one plan or layer.

    Attributes:
        entry: The artifact.
        state: `built`, `reused` or `pulled`.
        recorded: `reproduced`, `differs` or `not recorded`, against the lock.
        difference: The first thing that differs from the lock's record.
        seconds: How long it took.
    """

    entry: Entry
    state: str
    recorded: str
    difference: str | None
    seconds: float


def build(
    made: Sequence[Plan], *, workshop: Workshop, force: bool = False, origin: Remote | None = None
) -> list[Outcome]:
    """Build plans that the store does not have, one after the other.

    Args:
        made: What to build.
        workshop: Where things are.
        force: Build even what the store has.
        origin: A remote store, which may have what is not here.

    Raises:
        RocbakeError: The kind says which step failed; see docs/exit-codes.md.
    """
    outcomes: list[Outcome] = []
    for one in made:
        is_here = workshop.store.find(one.name, one.tag, one.key) is not None
        if origin and not force and not is_here and (brought := _pulled(one, origin, workshop)):
            outcomes.append(brought)
            continue
        with workshop.store.only_one(f"{one.name}-{one.tag}"):
            entry = None if force else workshop.store.find(one.name, one.tag, one.key)
            if entry:
                _check(entry)
                outcomes.append(_outcome(workshop.project, entry, "reused", 0.0))
            else:
                # Imported only now: the engine's client alone takes a third of the second in
                # which a build that is there already is found.
                from rocbake import keep  # noqa: PLC0415 - see above

                outcomes += [
                    _outcome(workshop.project, entry, "built", seconds)
                    for entry, seconds in keep.make(one, workshop=workshop, force=force)
                ]
    return outcomes


def _pulled(one: Plan, origin: Remote, workshop: Workshop) -> Outcome | None:
    """Bring an artifact from a remote store; None where that has none that is vouched for."""
    from rocbake import transfer  # noqa: PLC0415 - as in build()

    try:
        entry = transfer.pull(
            one,
            origin,
            project=workshop.project,
            store=workshop.store,
            cache=workshop.cache,
            # It is not said that it is to run on this machine.
            skip_fit=True,
        )
    except (FetchError, TrustError) as failed:
        log.say(f"  not pulled, so it is built: {failed}")
        return None
    return pulled(workshop.project, entry)


def pulled(project: Project, entry: Entry) -> Outcome:
    """Return what is to be told of an artifact that came from a remote store."""
    return _outcome(project, entry, "pulled", 0.0)


def _check(entry: Entry) -> None:
    """Check that an artifact is whole, its image as well, before it is said to be reused."""
    entry.check()
    try:
        oci.read(entry.folder / store.IMAGE).check_sizes()
    except BuildError as damaged:
        raise BuildError(
            f"damaged since it was stored: {damaged}",
            hint=f"invoke build --recipe {entry.artifact.name} --force",
        ) from damaged


def _outcome(project: Project, entry: Entry, state: str, seconds: float) -> Outcome:
    recorded = golden.find(project, entry.artifact)
    if recorded is None:
        return Outcome(entry, state, "not recorded", None, seconds)
    difference = golden.compare(entry, recorded)
    return Outcome(entry, state, "differs" if difference else "reproduced", difference, seconds)


def require_reproduced(outcomes: Iterable[Outcome]) -> None:
    """Check that nothing differs from what the locks recorded.

    Raises:
        ReproError: Something does.
    """
    wrong = [
        f"{one.entry.artifact.image.reference}: {one.difference}"
        for one in outcomes
        if one.difference
    ]
    if wrong:
        raise ReproError(
            "built, and not what the lock recorded:\n  " + "\n  ".join(wrong),
            hint="invoke verify  shows the first file that differs between two builds here",
        )
