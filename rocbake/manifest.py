"""Manifests: what is in an archive, read off the files themselves and not off what was asked.

What must never leave a build is refused here: code for other targets, a path of the build, an
RPATH that leads out of the archive.
"""

from __future__ import annotations

import collections
import os
import posixpath
import re
import stat
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rocbake import digest, elf
from rocbake.errors import BuildError
from rocbake.source import Sha256

if TYPE_CHECKING:
    from pathlib import Path

    from rocbake.elf import ElfFacts
    from rocbake.plan import Plan

# Where recipes are built (recipes/Dockerfile), and the names Clang gives what it makes on the way.
_BUILD_PATH = re.compile(
    # A host's name may end in front of it, as in docker.io/rocbake; -I and -L may as well.
    rb"(?<![\w.@][\w-])(/rocbake/(?:build|recipe|sources|dist)\b[\w./+-]*"
    rb"|/tmp/[\w.+-]+-[0-9a-f]{6,10}\.(?:o|s|bc|out|hipfb|cui)\b)"
)
_CHUNK = 1 << 20
_OVERLAP = 512


# A bundled archive carries the libraries of ROCm that the product needs, a plain one does not.
Kind = Literal["plain", "bundled"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ElfEntry(_Model):
    """What a program or library asks of the machine it runs on."""

    soname: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    versions: Annotated[
        dict[str, str], Field(description="highest symbol version needed, by its prefix: GLIBC")
    ]


class FileEntry(_Model):
    """One member of the archive."""

    path: str
    mode: Annotated[str, Field(description="octal permission bits")]
    size: int = 0
    sha256: Sha256 | None = None
    link: str | None = None
    elf: ElfEntry | None = None
    code_objects: Annotated[dict[str, int], Field(description="how many, by GPU target")] = {}


class Manifest(_Model):
    """What manifest.json says, inside the archive and beside it."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    kind: Kind = "plain"
    name: str
    version: str
    key: Sha256
    epoch: int
    rocm: str | None
    targets: Annotated[tuple[str, ...], Field(description="with code objects in here")]
    needed: Annotated[tuple[str, ...], Field(description="sonames that are not in here")]
    versions: Annotated[dict[str, str], Field(description="highest symbol versions needed")]
    files: tuple[FileEntry, ...]

    def to_json(self) -> bytes:
        """Return the canonical bytes."""
        return digest.canonical_json(self.model_dump(mode="json", by_alias=True)) + b"\n"


def make(root: Path, plan: Plan, *, kind: Kind = "plain") -> Manifest:
    """Read a folder that is to become an archive.

    Args:
        root: The folder.
        plan: What it was built from.
        kind: In a bundled one, ROCm's own files may lack code for a target, for which they have
            none; the product's may not, and that was seen when the plain one was read.

    Raises:
        BuildError: Everything about it that may not leave a build, at once.
    """
    faults: list[str] = []
    facts: list[ElfFacts] = []
    entries = []
    for path in sorted(root.rglob("*"), key=lambda one: os.fsencode(one.relative_to(root))):
        entry = _entry(path, root, faults, facts)
        if entry:
            entries.append(entry)
    if not entries:
        faults.append("build.sh left nothing in /rocbake/dist")
    found = {target for entry in entries for target in entry.code_objects}
    faults += _wrong_targets(entries, plan, is_complete=kind == "plain")
    if faults:
        raise BuildError(
            f"{plan.name} for {','.join(plan.targets)} may not be exported:\n  "
            + "\n  ".join(faults)
        )
    elves = [entry.elf for entry in entries if entry.elf]
    inside = {one.soname for one in elves} | {one.path.rpartition("/")[2] for one in entries}
    needed = tuple(sorted({name for one in elves for name in one.needed} - inside))
    return Manifest(
        kind=kind,
        name=plan.name,
        version=plan.version,
        key=plan.key,
        epoch=plan.epoch,
        rocm=plan.rocm,
        targets=tuple(target for target in plan.targets if target in found),
        needed=needed,
        # What comes along has the versions that are asked of it.
        versions=elf.newest_versions(facts) if needed else {},
        files=tuple(entries),
    )


def _entry(path: Path, root: Path, faults: list[str], facts: list[ElfFacts]) -> FileEntry | None:
    """Return one member, and add to what is wrong and to what is asked of the machine."""
    name = path.relative_to(root).as_posix()
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        link = os.readlink(os.fsencode(path))  # noqa: PTH115 - bytes, as the search wants them
        if match := _BUILD_PATH.search(link):
            faults.append(f"{name}: leads to a path of the build: {match.group(1).decode()}")
        return FileEntry(path=name, mode="0777", link=str(path.readlink()))
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        faults.append(f"{name}: neither file, folder nor symbolic link")
        return None
    found = _build_path(path)
    if found:
        faults.append(f"{name}: holds a path of the build: {found}")
    about = elf.read(path)
    if about:
        facts.append(about)
    return FileEntry(
        path=name,
        mode="0755" if status.st_mode & 0o111 else "0644",
        size=status.st_size,
        sha256=digest.sha256_file(path),
        elf=_elf(about, name, faults) if about else None,
        code_objects=dict(
            sorted(collections.Counter(one.target for one in elf.code_objects(path)).items())
        ),
    )


def _elf(facts: ElfFacts, name: str, faults: list[str]) -> ElfEntry:
    rpath = (*facts.rpath, *facts.runpath)
    faults += [
        f"{name}: RPATH {entry!r} leads out of the archive, or is not told from $ORIGIN"
        for entry in rpath
        if not _stays_inside(entry, name)
    ]
    return ElfEntry(
        soname=facts.soname,
        needed=tuple(sorted(facts.needed)),
        rpath=rpath,
        versions=elf.newest_versions([facts]),
    )


def _stays_inside(rpath: str, name: str) -> bool:
    """Tell whether an RPATH of a member begins with $ORIGIN and ends in the archive."""
    origin = re.fullmatch(r"\$(?:ORIGIN|\{ORIGIN\})((?:/.*)?)", rpath)
    if not origin:
        return False
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), f".{origin.group(1)}"))
    return place != ".." and not place.startswith("../")


def _wrong_targets(entries: list[FileEntry], plan: Plan, *, is_complete: bool) -> list[str]:
    """Tell of each file whose code objects are not for exactly the target set."""
    wanted = set(plan.targets)
    faults = []
    holders = [entry for entry in entries if entry.code_objects]
    for entry in holders:
        found = set(entry.code_objects)
        if found - wanted or (is_complete and found != wanted):
            faults.append(
                f"{entry.path}: asked for {','.join(plan.targets)}, found {','.join(sorted(found))}"
            )
    if not holders and plan.rocm:
        faults.append(f"no file holds a code object; asked for {','.join(plan.targets)}")
    return faults


def _build_path(path: Path) -> str | None:
    """Return the first path of the build that stands in a file."""
    before = b""
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            window = before + chunk
            match = _BUILD_PATH.search(window)
            if match:
                return match.group(1).decode("ascii", "replace")
            before = window[-_OVERLAP:]
    return None
