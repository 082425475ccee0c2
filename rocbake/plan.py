"""Plans: one build, fully resolved. A pure function of recipe, target set and locks.

A plan names no path and no host of this machine; its key is the SHA-256 of its canonical JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from rocbake import digest, option, target, wish
from rocbake.bazel import BazelWish
from rocbake.container import SHARED, TOOLS
from rocbake.errors import LockError, TargetError
from rocbake.recipe import ArchiveWish
from rocbake.source import Deb, Deps, Sha256, Source, Url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rocbake.container import Container
    from rocbake.lock import ContainerLock, RecipeLock
    from rocbake.recipe import Recipe
    from rocbake.target import TargetSet
    from rocbake.wish import GitWish, LayerWish, PypiWish, UrlWish

REPOSITORY = "rocbake"
PLATFORM = "x86_64-linux-gnu"
# What a lock says of these names no address.
DOWNLOADS = "what Bazel downloads"


# Fields that few plans have anything to say in. They are left out where they say nothing, so that
# a plan's key is what it was before there were such fields.
_RARE: dict[str, object] = {
    "files_beside": (),
    "tools": "",
    "bazel": None,
    "archive": None,
    "missing": {},
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _without_silence(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        told: dict[str, object] = handler(self)
        return {
            name: value
            for name, value in told.items()
            if not (name in _RARE and getattr(self, name) == _RARE[name])
        }


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
    files_beside: Annotated[
        tuple[Url, ...], Field(description="other files that it is made of, for this target set")
    ] = ()
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
    tools: Annotated[
        str, Field(description="container whose tools build.sh is given, if not its SDK's")
    ] = ""
    bazel: Annotated[
        BazelWish | None, Field(description="what Bazel is told, where it builds the product")
    ] = None
    archive: Annotated[
        ArchiveWish | None, Field(description="how the archive is called, if by other rules")
    ] = None
    missing: Annotated[
        dict[str, tuple[str, ...]],
        Field(
            description="by lock, files that are wished for and were never recorded; "
            "with any, nothing is built, and the key is none"
        ),
    ] = {}
    key: str

    @property
    def reference(self) -> str:
        """The image's name in the engine."""
        return f"{REPOSITORY}/{self.name}:{self.tag}"

    @property
    def stem(self) -> str:
        """What tells the product from all others; its files are called by it."""
        rocm = f"-rocm{self.rocm}" if self.rocm else ""
        return f"{self.name}-{self.version}{rocm}-{self.tag}-{PLATFORM}"

    @property
    def archive_name(self) -> str:
        """The archive's file name."""
        if self.archive:
            return self.archive.name.replace("{version}", self.version)
        return f"{self.stem}.tar.zst"

    @property
    def archive_folder(self) -> str:
        """The one folder in the archive that everything lies in."""
        return self.archive.folder if self.archive else self.stem

    @property
    def words(self) -> str:
        """What names this plan on a command line, behind `invoke build`."""
        settings = "".join(f" --set {name}={value}" for name, value in self.overridden.items())
        return f"--recipe {self.name} --target {','.join(self.targets)}{settings}"

    @property
    def inputs(self) -> tuple[Source, ...]:
        """Every file that has to be fetched, each once; what Bazel fetches is none of them."""
        every: list[Source] = [deb for layer in self.layers for deb in layer.packages]
        every += [one for layer in self.layers for one in layer.files_beside]
        every += [one for one in self.sources if not isinstance(one, Deps)]
        return tuple({source.sha256: source for source in every}.values())

    @property
    def deps(self) -> Deps | None:
        """What Bazel downloads for it, where it is built with Bazel and that was recorded."""
        return next((one for one in self.sources if isinstance(one, Deps)), None)

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
    recipe = recipe.built_for(targets, asked or {})
    rocm = recipe.rocm
    if rocm:
        target.check_rocm(targets, rocm)
    choices = option.resolve(recipe.options, targets, asked or {})
    missing: dict[str, tuple[str, ...]] = {}
    layers: dict[str, Layer] = {}
    for container in recipe.containers:
        below = layers[container.parent.name] if container.parent else None
        lock = locks[container.name]
        wanted = _wanted(container, targets)
        missing |= _missing(container.name, wanted, lock.sources)
        layers[container.name] = _layer(container, lock, below, wanted)
    missing |= _missing(
        recipe.name,
        recipe.file.sources,
        recipe_lock.sources,
        also=(Deps,) if recipe.file.bazel else (),
    )
    containers = recipe.folder.parents[1] / "containers"
    tools = next(
        (one.name for one in reversed(recipe.sdk.chain) if tool_files(containers, one.name)),
        recipe.sdk.name,
    )
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
            recipe.folder.parents[1],
            recipe.name,
            recipe.files(),
            dockerfile=dockerfile_of(recipe.file.bazel),
            tools=tools,
        ),
        "sources": recipe_lock.sources,
        "layers": tuple(layers.values()),
        "sdk": recipe.sdk.name,
        "runtime": recipe.runtime.name,
        "tools": tools if tools != recipe.sdk.name else "",
        "bazel": recipe.file.bazel,
        "archive": recipe.file.archive,
        "missing": missing,
    }
    keyless = Plan(**content, key="")
    return keyless.model_copy(update={"key": _key(keyless)})


