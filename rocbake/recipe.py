"""Recipes: what to build, as people write it in recipes/<name>/; no digest stands in one."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
)

from rocbake import dockerfile, document, option
from rocbake.bazel import BazelWish
from rocbake.container import Container, Name, Provider, Version, check_name
from rocbake.document import Document, DocumentError, Problem
from rocbake.option import Option
from rocbake.smoke_wish import Smoke
from rocbake.wish import PypiWish, SourceWish, UrlWish

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rocbake.target import TargetSet


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RocmWish(_Wish):
    """Whose ROCm a product can be built with."""

    provider: Provider
    because: str = Field(min_length=1, description="why no other, for messages")


class ArchiveWish(_Wish):
    """How the archive is called, for consumers that go by its name."""

    name: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._+-]|\{version\})*\.tar\.(zst|gz)$"),
    ] = Field(description="file name; `{version}` stands for the recipe's version")
    folder: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")] = Field(
        description="the one folder that everything in it lies in"
    )


class RecipeFile(BaseModel):
    """What stands in a recipe.yaml."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"title": "rocbake recipe"}
    )

    summary: str = Field(min_length=1, description="one sentence")
    version: Version = Field(description="version of the product, kept as text")
    default: bool = Field(default=True, description="whether it is taken where none is named")
    sdk: Name = Field(description="container that build.sh runs in")
    sdk_where: dict[
        Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*=[a-z0-9.]+$")], Name
    ] = Field(
        default={},
        description="by `option=value` of an option of its own, the container in place of `sdk`",
    )
    runtime: Name = Field(description="container that the image starts from")
    rocm: RocmWish | None = Field(
        default=None, description="whose ROCm it must be; any if not given"
    )
    bazel: BazelWish | None = Field(
        default=None, description="what Bazel is told, where it builds the product"
    )
    archive: ArchiveWish | None = Field(
        default=None,
        description="how the archive is called; by all that tells it from others if not given",
    )
    environment: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")],
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9/._+{}-]*$")],
    ] = Field(
        default={},
        description="what tells a consumer's build of the exported archive, whose path "
        "`{archive}` stands for; a variable that must not be set is empty",
    )
    sources: tuple[SourceWish, ...] = Field(
        default=(), description="input files, found below /rocbake/sources while building"
    )
    options: dict[str, Option] = Field(
        default={}, description="what it can be built with, besides what its sdk says"
    )
    smoke: Smoke = Field(default=Smoke(), description="how the product is tried")


@dataclass(frozen=True)
class Recipe:
    """A recipe.yaml with its name, its place and the containers it names."""

    name: str
    folder: Path
    file: RecipeFile
    sdk: Container
    runtime: Container
    sdk_where: Mapping[str, Container] = field(default_factory=dict)

    @property
    def containers(self) -> tuple[Container, ...]:
        """Every container the recipe needs, parents before children."""
        return tuple({one.name: one for one in [*self.runtime.chain, *self.sdk.chain]}.values())

    @property
    def options(self) -> dict[str, Option]:
        """What it can be built with, by name: its SDK's options, and its own."""
        return self.sdk.options | self.file.options

    @property
    def rocm(self) -> str | None:
        """The ROCm release that it is built with and runs on."""
        return self.runtime.rocm

    def built_for(self, targets: TargetSet, asked: Mapping[str, str]) -> Recipe:
        """Return this recipe with the SDK that its own options choose.

        Raises:
            UsageError: A value that is asked for is none of the option's.
        """
        choices = option.resolve(self.file.options, targets, asked)
        chosen = {f"{name}={choice.value}" for name, choice in choices.items()}
        return next(
            (replace(self, sdk=one) for word, one in self.sdk_where.items() if word in chosen), self
        )

    def files(self) -> list[Path]:
        """Return what the build may see, relative to the folder, sorted.

        The lock is left out: it names results. So is recipe.yaml: what of it matters to the build
        stands in the plan, and how to try the product does not. So are names that begin with a
        dot or end with a tilde: they belong to editors and version control.
        """
        found = []
        for path in sorted(self.folder.rglob("*")):
            relative = path.relative_to(self.folder)
            ours = not any(part.startswith(".") or part.endswith("~") for part in relative.parts)
            if (
                ours
                and relative.as_posix() not in {"lock.json", "recipe.yaml"}
                and (path.is_symlink() or path.is_file())
            ):
                found.append(relative)
        return found


