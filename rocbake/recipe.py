"""Recipes: what to build, as people write it in recipes/<name>/; no digest stands in one."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rocbake import dockerfile, document, option
from rocbake.container import Container, Name, Version, check_name
from rocbake.document import Document, DocumentError, Problem
from rocbake.kernel import KernelTest
from rocbake.option import Option

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = ("url", "git", "pypi")
_HttpUrl = Annotated[str, StringConstraints(pattern=r"^(https?|file)://[^\s@]+$")]
_Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UrlWish(_Wish):
    """A file to download."""

    url: _HttpUrl


class GitWish(_Wish):
    """The tree of one commit; a branch or a tag can move, so neither is taken."""

    git: _HttpUrl
    commit: _Commit


class PypiWish(_Wish):
    """A file of a project on a Python package index; the source distribution unless named."""

    pypi: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
    version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z.+!_-]+$")]
    file: str | None = None


def _kind(value: object) -> str | None:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    named = [kind for kind in _KINDS if isinstance(value, dict) and kind in value]
    return named[0] if named else None


SourceWish = Annotated[
    Annotated[UrlWish, Tag("url")]
    | Annotated[GitWish, Tag("git")]
    | Annotated[PypiWish, Tag("pypi")],
    Discriminator(
        _kind,
        custom_error_type="source_without_kind",
        custom_error_message="a source is named by one of the keys url, git or pypi",
    ),
]


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as wrong:
        raise PydanticCustomError(
            "pattern", "not a regular expression: {why}", {"why": str(wrong)}
        ) from wrong
    return text


_Pattern = Annotated[str, Field(min_length=1), AfterValidator(_check_pattern)]
_Words = tuple[Annotated[str, Field(min_length=1)], ...]


class SmokeCommand(_Wish):
    """A command that shows that the product works, and on what."""

    name: Name = Field(description="what it is called in reports")
    run: _Words = Field(
        default=(),
        description="program and arguments, which no shell reads; "
        "left out for what computes on the processor alone",
    )
    gpu: _Pattern | None = Field(
        default=None,
        description="regular expression for what is printed only where the GPU computed, with "
        "'run'; without it, nothing would tell a result of the GPU from one of the processor",
    )
    expect: _Pattern | None = Field(
        default=None, description="regular expression for the result that must be printed"
    )
    refuse: tuple[_Pattern, ...] = Field(
        default=(), description="regular expressions for what must not be printed"
    )
    host: _Words = Field(
        default=(), description="the same on the processor; left out where there is no such thing"
    )
    seconds: int = Field(default=120, ge=1, le=86400, description="time limit")

    @model_validator(mode="after")
    def _is_whole(self) -> SmokeCommand:
        if bool(self.run) != bool(self.gpu):
            raise PydanticCustomError("smoke_command", "'run' and 'gpu' go together")
        if not self.run and not self.host:
            raise PydanticCustomError("smoke_command", "neither 'run' nor 'host': nothing to run")
        return self


class Smoke(_Wish):
    """How a product is tried."""

    commands: tuple[SmokeCommand, ...] = Field(
        default=(), description="run in the image, after hip-probe, in this order"
    )
    kernels: tuple[KernelTest, ...] = Field(
        default=(), description="kernels out of the archive that an emulator can run"
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
    runtime: Name = Field(description="container that the image starts from")
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

    @property
    def containers(self) -> tuple[Container, ...]:
        """Every container the recipe needs, parents before children."""
        return tuple({one.name: one for one in [*self.runtime.chain, *self.sdk.chain]}.values())

    @property
    def options(self) -> dict[str, Option]:
        """What it can be built with, by name: its SDK's options, and its own."""
        return self.sdk.options | self.file.options

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
        )
        problems += dockerfile.problems(
            path.parent / "Dockerfile", contexts=("runtime", "dist", "bundle")
        )
    if recipes:
        problems += dockerfile.problems(
            root / "recipes" / "Dockerfile",
            contexts=("sdk", "runtime", "recipe", "sources", "tools"),
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
    if containers is None:
        return found
    if folder.name in containers:
        what = f"the name {folder.name!r} is a container's already; images share one space"
        found.append(here.problem(what))
    for key in ("sdk", "runtime"):
        name = getattr(file, key)
        if name not in containers:
            near = difflib.get_close_matches(name, containers, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(containers)}"
            found.append(here.problem(f"{key}: there is no container {name!r}; {advice}", key))
    if file.sdk in containers:
        taken = {name: one.name for one in containers[file.sdk].chain for name in one.file.options}
        found += option.problems(here, file.options, taken=taken)
    if not found:
        sdk, runtime = containers[file.sdk], containers[file.runtime]
        if sdk.rocm != runtime.rocm:
            what = f"{sdk.name} has ROCm {sdk.rocm}, but runtime {runtime.name} has {runtime.rocm}"
            found.append(here.problem(f"sdk {what}", "sdk"))
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
