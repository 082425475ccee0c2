"""Containers: one layer of the environment each, as people write it in containers/<name>/."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from rocbake import dockerfile, document, option
from rocbake.document import Document, DocumentError, Problem
from rocbake.option import Option
from rocbake.wish import LayerWish

if TYPE_CHECKING:
    from pathlib import Path

# The folder of scripts that containers share; it is no container.
SHARED = "shared"
# The folder of a container with scripts for the recipes that are built in it.
TOOLS = "tools"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
Name = Annotated[str, StringConstraints(pattern=f"^{NAME.pattern}$")]
# Debian Policy 5.6.1
PackageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
PackageGlob = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.*-]*$")]
SuiteName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$")]
Provider = Literal["debian", "amd"]
# Targets and contexts that every bake file has.
_TAKEN = {
    *("default", "deps", "dist", "bundle", "tests"),
    *("packages", "runtime", "shared", "sources", "tools"),
}


class Suite(BaseModel):
    """A suite of the package archive.

    With `only`, no package but those whose names match is ever taken from it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: SuiteName
    only: tuple[PackageGlob, ...] = ()


class Archive(BaseModel):
    """A package archive, and the OpenPGP keys that may sign its Release files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    keyring: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+\.(asc|gpg)$")] = Field(
        description="file in the container's folder"
    )
    suites: tuple[Suite, ...] = Field(min_length=1)


class ContainerFile(BaseModel):
    """What stands in a container.yaml."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"title": "rocbake container"}
    )

    summary: str = Field(min_length=1, description="one sentence")
    parent: Name | None = Field(
        default=None, description="container this one stands on; the root one has none"
    )
    archive: Archive | None = Field(
        default=None, description="where packages come from; said once, by the root container"
    )
    provider: Provider | None = Field(default=None, description="who built the ROCm in here")
    rocm: Version | None = Field(default=None, description="ROCm release in here")
    suites: tuple[Suite, ...] = Field(
        default=(),
        description="more suites of that archive, for this container and those that stand on it",
    )
    exported: bool = Field(
        default=True,
        description="whether its image is kept; false for what is only built in, and large",
    )
    packages: tuple[PackageName, ...] = Field(
        description="wishes; what they depend on is added by the lock"
    )
    sources: tuple[LayerWish, ...] = Field(
        default=(), description="files that its Dockerfile finds in the context `sources`"
    )
    options: dict[str, Option] = Field(
        default={}, description="what every recipe that is built in here can be built with"
    )


@dataclass(frozen=True)
class Container:
    """A container.yaml with its name, its place and the container it stands on."""

    name: str
    folder: Path
    file: ContainerFile
    parent: Container | None

    @property
    def chain(self) -> tuple[Container, ...]:
        """The containers from the root one up to this one."""
        return (*(self.parent.chain if self.parent else ()), self)

    @property
    def archive(self) -> Archive:
        """The package archive of the whole chain, with the suites that were added on the way."""
        archive = self.chain[0].file.archive
        assert archive is not None  # noqa: S101 - load() refuses a root container without one
        added = tuple(suite for one in self.chain for suite in one.file.suites)
        return archive.model_copy(update={"suites": (*archive.suites, *added)})

    @property
    def keyring(self) -> Path:
        """The file with the keys that may sign the archive's Release files."""
        return self.chain[0].folder / self.archive.keyring

    @property
    def options(self) -> dict[str, Option]:
        """What every recipe that is built in here can be built with, by name."""
        return {name: each for one in self.chain for name, each in one.file.options.items()}

    @property
    def provider(self) -> Provider | None:
        """Who built the ROCm in the image."""
        return next((one.file.provider for one in self.chain if one.file.provider), None)

    @property
    def rocm(self) -> str | None:
        """The ROCm release in the image: its own or that of the nearest container below."""
        return next((one.file.rocm for one in reversed(self.chain) if one.file.rocm), None)


