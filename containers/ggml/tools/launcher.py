"""Programs that bring their own C library: what is built on a new system runs on an older one.

A program names its loader by an absolute path, so one that lies anywhere is started by a script,
which hands it to the loader that came along.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

LOADER = Path("/lib64/ld-linux-x86-64.so.2")
_SCRIPT = """\
#!/bin/sh
# Starts {name} with the C library that came along; this system's may be older.
here=$(dirname -- "$(readlink -f -- "$0")")
top=${{here%/*}}
exec "$top/lib/{loader}" --argv0 "$0" --library-path "$top/lib" "$top/libexec/{name}" "$@"
"""
_SEGMENTS, _SEGMENT_SIZE, _COUNT = struct.Struct("<Q"), 56, struct.Struct("<H")
_INTERPRETER = 3


def lay_over(dist: Path, out: Path) -> None:
    """Make what takes the place of programs in an archive that brings its C library.

    Args:
        dist: The product.
        out: Gets the scripts in `bin/`, the programs in `libexec/`. Libraries that lie beside a
            program, where it looks for them, get a second name beside the loader: that is what the
            kernel then calls the program.
    """
    for path in sorted((dist / "bin").iterdir()):
        if path.is_symlink() or not path.is_file():
            continue
        if has_interpreter(path.read_bytes()[:4096]):
            _put(out / "bin" / path.name, _SCRIPT.format(name=path.name, loader=LOADER.name))
            (out / "libexec").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / "libexec" / path.name)
            (out / "libexec" / path.name).chmod(0o755)
        elif path.suffix == ".so":
            (out / "lib").mkdir(parents=True, exist_ok=True)
            (out / "lib" / path.name).symlink_to(Path("..") / "bin" / path.name)


def has_interpreter(head: bytes) -> bool:
    """Tell a program from a library, by the beginning of the file."""
    if head[:6] != b"\x7fELF\x02\x01":
        return False
    (place,), (count,) = _SEGMENTS.unpack_from(head, 32), _COUNT.unpack_from(head, 56)
    kinds = (head[place + number * _SEGMENT_SIZE :][:4] for number in range(count))
    return any(kind == struct.pack("<I", _INTERPRETER) for kind in kinds)


def copy_loader(place: Path) -> None:
    """Copy this container's loader into a folder of libraries."""
    shutil.copyfile(LOADER.resolve(), place / LOADER.name)
    (place / LOADER.name).chmod(0o755)


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
