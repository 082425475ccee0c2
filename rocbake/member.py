"""Members: what an archive can hold, and which names and links may be in it.

What a tar is made of: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

from __future__ import annotations

import contextlib
import zlib
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from rocbake.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BLOCK = 512
CHUNK = 1 << 20

# RFC 1952. The header that zlib writes by itself has no name, the date 0, and Unix as its system.
GZIP = zlib.MAX_WBITS + 16


class MemberType(StrEnum):
    """What a member of an archive can be; nothing else is ever written or unpacked."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


FLAGS = {
    MemberType.FILE: b"0",
    MemberType.HARDLINK: b"1",
    MemberType.SYMLINK: b"2",
    MemberType.FOLDER: b"5",
}
TYPES = {flag: kind for kind, flag in FLAGS.items()}


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive.

    Attributes:
        name: Relative path with `/` between its parts and none at its end.
        type: What it is.
        mode: Permission bits.
        size: Of the content, in bytes; 0 for what is not a file.
        mtime: Seconds since 1970.
        linkname: What a symlink says, or the name of the earlier member a hardlink is; else "".
        sha256: Of a file's content, bare hexadecimal; else "".
    """

    name: str
    type: MemberType
    mode: int
    size: int = 0
    mtime: int = 0
    linkname: str = ""
    sha256: str = ""


def padded(size: int) -> int:
    """Return the size that a content takes, which is filled up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def is_plain(path: str) -> bool:
    """Tell whether a relative path says what it means: no empty part, no `.` and no `..`."""
    return not {"", ".", ".."} & set(path.split("/")) and "\0" not in path


def _leaves(name: str, links: Mapping[str, str]) -> bool:
    """Tell whether following a symlink goes above the top of the archive at any point.

    Args:
        name: The symlink.
        links: What each symlink of the archive says, by its name. Their folders are real ones.

    >>> _leaves("a/b", {"a/b": "../c"}), _leaves("a/b", {"a/b": "../../c"})
    (False, True)
    """
    here = name.split("/")[:-1]
    todo = deque(links[name].split("/"))
    # As many links as Linux follows: beyond that, and in a circle, nothing can be reached.
    followed = 0
    while todo and followed < 40:  # noqa: PLR2004 - said above
        part = todo.popleft()
        if part in ("", "."):
            continue
        if part == "..":
            if not here:
                return True
            here.pop()
            continue
        here.append(part)
        target = links.get("/".join(here))
        if target is not None:
            here.pop()
            followed += 1
            todo.extendleft(reversed(target.split("/")))
    return False


def check_links(links: Mapping[str, str]) -> None:
    """Check that no symlink of an archive leads out of it, alone or through others.

    Raises:
        BuildError: Naming the link.
    """
    for name, target in links.items():
        if target.startswith("/"):
            raise BuildError(f"{shown(name)} is an absolute link, to {target!r}")
        if _leaves(name, links):
            raise BuildError(f"{shown(name)} is a link out of the archive, to {target!r}")


def shown(name: str) -> str:
    """Return a member's name as it can be printed anywhere: quoted if anything in it is odd."""
    return name if name.isprintable() and name.strip() == name != "" else ascii(name)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn a failure of the operating system into one that says what could not be done."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"{what}: {error}") from error