def load_all(root: Path) -> dict[str, Container]:
    """Read every container below a project's root, parents before children.

    Raises:
        DocumentError: Everything that is wrong with any of them, at once.
    """
    folders = sorted(path.parent for path in root.glob("containers/*/container.yaml"))
    documents: dict[str, Document[ContainerFile]] = {}
    problems: list[Problem] = []
    for folder in folders:
        try:
            documents[folder.name] = document.read(folder / "container.yaml", ContainerFile)
        except DocumentError as wrong:
            problems += wrong.problems
    broken = {folder.name for folder in folders} - documents.keys()
    for name in documents:
        problems += _check(name, documents, broken)
    if problems:
        raise DocumentError(problems)
    containers: dict[str, Container] = {}

    def add(name: str) -> Container:
        if name not in containers:
            file = documents[name].value
            containers[name] = Container(
                name=name,
                folder=root / "containers" / name,
                file=file,
                parent=add(file.parent) if file.parent else None,
            )
        return containers[name]

    for name in documents:
        add(name)
    return containers


def _check(
    name: str, documents: dict[str, Document[ContainerFile]], broken: set[str]
) -> list[Problem]:
    """Tell what only shows when a container is seen beside the others."""
    here = documents[name]
    file, folder = here.value, here.path.parent
    found = [here.problem(message) for message in check_name(name)]
    if file.parent is None and file.archive is None:
        what = "'archive' is missing: a container without 'parent' says where packages are"
        found.append(here.problem(what))
    if file.parent is not None and file.archive is not None:
        what = "'archive' is said by the root container alone, and 'parent' is given here"
        found.append(here.problem(what, "archive"))
    if file.archive and not (folder / file.archive.keyring).is_file():
        what = f"archive.keyring: there is no {file.archive.keyring} beside it"
        found.append(here.problem(what, "archive", "keyring"))
    if file.suites and file.archive:
        what = "'suites' adds to the archive of a container below, and 'archive' is given here"
        found.append(here.problem(what, "suites"))
    if (file.provider is None) != (file.rocm is None):
        given = "provider" if file.provider else "rocm"
        found.append(here.problem("'provider' and 'rocm' go together", given))
    found += option.problems(here, file.options, taken=_options_below(name, documents))
    found += _check_ancestry(name, documents, broken)
    if found:
        return found
    contexts = [file.parent, "packages", SHARED] if file.parent else []
    contexts += ["sources"] if file.sources else []
    return dockerfile.problems(folder / "Dockerfile", contexts=contexts)


def _options_below(name: str, documents: dict[str, Document[ContainerFile]]) -> dict[str, str]:
    """Return the names of the options of the containers below, and which of them has each."""
    found: dict[str, str] = {}
    seen = {name}
    parent = documents[name].value.parent
    while parent in documents and parent not in seen:
        seen.add(parent)
        below = documents[parent].value
        found |= dict.fromkeys(below.options, parent)
        parent = below.parent
    return found


def check_name(name: str) -> list[str]:
    """Tell what is wrong with the name of a container or recipe, which is its folder's."""
    if not NAME.fullmatch(name):
        return [f"the folder's name {name!r} is not of the form 'words-with-dashes'"]
    if name in _TAKEN:
        return [f"the folder's name {name!r} means something else in a bake file; take another"]
    return []


def _check_ancestry(
    name: str, documents: dict[str, Document[ContainerFile]], broken: set[str]
) -> list[Problem]:
    """Follow the parents of a container down to the root one.

    What is wrong further down is told where that container names it, and not once more here.
    """
    here = documents[name]
    provider, above = here.value.provider, [name]
    parent = here.value.parent
    while parent is not None and parent not in broken:
        if parent not in documents and len(above) > 1:
            return []
        if parent not in documents:
            near = difflib.get_close_matches(parent, documents, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(documents)}"
            return [here.problem(f"parent: there is no container {parent!r}; {advice}", "parent")]
        if parent in above[1:]:
            return []
        if parent == name:
            circle = " -> ".join([*above, parent])
            return [here.problem(f"parent: goes round in a circle: {circle}", "parent")]
        below = documents[parent].value
        if {provider, below.provider} == {"debian", "amd"}:
            what = f"provider: {provider}, but {parent} below it has another"
            return [here.problem(what, "provider")]
        above.append(parent)
        parent = below.parent
    return []
