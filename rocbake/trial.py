"""Trials: from what was asked of `invoke smoke` to reports, or to plans that are only shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocbake import golden, passthrough, probes, smoke, target
from rocbake.errors import LockError, UsageError
from rocbake.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rocbake.asked import Asked
    from rocbake.passthrough import RunPlan
    from rocbake.project import Project
    from rocbake.report import Report
    from rocbake.store import Entry


class Trial:
    """What was asked, read and checked; nothing is opened or started yet."""

    def __init__(self, asked: Asked, environment: Mapping[str, str]) -> None:
        """Read every option.

        Raises:
            UsageError: One, or two together, that make no sense.
            TargetError: A target that is none.
        """
        self._asked = asked
        self._sets = [one.names for one in target.parse_many(asked.targets)]
        self._wish = asked.wish()
        self._place = smoke.Place.look(environment)

    def plans(self, load: Callable[[], Project]) -> list[RunPlan]:
        """Return how each artifact would be run on a GPU.

        Raises:
            NoGpuError: There is none.
            RocbakeError: The kind says what else is in the way; see docs/exit-codes.md.
        """
        self._place.require_gpu()
        return [
            smoke.plan(entry, self._place, self._wish)
            for entry in self._chosen(load(), self._kept(load()))
        ]

    def reports(self, load: Callable[[], Project]) -> list[Report]:
        """Try each artifact, and keep its report beside it."""
        asked, place = self._asked, self._place
        if place.gpus.absence and not (asked.host or asked.emulator):
            # Before the project is read: this answer is the same whatever was built.
            return [smoke.no_gpu(place)]
        loaded = load()
        store = Store(loaded.root / "artifacts")
        kept = self._kept(loaded)
        made = []
        for entry in self._chosen(loaded, kept):
            recipe = loaded.recipes[entry.artifact.name]
            if asked.host:
                report = smoke.on_host(entry, recipe, place)
            elif asked.emulator:
                report = smoke.emulated(entry, recipe, place, by=asked.emulator)
            else:
                own = [one for one in kept if one.artifact.name == probes.HIP_PROBE]
                report = smoke.on_gpu(entry, recipe, place, self._wish, hip_probes=own)
            store.put_report(entry, report.started_at, report.to_json())
            made.append(report)
        return made

    def _kept(self, loaded: Project) -> list[Entry]:
        """Return the recipes' artifacts that today's locks name."""
        entries = Store(loaded.root / "artifacts").entries()
        keys = golden.current_keys(loaded, entries)
        if keys is None:
            raise LockError("a lock is missing or stale", hint="invoke doctor  says which")
        return [one for one in entries if one.artifact.archive and one.artifact.key in keys]

    def _chosen(self, loaded: Project, kept: Sequence[Entry]) -> list[Entry]:
        """Return the artifacts to try: those asked for, or those that have code for a card."""
        names = [one.name for one in loaded.choose(list(self._asked.recipes))]
        wanted = [one for one in kept if one.artifact.name in names]
        if self._sets:
            self._require_all(names, wanted)
            return [one for one in wanted if one.artifact.targets in self._sets]
        cards = self._place.gpus.cards
        if cards and not (self._asked.host or self._asked.emulator):
            fitting = [
                one
                for one in wanted
                if any(passthrough.has_code(one.artifact.targets, card.target) for card in cards)
            ]
            # Where nothing fits, the plan of one of them names both sides.
            wanted = fitting or wanted[-1:]
        if not wanted:
            raise UsageError(
                f"the store has nothing of these locks to try: no {', no '.join(names)}",
                hint=f"invoke build --target {cards[0].target if cards else 'gfx1201'}",
            )
        return wanted

    def _require_all(self, names: Sequence[str], wanted: Sequence[Entry]) -> None:
        """Check that every recipe asked for was built for every target set asked for."""
        there = {(one.artifact.name, one.artifact.targets) for one in wanted}
        missing = [
            (name, ",".join(one))
            for name in names
            for one in self._sets
            if (name, one) not in there
        ]
        if missing:
            raise UsageError(
                "the store has, of these locks, no "
                + ", no ".join(f"{name} for {targets}" for name, targets in missing),
                hint="invoke build "
                + " ".join(f"--recipe {name}" for name in dict(missing))
                + "".join(f" --target {one}" for one in dict.fromkeys(two for _, two in missing)),
            )