def require_recorded(plans: Iterable[Plan]) -> None:
    """Check that the locks name every file that builds need.

    Raises:
        LockError: Some were never recorded.
    """
    lines: list[str] = []
    names: dict[str, None] = {}
    targets: dict[str, None] = {}
    for one in plans:
        if one.missing:
            targets[f" --target {','.join(one.targets)}"] = None
        for name, labels in one.missing.items():
            names[f" --name {name}"] = None
            lines += [f"  {name}: {label}" for label in labels]
    if lines:
        raise LockError(
            "the locks do not name these files yet; nobody has recorded them:\n"
            + "\n".join(dict.fromkeys(lines)),
            hint=f"invoke lock{''.join(names)}{''.join(targets)}  where they can be reached",
        )


def _wanted(container: Container, targets: TargetSet) -> list[LayerWish]:
    try:
        return wish.wishes_for(container.file.sources, targets)
    except TargetError as none:
        raise TargetError(f"container {container.name}: {none}") from none


def _missing(
    name: str,
    wishes: Sequence[UrlWish | GitWish | PypiWish],
    sources: Sequence[Source],
    *,
    also: Sequence[type[Deps]] = (),
) -> dict[str, tuple[str, ...]]:
    """Return what of a lock was never recorded, by its name; nothing if it is whole."""
    found = [
        one.label
        for one, answer in zip(wishes, wish.answers(wishes, sources), strict=True)
        if answer is None
    ]
    found += [DOWNLOADS for kind in also if not any(isinstance(source, kind) for source in sources)]
    return {name: tuple(found)} if found else {}


def _layer(
    container: Container, lock: ContainerLock, below: Layer | None, wanted: Sequence[LayerWish]
) -> Layer:
    sources = tuple(one for one in wish.answers(wanted, lock.sources) if isinstance(one, Url))
    chosen = next((f"-{one.targets}" for one in wanted if one.targets), "")
    keyless = Layer(
        name=container.name,
        parent=below.name if below else None,
        tag=(container.rocm or lock.snapshot) + chosen.replace(",", "_"),
        rocm=container.rocm,
        epoch=lock.epoch,
        snapshot=lock.snapshot,
        lock=lock.digest,
        files=container_files(container.folder.parent, container.name),
        packages=lock.packages,
        files_beside=sources,
        key=below.key if below else "",
    )
    return keyless.model_copy(update={"key": _key(keyless)})


def dockerfile_of(bazel: BazelWish | None) -> str:
    """Return the file below recipes/ that says how recipes of a kind are built."""
    return "bazel.Dockerfile" if bazel else "Dockerfile"


def recipe_files(
    root: Path, name: str, relative: Iterable[Path], *, dockerfile: str, tools: str
) -> str:
    """Return the digest of a recipe's files, of the Dockerfile of its kind, and of the tools."""
    recipes, containers = root / "recipes", root / "containers"
    return digest.sha256_json(
        [
            digest.sha256_files(recipes / name, relative),
            digest.sha256_files(recipes, [Path(dockerfile)]),
            digest.sha256_files(containers, tool_files(containers, tools)),
        ]
    )


def tool_files(containers: Path, name: str) -> list[Path]:
    """Return what a container hands to every recipe that is built in it, sorted."""
    tools = containers / name / TOOLS
    return sorted(path.relative_to(containers) for path in tools.glob("*.py"))


def container_files(root: Path, name: str) -> str:
    """Return the digest of a container's Dockerfile and the scripts that containers share."""
    scripts = [path.relative_to(root) for path in (root / SHARED).glob("*.sh")]
    return digest.sha256_files(root, [Path(name) / "Dockerfile", *scripts])


def _key(keyless: Plan | Layer) -> str:
    return digest.sha256_json(keyless.model_dump(mode="json", by_alias=True))
