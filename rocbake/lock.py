"""Locks: what exactly, by SHA-256; JSON beside the thing that is locked.

Only `invoke lock` writes one. A lock repeats the wish it answers, so that a change of the wish
shows, and a lock holds no host: where bytes come from is configuration.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rocbake import digest, wish
from rocbake.document import shown
from rocbake.errors import LockError
from rocbake.source import Deb, Deps, Sha256, Source, Url

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rocbake.container import Container
    from rocbake.recipe import Recipe

Model = TypeVar("Model", bound="_Lock")
NAME = "lock.json"
_BESIDES = {"made_with", "recorded"}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SuiteLock(_Model):
    """The state of one suite when the lock was made: its Release file by digest and date."""

    name: str
    codename: str
    date: Annotated[str, Field(description="ISO 8601, UTC: the Release file's own Date")]
    release_sha256: Sha256


class Recorded(_Model):
    """What a build of one plan gave, for every later build to give again."""

    key: Sha256
    config: Annotated[str, Field(description="digest of the image's configuration")]
    layers: Annotated[tuple[str, ...], Field(description="diffIDs of the image")]
    archive: Annotated[
        Sha256 | None, Field(description="SHA-256 of the .tar.zst; of the tar in a .tar.gz")
    ] = None
    files: Annotated[dict[str, str], Field(description="SHA-256 of each file in it")] = {}
    bundled: Annotated[
        Sha256 | None, Field(description="SHA-256 of the .tar.zst with ROCm's libraries")
    ] = None
    tests: Annotated[
        Sha256 | None, Field(description="SHA-256 of the .tar.zst that only tests need")
    ] = None


class _Lock(_Model):
    @property
    def digest(self) -> str:
        """The SHA-256 of everything in here that decides about the bytes of a build."""
        return digest.sha256_json(self.model_dump(mode="json", exclude=_BESIDES))

    def is_as(self, other: Self) -> bool:
        """Tell whether two locks lock the same, whoever made them and whatever came of it."""
        return self.model_dump(exclude=_BESIDES) == other.model_dump(exclude=_BESIDES)


MadeWith = Annotated[
    dict[str, str], Field(description="versions of the tools; for reading, not for matching")
]
RecordedByTag = Annotated[
    dict[str, Recorded], Field(description="what builds gave, by the tag of the target set")
]


class ContainerLock(_Lock):
    """The lock of a container."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    kind: Literal["container"] = "container"
    wish: dict[str, Any]
    parent: Annotated[Sha256 | None, Field(description="digest of the parent's lock")]
    snapshot: Annotated[str, StringConstraints(pattern=r"^[0-9]{8}T[0-9]{6}Z$")]
    epoch: Annotated[int, Field(ge=0, description="SOURCE_DATE_EPOCH, the root container's")]
    suites: tuple[SuiteLock, ...]
    made_with: MadeWith = {}
    recorded: RecordedByTag = {}
    packages: tuple[Deb, ...]
    sources: Annotated[
        tuple[Url, ...], Field(description="files recorded so far, of those that are wished for")
    ] = ()

    @property
    def digest(self) -> str:
        """The SHA-256 of what decides about the packages, here and in the layers above.

        The files beside them are for some target sets and not for others: a layer names its own.
        """
        beside = dict.fromkeys(_BESIDES | {"sources"}, True) | {"wish": {"sources"}}
        return digest.sha256_json(self.model_dump(mode="json", exclude=beside))


class RecipeLock(_Lock):
    """The lock of a recipe: its sources, in the order of the wish."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    kind: Literal["recipe"] = "recipe"
    wish: dict[str, Any]
    made_with: MadeWith = {}
    recorded: RecordedByTag = {}
    sources: Annotated[
        tuple[Source, ...], Field(description="recorded so far, of those that are wished for")
    ]


def container_wish(container: Container) -> dict[str, Any]:
    """Return what a container's lock answers, its own and what it takes over from the root."""
    wanted: dict[str, Any] = {
        "archive": container.archive.model_dump(mode="json"),
        "keyring": digest.sha256_file(container.keyring),
        "packages": sorted(set(container.file.packages)),
    }
    if container.file.sources:
        wanted["sources"] = [one.model_dump(mode="json") for one in container.file.sources]
    return wanted


