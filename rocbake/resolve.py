"""The lock writer: turns wishes into locks, and says when a lock has fallen behind.

The only module that writes a lock.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Self

from rocbake import apt, engine, lock, log, mirror, record
from rocbake.document import shown
from rocbake.errors import EngineError, LockError, UsageError
from rocbake.lock import ContainerLock, RecipeLock, SuiteLock
from rocbake.recipe import GitWish, PypiWish, Recipe, UrlWish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocbake.cache import Cache
    from rocbake.container import Archive, Container
    from rocbake.mirror import Mirrors
    from rocbake.project import Project
    from rocbake.recipe import SourceWish
    from rocbake.source import Deb, Source


@dataclass
class Change:
    """What making a lock again did to it."""

    name: str
    lines: list[str] = field(default_factory=list)


class Resolver:
    """Makes the locks of a project, each archive's indices fetched once."""

    def __init__(self, project: Project, *, cache: Cache, mirrors: Mirrors) -> None:
        self._project = project
        self._cache = cache
        self._mirrors = mirrors
        self._stack = contextlib.ExitStack()
        self._indices: dict[tuple[str, Archive], apt.Indices] = {}
        self._made_with: dict[str, str] = {}

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
            FetchError: No mirror answers, or a source cannot be had.
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
            made_with=self._versions(),
        )

    def _recipe(self, recipe: Recipe) -> RecipeLock:
        return RecipeLock(
            wish=lock.recipe_wish(recipe),
            sources=tuple(self._source(wish) for wish in recipe.file.sources),
            made_with={},
        )

    def _source(self, wish: SourceWish) -> Source:
        match wish:
            case UrlWish():
                return record.lock_url(wish.url, cache=self._cache)
            case GitWish():
                return record.lock_git(
                    wish.git, wish.commit, cache=self._cache, mirrors=self._mirrors
                )
            case PypiWish():
                return record.lock_pypi(wish.pypi, wish.version, wish.file, cache=self._cache)

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
    if wanted is None:
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
    if old.digest == new.digest:
        return change
    before, after = _entries(old), _entries(new)
    change.lines += [f"- {label}" for label in before if label not in after]
    change.lines += [f"+ {label}" for label in after if label not in before]
    if not change.lines:
        change.lines.append("the wish, the archive's state or a layer below changed")
    return change


def _read(owner: Container | Recipe) -> ContainerLock | RecipeLock:
    return lock.read_recipe(owner) if isinstance(owner, Recipe) else lock.read_container(owner)


def _entries(one: ContainerLock | RecipeLock) -> list[str]:
    sources = one.packages if isinstance(one, ContainerLock) else one.sources
    return [f"{source.label} {source.sha256[:12]}" for source in sources]
