"""Plans: one build, fully resolved. A pure function of recipe, target set and locks.

A plan names no path and no host of this machine; its key is the SHA-256 of its canonical JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rocbake import digest, option, target
from rocbake.container import SHARED, TOOLS
from rocbake.source import Deb, Sha256, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rocbake.container import Container
    from rocbake.lock import ContainerLock, RecipeLock
    from rocbake.recipe import Recipe
    from rocbake.target import TargetSet

REPOSITORY = "rocbake"
PLATFORM = "x86_64-linux-gnu"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Layer(_Model):
    """One container of a plan, and what decides about its bytes."""

    name: str
    parent: Annotated[str | None, Field(description="name of the layer below")]
    tag: Annotated[str, Field(description="of its image; for people")]
    rocm: str | None
    epoch: Annotated[int, Field(description="SOURCE_DATE_EPOCH, seconds since 1970")]
    snapshot: Annotated[str, Field(description="when its packages stood together in the archive")]
    lock: Annotated[Sha256, Field(description="digest of its lock")]
    files: Annotated[Sha256, Field(description="digest of its Dockerfile and the shared scripts")]
    packages: tuple[Deb, ...]
    key: Annotated[str, Field(description="SHA-256 over all of the above and the layers below")]

    @property
    def reference(self) -> str:
        """The image's name in the engine."""
        return f"{REPOSITORY}/{self.name}:{self.tag}"

    @property
    def version(self) -> str:
        """What stands for a version: the ROCm release, or when its packages stood together."""
        return self.tag

    @property
    def targets(self) -> tuple[str, ...]:
        """None: the same container serves every target set."""
        return ()

    @property
    def options(self) -> dict[str, str]:
        """None: they are for recipes."""
        return {}

    @property
    def overridden(self) -> dict[str, str]:
        """None, as there are no options."""
        return {}


class Plan(_Model):
    """One recipe for one target set."""

    # Raised when the same plan would give other bytes: a new archive format, say.
    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    name: str
    version: str
    targets: tuple[str, ...]
    tag: Annotated[
        str, Field(description="the target set, and the options that are not as rules give them")
    ]
    options: Annotated[dict[str, str], Field(description="value of each build option, by name")]
    overridden: Annotated[
        dict[str, str], Field(description="those that are not as their rules give them")
    ]
    epoch: int
    rocm: str | None
    files: Annotated[Sha256, Field(description="digest of the recipe's files and its Dockerfiles")]
    sources: tuple[Source, ...]
    layers: Annotated[tuple[Layer, ...], Field(description="parents before children")]
    sdk: str
    runtime: str
    key: str

    @property
    def reference(self) -> str:
        """The image's name in the engine."""
        return f"{REPOSITORY}/{self.name}:{self.tag}"

    @property
    def stem(self) -> str:
        """The archive's name without its ending, and the name of its one folder."""
        rocm = f"-rocm{self.rocm}" if self.rocm else ""
        return f"{self.name}-{self.version}{rocm}-{self.tag}-{PLATFORM}"

    @property
    def words(self) -> str:
        """What names this plan on a command line, behind `invoke build`."""
        settings = "".join(f" --set {name}={value}" for name, value in self.overridden.items())
        return f"--recipe {self.name} --target {','.join(self.targets)}{settings}"

    @property
    def inputs(self) -> tuple[Source, ...]:
        """Every file that has to be fetched, each once."""
        every = [*(deb for layer in self.layers for deb in layer.packages), *self.sources]
        return tuple({source.sha256: source for source in every}.values())

    @property
    def snapshot(self) -> str:
        """The archive state that its packages come from."""
        return max(layer.snapshot for layer in self.layers)

    def chain(self, name: str) -> tuple[Layer, ...]:
        """Return the layers from the root one up to the one of this name."""
        layer = next(layer for layer in self.layers if layer.name == name)
        return (*(self.chain(layer.parent) if layer.parent else ()), layer)


def make(
    recipe: Recipe,
    targets: TargetSet,
    *,
    locks: Mapping[str, ContainerLock],
    recipe_lock: RecipeLock,
    asked: Mapping[str, str] | None = None,
) -> Plan:
    """Resolve one build.

    Args:
        recipe: What to build.
        targets: What for.
        locks: The locks of the recipe's containers, by name; they answer their wishes.
        recipe_lock: The recipe's lock; it answers its wish.
        asked: Values of options that take the place of what their rules give.

    Raises:
        TargetError: The ROCm release of the recipe's containers is older than a target.
        UsageError: A value that is asked for is none of the option's.
    """
    rocm = recipe.sdk.rocm
    if rocm:
        target.check_rocm(targets, rocm)
    choices = option.resolve(recipe.options, targets, asked or {})
    layers: dict[str, Layer] = {}
    for container in recipe.containers:
        below = layers[container.parent.name] if container.parent else None
        layers[container.name] = _layer(container, locks[container.name], below)
    content = {
        "name": recipe.name,
        "version": recipe.file.version,
        "targets": targets.names,
        "tag": option.tag(targets, choices),
        "options": {name: choice.value for name, choice in choices.items()},
        "overridden": {name: one.value for name, one in choices.items() if one.is_overridden},
        "epoch": max(layer.epoch for layer in layers.values()),
        "rocm": rocm,
        "files": recipe_files(
            recipe.folder.parents[1], recipe.name, recipe.files(), sdk=recipe.sdk.name
        ),
        "sources": recipe_lock.sources,
        "layers": tuple(layers.values()),
        "sdk": recipe.sdk.name,
        "runtime": recipe.runtime.name,
    }
    keyless = Plan(**content, key="")
    return keyless.model_copy(update={"key": _key(keyless)})


def _layer(container: Container, lock: ContainerLock, below: Layer | None) -> Layer:
    keyless = Layer(
        name=container.name,
        parent=below.name if below else None,
        tag=container.rocm or lock.snapshot,
        rocm=container.rocm,
        epoch=lock.epoch,
        snapshot=lock.snapshot,
        lock=lock.digest,
        files=container_files(container.folder.parent, container.name),
        packages=lock.packages,
        key=below.key if below else "",
    )
    return keyless.model_copy(update={"key": _key(keyless)})


def recipe_files(root: Path, name: str, relative: Iterable[Path], *, sdk: str) -> str:
    """Return the digest of a recipe's files, of the Dockerfile of all, and of its SDK's tools."""
    recipes, containers = root / "recipes", root / "containers"
    return digest.sha256_json(
        [
            digest.sha256_files(recipes / name, relative),
            digest.sha256_files(recipes, [Path("Dockerfile")]),
            digest.sha256_files(containers, tool_files(containers, sdk)),
        ]
    )


def tool_files(containers: Path, sdk: str) -> list[Path]:
    """Return what a container hands to every recipe that is built in it, sorted."""
    tools = containers / sdk / TOOLS
    return sorted(path.relative_to(containers) for path in tools.glob("*.py"))


def container_files(root: Path, name: str) -> str:
    """Return the digest of a container's Dockerfile and the scripts that containers share."""
    scripts = [path.relative_to(root) for path in (root / SHARED).glob("*.sh")]
    return digest.sha256_files(root, [Path(name) / "Dockerfile", *scripts])


def _key(keyless: Plan | Layer) -> str:
    return digest.sha256_json(keyless.model_dump(mode="json", by_alias=True))