def recipe_wish(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe's lock answers."""
    wanted: dict[str, Any] = {
        "sources": [one.model_dump(mode="json") for one in recipe.file.sources]
    }
    if recipe.file.bazel:
        wanted["bazel"] = recipe.file.bazel.model_dump(mode="json")
    return wanted


def read_container(container: Container) -> ContainerLock:
    """Read a container's lock without asking whether it still answers the wish.

    Raises:
        LockError: When it is missing or not a lock.
    """
    return _read(container.folder / NAME, ContainerLock, container.name)


def read_recipe(recipe: Recipe) -> RecipeLock:
    """Read a recipe's lock without asking whether it still answers the wish.

    Raises:
        LockError: When it is missing or not a lock.
    """
    return _read(recipe.folder / NAME, RecipeLock, recipe.name)


def _read(path: Path, model: type[Model], name: str) -> Model:
    hint = f"invoke lock --name {name}"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as missing:
        raise LockError(f"{shown(path)}: there is no lock for {name}", hint=hint) from missing
    except (OSError, UnicodeDecodeError) as unreadable:
        raise LockError(f"{shown(path)}: cannot be read: {unreadable}", hint=hint) from unreadable
    try:
        return model.model_validate(json.loads(text))
    except json.JSONDecodeError as wrong:
        raise LockError(
            f"{shown(path)}:{wrong.lineno}:{wrong.colno}: not JSON: {wrong.msg}", hint=hint
        ) from wrong
    except ValidationError as wrong:
        first = wrong.errors()[0]
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise LockError(f"{shown(path)}: not a lock of this kind: {what}", hint=hint) from wrong
    except (RecursionError, ValueError) as wrong:
        # JSON, and yet too much for Python: nested too deeply, a number of thousands of digits.
        raise LockError(f"{shown(path)}: not a lock of this kind: {wrong}", hint=hint) from wrong


def stale_container(container: Container, locks: dict[str, ContainerLock]) -> list[str]:
    """Return how a container's lock fails to answer its wish; nothing when it is good.

    Args:
        container: The container, as it stands in the checkout.
        locks: Its lock and its parent's, by name.
    """
    lock = locks[container.name]
    reasons = _differences(lock.wish, container_wish(container))
    parent = locks[container.parent.name].digest if container.parent else None
    if lock.parent != parent:
        reasons.append(
            f"it stands on another lock of {container.parent.name}"
            if container.parent
            else "it stands on a parent that is gone"
        )
    return reasons


def stale_recipe(recipe: Recipe, lock: RecipeLock) -> list[str]:
    """Return how a recipe's lock fails to answer its wish; nothing when it is good."""
    return _differences(lock.wish, recipe_wish(recipe))


def _differences(locked: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    reasons = []
    for key in sorted({*locked, *wanted}):
        old, new = locked.get(key), wanted.get(key)
        if old == new:
            continue
        if isinstance(old, list) and isinstance(new, list):
            reasons += [
                f"{key}: {_text(one)} is wanted and not locked" for one in new if one not in old
            ]
            reasons += [
                f"{key}: {_text(one)} is locked and not wanted" for one in old if one not in new
            ]
            if not reasons:
                reasons.append(f"{key}: the order changed")
        else:
            reasons.append(f"{key} changed")
    return reasons


def _text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(str(part) for part in value.values() if part is not None)
    return str(value)


def require_fresh(
    containers: tuple[Container, ...], recipe: Recipe
) -> tuple[dict[str, ContainerLock], RecipeLock]:
    """Read the locks of containers, parents first, and of the recipe that stands on them.

    Raises:
        LockError: When any is missing or stale; all of them are named.
    """
    found: list[str] = []
    names: list[str] = []
    locks: dict[str, ContainerLock] = {}
    for container in containers:
        if container.parent and container.parent.name in names:
            # Its parent is wrong already, so nothing can be said of this one.
            names.append(container.name)
            continue
        try:
            locks[container.name] = read_container(container)
            reasons = stale_container(container, locks)
        except LockError as wrong:
            found.append(str(wrong))
            names.append(container.name)
            continue
        if reasons:
            names.append(container.name)
            found += [f"{shown(container.folder / NAME)}: stale: {reason}" for reason in reasons]
    recipe_lock = None
    try:
        recipe_lock = read_recipe(recipe)
        reasons = stale_recipe(recipe, recipe_lock)
    except LockError as wrong:
        reasons = []
        found.append(str(wrong))
        names.append(recipe.name)
    if reasons:
        names.append(recipe.name)
        found += [f"{shown(recipe.folder / NAME)}: stale: {reason}" for reason in reasons]
    if found or recipe_lock is None:
        options = " ".join(f"--name {name}" for name in names)
        raise LockError("\n".join(found), hint=f"invoke lock {options}")
    return locks, recipe_lock


def unrecorded(
    recipe: Recipe, locks: Mapping[str, ContainerLock], recipe_lock: RecipeLock
) -> list[str]:
    """Return whose locks lack a file that every build of a recipe needs, whatever its targets."""
    found = [
        one.name
        for one in recipe.containers
        if None
        in wish.answers(
            [each for each in one.file.sources if each.targets is None], locks[one.name].sources
        )
    ]
    is_short = None in wish.answers(recipe.file.sources, recipe_lock.sources)
    has_deps = any(isinstance(one, Deps) for one in recipe_lock.sources)
    if is_short or (recipe.file.bazel and not has_deps):
        found.append(recipe.name)
    return found


def write(lock: ContainerLock | RecipeLock, folder: Path) -> None:
    """Write a lock into a folder by rename, one package or source a line, for a diff to read."""
    value = lock.model_dump(mode="json", by_alias=True)
    lines = []
    for key, item in value.items():
        if isinstance(item, list) and item:
            rows = ",\n".join(f"    {json.dumps(row)}" for row in item)
            text = f"[\n{rows}\n  ]"
        else:
            text = json.dumps(item, indent=2).replace("\n", "\n  ")
        lines.append(f"  {json.dumps(key)}: {text}")
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".lock-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write("{\n" + ",\n".join(lines) + "\n}\n")
        # mkstemp makes a private file; a lock is committed and read by everyone.
        os.chmod(temporary, 0o644)  # noqa: PTH101 - a name, not yet a path
        os.replace(temporary, folder / NAME)  # noqa: PTH105 - as above
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108 - as above
        raise
