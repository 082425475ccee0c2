"""Sources: one locked input file each, and how it is named, verified and stored.

A source says *what* (by SHA-256) and never *where from*: hosts are configuration.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~%:@-]*$")]
ArchivePath = Annotated[
    # No part begins with a dot, so none can be `..`.
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~%:-]*(/[A-Za-z0-9][A-Za-z0-9._+~%:-]*)*$"
    ),
]


class _Source(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Sha256
    size: Annotated[int, Field(ge=0, description="bytes")]


class Deb(_Source):
    """One Debian package, `path` being its place below the root of a package archive."""

    kind: Literal["deb"] = "deb"
    archive: str = "debian"
    # Debian Policy 5.6.1, 5.6.12 and 5.6.8; none of them can leave a folder.
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
    version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+:~-]*$")]
    architecture: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$")]
    path: ArchivePath

    @property
    def file_name(self) -> str:
        """The name apt gives the file: the epoch's colon is escaped."""
        return f"{self.name}_{quote(self.version, safe='+~')}_{self.architecture}.deb"

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return f"{self.name} {self.version} ({self.architecture})"


class Url(_Source):
    """One file below an address; `url` may name any of several equal places through mirrors."""

    kind: Literal["url"] = "url"
    url: str
    file_name: FileName

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return self.url


class Git(_Source):
    """The tree of one commit, kept as a deterministic tar; `sha256` and `size` are the tar's."""

    kind: Literal["git"] = "git"
    url: str
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]

    @property
    def file_name(self) -> str:
        """The repository's name and the commit."""
        name = self.url.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        return f"{name}-{self.commit}.tar"

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return f"{self.url} at {self.commit}"


class Pypi(_Source):
    """One file of a project on a Python package index; an index never replaces a file."""

    kind: Literal["pypi"] = "pypi"
    project: str
    version: str
    file_name: FileName

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return f"{self.project} {self.version} ({self.file_name})"


class Deps(_Source):
    """What Bazel downloads for a build, kept as a deterministic tar of its repository cache."""

    kind: Literal["deps"] = "deps"
    file_name: Literal["repository-cache.tar"] = "repository-cache.tar"

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return "what Bazel downloads"


Source = Annotated[Deb | Url | Git | Pypi | Deps, Field(discriminator="kind")]
