"""The lock writer: turns wishes into locks, and says when a lock has fallen behind.

The only module that writes a lock.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Self

from rocbake import apt, engine, lock, log, mirror, record, wish
from rocbake.document import shown
from rocbake.errors import EngineError, FetchError, LockError, UsageError
from rocbake.lock import ContainerLock, RecipeLock, SuiteLock
from rocbake.recipe import Recipe
from rocbake.source import Deps, Url
from rocbake.wish import GitWish, LayerWish, PypiWish, UrlWish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocbake.cache import Cache
    from rocbake.container import Archive, Container
    from rocbake.mirror import Mirrors
    from rocbake.project import Project
    from rocbake.source import Deb, Source
    from rocbake.target import TargetSet
    from rocbake.wish import SourceWish


@dataclass
class Change:
    """What making a lock again did to it."""

    name: str
    lines: list[str] = field(default_factory=list)


class Resolver:
    """Makes the locks of a project, each archive's indices fetched once."""

    def __init__(
        self,
        project: Project,
        *,
        cache: Cache,
        mirrors: Mirrors,
        targets: Sequence[TargetSet] = (),
    ) -> None:
        """Prepare to make locks.

        Args:
            project: Whose locks.
            cache: Where sources go.
            mirrors: Where they come from.
            targets: Target sets whose own files are recorded; those of others stay as they are,
                because each is gigabytes.
        """
        self._project = project
        self._targets = targets
        self._cache = cache
        self._mirrors = mirrors
        self._stack = contextlib.ExitStack()
        self._indices: dict[tuple[str, Archive], apt.Indices] = {}
        self._made_with: dict[str, str] = {}
        # What could not be had, by the name of what is locked.
        self.unreached: dict[str, list[FetchError]] = {}

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(self, *about: object) -> None:
        self._stack.close()

    def lock(self, names: Sequence[str], *, write: bool) -> list[Change]:
        """Make locks, parents before children, and say what is different from before.

        Args:
            names: Containers and recipes; none means all of them.
            write: Whether to write them; otherwise only the differences are found.

        Raises:
            UsageError: A name is neither a container's nor a recipe's.
            LockError: A wish cannot be answered.
            FetchError: No mirror answers. A source that cannot be had is no error here: the lock
                is made without it, or with what it said of it before; see `unreached`.
        """
        known = [*self._project.containers, *self._project.recipes]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(
                f"there is no container or recipe {', '.join(map(repr, unknown))}; "
                f"there are {', '.join(known)}",
                hint="invoke list",
            )
        chosen = names or known
        made: dict[str, ContainerLock] = {}
        resolved: list[tuple[Container | Recipe, ContainerLock | RecipeLock]] = []
        for container in self._project.containers.values():
            if container.name in chosen:
                with log.step(f"Resolving {container.name}"):
                    made[container.name] = self._container(container, made)
                resolved.append((container, made[container.name]))
        for recipe in self._project.recipes.values():
            if recipe.name in chosen:
                with log.step(f"Resolving {recipe.name}"):
                    resolved.append((recipe, self._recipe(recipe)))
        changes = [_change(owner, new) for owner, new in resolved]
        # Only now: a wish that cannot be answered must not leave locks of two moments behind.
        for change, (owner, new) in zip(changes, resolved, strict=True):
            if write and change.lines:
                lock.write(new, owner.folder)
        return changes

    def _container(self, container: Container, made: dict[str, ContainerLock]) -> ContainerLock:
        indices = self._open(container)
        below = [made.get(one.name) or lock.read_container(one) for one in container.chain[:-1]]
        installed: list[Deb] = [deb for one in below for deb in one.packages]
        releases = indices.releases()
        newest = max(release.date for release in releases)
        packages = indices.resolve(
            container.file.packages, installed=installed, essential=container.parent is None
        )
        _require_rocm(container, [*installed, *packages])
        sources = self._sources(container, container.file.sources)
        return ContainerLock(
            wish=lock.container_wish(container),
            parent=below[-1].digest if below else None,
            snapshot=newest.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ"),
            # One epoch for a whole chain: with a second one, the layers below would be clamped
            # to another time in a child's image than in their own, and be shared by nobody.
            epoch=below[0].epoch if below else int(newest.timestamp()),
            suites=tuple(
                SuiteLock(
                    name=release.suite,
                    codename=release.codename,
                    date=release.date.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    release_sha256=release.sha256,
                )
                for release in releases
            ),
            packages=tuple(packages),
            sources=tuple(one for one in sources if isinstance(one, Url)),
            made_with=self._versions(),
        )

    def _recipe(self, recipe: Recipe) -> RecipeLock:
        wanted = lock.recipe_wish(recipe)
        sources = self._sources(recipe, recipe.file.sources)
        old = _old(recipe)
        if old and old.wish == wanted:
            # Bazel finds out what it downloads when it is run; that is recorded by itself.
            sources += [one for one in old.sources if isinstance(one, Deps)]
        return RecipeLock(wish=wanted, sources=tuple(sources), made_with={})

    def _sources(
        self, owner: Container | Recipe, wishes: Sequence[SourceWish | LayerWish]
    ) -> list[Source]:
        """Record what is wished for and can be had; what was recorded of the rest stays."""
        old = _old(owner)
        known = wish.answers(wishes, old.sources if old else ())
        found: list[Source | None] = []
        for one, before in zip(wishes, known, strict=True):
            if isinstance(one, LayerWish) and one.targets and not self._is_asked_for(one):
                found.append(before)
                continue
            try:
                found.append(self._source(one))
            except FetchError as failed:
                found.append(before)
                if before is None:
                    self.unreached.setdefault(owner.name, []).append(failed)
                else:
                    log.warn(f"{failed}\n  what the lock says of it stays")
        return [one for one in found if one is not None]

    def _is_asked_for(self, one: LayerWish) -> bool:
        return any(one.is_for(targets) for targets in self._targets)

    def _source(self, one: SourceWish | LayerWish) -> Source:
        match one:
            case UrlWish():
                return record.lock_url(one.url, cache=self._cache, sha256=one.sha256)
            case GitWish():
                return record.lock_git(
                    one.git, one.commit, cache=self._cache, mirrors=self._mirrors
                )
            case PypiWish():
                return record.lock_pypi(one.pypi, one.version, one.file, cache=self._cache)

    def _open(self, container: Container) -> apt.Indices:
        key = (str(container.keyring), container.archive)
        if key not in self._indices:
            # What has the past has it under a time, and a lock is made of what is there now.
            mirrors = [
                address
                for address in self._mirrors.archives.get(container.archive.name, ())
                if mirror.SNAPSHOT not in address
            ]
            indices = apt.Indices(container.archive, keyring=container.keyring, mirrors=mirrors)
            with log.step(f"Fetching the indices of {container.archive.name}"):
                self._stack.enter_context(indices)
            for release in indices.releases():
                log.say(
                    f"  {release.suite} ({release.codename}) of {release.date:%Y-%m-%d %H:%M} UTC"
                )
            self._indices[key] = indices
        return self._indices[key]

    def _versions(self) -> dict[str, str]:
        if not self._made_with:
            self._made_with = {"apt": apt.version()}
            # A lock is made without an engine too; then there is none to name.
            with contextlib.suppress(EngineError):
                self._made_with |= engine.versions()
        return self._made_with


