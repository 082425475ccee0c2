"""Wishes for sources: which file or tree, as people write it; what exactly is the lock's to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
)
from pydantic_core import PydanticCustomError

from rocbake import target
from rocbake.errors import TargetError
from rocbake.source import Sha256

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocbake.source import Source
    from rocbake.target import TargetSet

_KINDS = ("url", "git", "pypi")
_HttpUrl = Annotated[str, StringConstraints(pattern=r"^(https?|file)://[^\s@]+$")]
_Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UrlWish(_Wish):
    """A file to download."""

    url: _HttpUrl
    sha256: Sha256 | None = Field(
        default=None, description="what it must be, where its authors or others published that"
    )

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return self.url

    def is_answered_by(self, source: Source) -> bool:
        """Tell whether a locked source is the one that is asked for."""
        return source.kind == "url" and source.url == self.url


class GitWish(_Wish):
    """The tree of one commit; a branch or a tag can move, so neither is taken."""

    git: _HttpUrl
    commit: _Commit

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return f"{self.git} at {self.commit}"

    def is_answered_by(self, source: Source) -> bool:
        """Tell whether a locked source is the one that is asked for."""
        return source.kind == "git" and (source.url, source.commit) == (self.git, self.commit)


class PypiWish(_Wish):
    """A file of a project on a Python package index; the source distribution unless named."""

    pypi: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
    version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z.+!_-]+$")]
    file: str | None = None

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return f"{self.pypi} {self.version}" + (f" ({self.file})" if self.file else "")

    def is_answered_by(self, source: Source) -> bool:
        """Tell whether a locked source is the one that is asked for."""
        return (
            source.kind == "pypi"
            and (source.project, source.version) == (self.pypi, self.version)
            and self.file in (None, source.file_name)
        )


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


def _check_targets(text: str) -> str:
    try:
        target.parse_target_set([text])
    except TargetError as wrong:
        raise PydanticCustomError("targets", "{why}", {"why": str(wrong)}) from wrong
    return text


class LayerWish(UrlWish):
    """A file that a container is made of, for every target set or for some."""

    targets: Annotated[str, AfterValidator(_check_targets)] | None = Field(
        default=None, description="target set that it is for; for all if not given"
    )

    def is_for(self, targets: TargetSet) -> bool:
        """Tell whether a build for a target set needs it."""
        if self.targets is None:
            return True
        return set(targets.names) <= set(target.parse_target_set([self.targets]).names)


def wishes_for(wishes: Sequence[LayerWish], targets: TargetSet) -> list[LayerWish]:
    """Return the files that a container is made of in a build for a target set.

    Raises:
        TargetError: There are files for some target sets, and none for this one.
    """
    found = [one for one in wishes if one.is_for(targets)]
    chosen = [one for one in wishes if one.targets is not None]
    if chosen and not any(one.targets for one in found):
        known = ", ".join(dict.fromkeys(one.targets for one in chosen if one.targets))
        raise TargetError(f"there are files for {known}, and none for {','.join(targets.names)}")
    return found


def answers(
    wishes: Sequence[UrlWish | GitWish | PypiWish], sources: Sequence[Source]
) -> list[Source | None]:
    """Return what a lock says to each wish, None where it has not been recorded yet."""
    return [
        next((source for source in sources if wish.is_answered_by(source)), None) for wish in wishes
    ]
