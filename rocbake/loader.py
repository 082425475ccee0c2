"""What the dynamic loader of a machine finds: its cache, its folders, and links below a root.

Pure over a root folder, so an unpacked image can be asked as well. What cannot be read is missing.
"""

from __future__ import annotations

import os
import re
import struct
from collections import deque
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rocbake import linkage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LARGEST_FILE = 64 << 20
_MOST_LINKS = 40  # as the kernel has it

# sysdeps/generic/dl-cache.h of glibc: a header with counts, then one entry a library. Up to 2.31
# an older table stood in front of it; flags name the machine: 3 for libc6, 0x300 for x86-64.
_CACHE = struct.Struct("<20sII")
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = 48
_CACHE_ENTRY = struct.Struct("<iIIIQ")
_OLD_MAGIC = b"ld.so-1.7.0\0"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_X86_64 = 0x0303

# Where loaders look last; Debian's, Fedora's and Arch's.
_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
_LIBRARY = re.compile(r"lib.+\.so(\.\d+)*|ld-linux-x86-64\.so\.2")


def parse_cache(data: bytes) -> dict[str, str] | None:
    """Return path by soname from an /etc/ld.so.cache, of libraries for x86-64.

    None for what is no cache that a loader would take; it looks in its folders then.
    """
    start = 0
    if data.startswith(_OLD_MAGIC) and len(data) >= _OLD_HEADER:
        count = int.from_bytes(data[12:16], "little")
        start = _OLD_HEADER + count * _OLD_ENTRY + 7 & ~7
    if len(data) < start + _CACHE_HEADER:
        return None
    magic, count, _ = _CACHE.unpack_from(data, start)
    if magic != _CACHE_MAGIC or start + _CACHE_HEADER + count * _CACHE_ENTRY.size > len(data):
        return None
    plain: dict[str, str] = {}
    for_some: dict[str, str] = {}
    for number in range(count):
        entry = start + _CACHE_HEADER + number * _CACHE_ENTRY.size
        flags, key, value, _, processors = _CACHE_ENTRY.unpack_from(data, entry)
        soname, path = _cache_text(data, start + key), _cache_text(data, start + value)
        if flags == _X86_64 and soname and path.startswith("/"):
            # A second copy, for a better processor, lies in a folder of its own.
            (for_some if processors else plain).setdefault(soname, path)
    return for_some | plain


def _cache_text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    return os.fsdecode(data[start:end]) if start < end else ""


def find(root: Path, library_path: str = "") -> dict[str, str]:
    """Return path by soname of what the loader finds: the user's folders, the cache, its own.

    Args:
        root: The machine's root folder.
        library_path: LD_LIBRARY_PATH of the shell that will run the product.
    """
    found: dict[str, str] = {}
    add(found, root, [one for one in re.split("[:;]", library_path) if one.startswith("/")])
    cached = parse_cache(read(root, "/etc/ld.so.cache"))
    if cached is None:
        add(found, root, _configured(root, "/etc/ld.so.conf"))
    for soname, path in (cached or {}).items():
        if soname not in found and inside(root, path).is_file():
            found[soname] = path
    add(found, root, _FOLDERS)
    return found


def add(found: dict[str, str], root: Path, folders: Iterable[str]) -> None:
    """Add libraries that lie in folders, the first of a name, as a loader takes them."""
    for folder in folders:
        for name in names(root, folder):
            if name not in found and _LIBRARY.fullmatch(name):
                path = f"{folder.rstrip('/')}/{name}"
                # /usr/lib has those for 32 bits where /usr/lib64 has the others.
                if linkage.is_x86_64(inside(root, path)):
                    found[name] = path


def _configured(root: Path, file: str, depth: int = 0) -> Iterator[str]:
    """Yield the folders that ldconfig is told of: ldconfig(8)."""
    for line in read(root, file).decode(errors="replace").splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:] if depth < 4 else ():  # noqa: PLR2004 - a loop ends there
                folder, _, name = str(PurePosixPath(file).parent / pattern).rpartition("/")
                for one in names(root, folder):
                    if PurePosixPath(one).match(name):
                        yield from _configured(root, f"{folder}/{one}", depth + 1)
        elif len(words) == 1 and words[0].startswith("/"):
            yield words[0]


def inside(root: Path, path: str) -> Path:
    """Return where a path of the machine leads, with every link followed below its root."""
    done: list[str] = []
    ahead = deque(PurePosixPath(path).parts)
    links = 0
    while ahead:
        part = ahead.popleft()
        if part == "/":
            done.clear()
        elif part == "..":
            done = done[:-1]
        else:
            here = root.joinpath(*done, part)
            try:
                leads = os.readlink(here)  # noqa: PTH115 - as text, with what pathlib tidies away
            except OSError:
                done.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                return here
            ahead.extendleft(reversed(PurePosixPath(leads).parts))
    return root.joinpath(*done)


def names(root: Path, folder: str) -> list[str]:
    """Return the names in a folder, sorted; where it is missing or closed, there are none."""
    try:
        return sorted(os.listdir(inside(root, folder)))  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return []


def read(root: Path, path: str, limit: int = _LARGEST_FILE) -> bytes:
    """Return the start of a file; where it is missing or closed, nothing."""
    try:
        with inside(root, path).open("rb") as stream:
            return stream.read(limit)
    except OSError:
        return b""