def _require_rocm(container: Container, packages: list[Deb]) -> None:
    """Refuse a closure whose HIP runtime is not of the ROCm release that was asked for."""
    wanted = container.rocm
    if wanted is None or container.provider != "debian":
        return
    runtimes = [deb for deb in packages if deb.name.startswith("libamdhip64-")]
    found = sorted({deb.version for deb in runtimes})
    if not any(version.startswith((f"{wanted}-", f"{wanted}+")) for version in found):
        raise LockError(
            f"{shown(container.folder / 'container.yaml')}: expected ROCm {wanted}, "
            f"and the archive gives {', '.join(found) or 'no HIP runtime'}",
            hint="set 'rocm' to what the archive has, or take another suite",
        )


def _change(owner: Container | Recipe, new: ContainerLock | RecipeLock) -> Change:
    change = Change(owner.name)
    if not (owner.folder / lock.NAME).exists():
        change.lines.append("new")
        return change
    try:
        old = _read(owner)
    except LockError:
        change.lines.append("was unreadable")
        return change
    if old.is_as(new):  # type: ignore[arg-type]  # of one owner, so of one kind
        return change
    before, after = _entries(old), _entries(new)
    change.lines += [f"- {label}" for label in before if label not in after]
    change.lines += [f"+ {label}" for label in after if label not in before]
    if not change.lines:
        change.lines.append("the wish, the archive's state or a layer below changed")
    return change


def _old(owner: Container | Recipe) -> ContainerLock | RecipeLock | None:
    """Return the lock that is there, if it can be read."""
    with contextlib.suppress(LockError):
        return _read(owner)
    return None


def _read(owner: Container | Recipe) -> ContainerLock | RecipeLock:
    return lock.read_recipe(owner) if isinstance(owner, Recipe) else lock.read_container(owner)


def _entries(one: ContainerLock | RecipeLock) -> list[str]:
    packages = one.packages if isinstance(one, ContainerLock) else ()
    sources: tuple[Source, ...] = (*packages, *one.sources)
    return [f"{source.label} {source.sha256[:12]}" for source in sources]