def load_all(root: Path, containers: dict[str, Container] | None) -> dict[str, Recipe]:
    """Read every recipe below a project's root.

    Args:
        root: The project's root.
        containers: By name; None where they could not be read, and the recipes can only be checked.

    Raises:
        DocumentError: Everything that is wrong with any of them, at once.
    """
    recipes: dict[str, Recipe] = {}
    problems: list[Problem] = []
    for path in sorted(root.glob("recipes/*/recipe.yaml")):
        try:
            read = document.read(path, RecipeFile)
        except DocumentError as wrong:
            problems += wrong.problems
            continue
        found = _check(read, containers)
        problems += found
        if found or containers is None:
            continue
        recipes[path.parent.name] = Recipe(
            name=path.parent.name,
            folder=path.parent,
            file=read.value,
            sdk=containers[read.value.sdk],
            runtime=containers[read.value.runtime],
            sdk_where={word: containers[name] for word, name in read.value.sdk_where.items()},
        )
        problems += dockerfile.problems(
            path.parent / "Dockerfile", contexts=("runtime", "dist", "bundle")
        )
    if recipes:
        problems += dockerfile.problems(
            root / "recipes" / "Dockerfile",
            contexts=("sdk", "runtime", "recipe", "sources", "tools"),
        )
    if any(one.file.bazel for one in recipes.values()):
        problems += dockerfile.problems(
            root / "recipes" / "bazel.Dockerfile",
            contexts=("sdk", "runtime", "recipe", "sources", "tools", "built"),
            online=("downloading", "building-remotely"),
        )
    if problems:
        raise DocumentError(problems)
    return recipes


def _check(here: Document[RecipeFile], containers: dict[str, Container] | None) -> list[Problem]:
    """Tell what only shows when a recipe is seen beside the containers."""
    file, folder = here.value, here.path.parent
    found = [here.problem(message) for message in check_name(folder.name)]
    found += [
        here.problem(f"there is no {needed} beside it")
        for needed in ("build.sh", "Dockerfile")
        if not (folder / needed).is_file()
    ]
    found += _check_file_names(here)
    found += _check_smoke_names(here)
    found += [
        here.problem(
            f"sdk_where.{word}: no option of this recipe has that value", "sdk_where", word
        )
        for word in file.sdk_where
        if not _is_possible(word, file.options)
    ]
    if containers is None:
        return found
    if folder.name in containers:
        what = f"the name {folder.name!r} is a container's already; images share one space"
        found.append(here.problem(what))
    named: list[tuple[tuple[str, ...], str]] = [
        (("sdk",), file.sdk),
        *((("sdk_where", word), name) for word, name in file.sdk_where.items()),
        (("runtime",), file.runtime),
    ]
    for key, name in named:
        if name not in containers:
            near = difflib.get_close_matches(name, containers, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(containers)}"
            what = f"{'.'.join(key)}: there is no container {name!r}; {advice}"
            found.append(here.problem(what, *key))
    if file.sdk in containers:
        taken = {name: one.name for one in containers[file.sdk].chain for name in one.file.options}
        found += option.problems(here, file.options, taken=taken)
    return found or _check_rocm(here, containers)


def _is_possible(word: str, options: Mapping[str, Option]) -> bool:
    """Tell whether an option can have the value that `option=value` says."""
    name, _, value = word.partition("=")
    return name in options and value in options[name].values


def _check_rocm(here: Document[RecipeFile], containers: dict[str, Container]) -> list[Problem]:
    """Tell where a product would be built with one ROCm and run on another, or on a wrong one."""
    file, runtime = here.value, containers[here.value.runtime]
    # An SDK without any is given the runtime's.
    found = [
        here.problem(
            f"sdk {name} has ROCm {containers[name].rocm}, "
            f"but runtime {runtime.name} has {runtime.rocm}",
            "sdk",
        )
        for name in (file.sdk, *file.sdk_where.values())
        if containers[name].rocm not in (None, runtime.rocm)
    ]
    if file.rocm and runtime.provider != file.rocm.provider:
        what = (
            f"runtime: {runtime.name} has ROCm of provider {runtime.provider}, and "
            f"{here.path.parent.name} takes {file.rocm.provider}'s alone: {file.rocm.because}"
        )
        found.append(here.problem(what, "runtime"))
    return found


def _check_file_names(here: Document[RecipeFile]) -> list[Problem]:
    """Tell which sources would have one name below /rocbake/sources; some only the lock knows."""
    found: list[Problem] = []
    seen: set[str] = set()
    for index, wish in enumerate(here.value.sources):
        match wish:
            case UrlWish():
                key, name = "url", unquote(urlsplit(wish.url).path.rpartition("/")[2])
            case PypiWish(file=str(name)):
                key = "file"
            case _:
                continue
        if name in seen:
            what = f"sources.{index}.{key}: another source is called {name} as well"
            found.append(here.problem(what, "sources", index, key))
        seen.add(name)
    return found


def _check_smoke_names(here: Document[RecipeFile]) -> list[Problem]:
    """Tell which smoke tests would have one name in a report."""
    found: list[Problem] = []
    for kind in ("commands", "kernels"):
        seen: set[str] = set()
        for index, one in enumerate(getattr(here.value.smoke, kind)):
            if one.name in seen:
                what = f"smoke.{kind}.{index}.name: another one is called {one.name} as well"
                found.append(here.problem(what, "smoke", kind, index, "name"))
            seen.add(one.name)
    return found
