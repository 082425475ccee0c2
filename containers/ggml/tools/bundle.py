"""What of ROCm a product needs: its libraries and kernel files, for one target set."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import launcher
import thin
from toolchain import ToolError, run, say, targets

_FOUND = re.compile(r"^\s+(\S+) => (/\S+) \(0x", re.MULTILINE)
_LOST = re.compile(r"^\s+(\S+) => not found$", re.MULTILINE)
# A library's name as it stands among a program's texts: what it may open while it runs.
_NAME = re.compile(rb"(?<![\w./+-])lib[A-Za-z0-9_+-]+\.so(?:\.[0-9]+)*(?=\0)")
_LONGEST_NAME = 64
_TARGET = re.compile(r"gfx[0-9a-f]+(?:-generic)?")
_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
_ELF = b"\x7fELF"
# Below the folder of the library that reads them.
_KERNELS = {"librocblas.so": "rocblas", "libhipblaslt.so": "hipblaslt"}


def bundle(dist: Path, out: Path, *, runtime: Path = Path("/rocbake/runtime")) -> None:
    """Collect what a product's files need and open, for exactly the target set.

    Args:
        dist: The product.
        out: Gets `added/`, what the runtime image lacks, and `system/`, what it has, the C library
            among it: paths below both are those below a folder of libraries. And `overlay/`, what
            is laid over the product so that it uses them.
        runtime: The root of the runtime image.

    Raises:
        ToolError: A library is nowhere in this container.
    """
    wanted = closure(dist)
    for name, path in sorted(wanted.items()):
        has = (runtime / _LIBRARIES.relative_to("/") / name).exists()
        place = out / ("system" if has else "added")
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place / name)
        (place / name).chmod(0o644)
        for prefix, folder in _KERNELS.items():
            if name.startswith(prefix):
                _copy_kernels(path.parent / folder, place / folder)
    launcher.copy_loader(out / "system")
    launcher.lay_over(dist, out / "overlay")
    for path in sorted([*out.glob("added/*.so*"), *out.glob("system/*.so*")]):
        report = thin.thin(path, targets())
        if report.removed or report.lacking:
            say(str(report))


def closure(dist: Path) -> dict[str, Path]:
    """Return every library that the product needs and does not hold, by the name it is asked by."""
    own = {path.name for path in dist.rglob("*") if path.is_file() or path.is_symlink()}
    queue = [path for path in sorted(dist.rglob("*")) if _is_elf(path)]
    wanted: dict[str, Path] = {}
    lost: dict[str, Path] = {}
    while queue:
        path = queue.pop()
        answer = run("ldd", path, env={"LD_LIBRARY_PATH": str(dist / "lib")}).stdout
        found = {name: Path(place) for name, place in _FOUND.findall(answer)}
        lost |= {name: path for name in _LOST.findall(answer) if name not in own}
        for name in opened(path.read_bytes()):
            place = _LIBRARIES / name
            # What has no version is a linker's name of what has one, or a plugin.
            if place.exists() and not (place.is_symlink() and name.endswith(".so")):
                found.setdefault(name, place)
        for name, place in found.items():
            if name not in own and name not in wanted:
                wanted[name] = place.resolve()
                queue.append(place.resolve())
    if lost:
        raise ToolError(
            "\n".join(f"{path.name} needs {name}, which is not here" for name, path in lost.items())
        )
    return wanted


def opened(content: bytes) -> set[str]:
    """Return the names of libraries that stand among a file's texts."""
    names = set()
    place = content.find(b".so")
    while place != -1:
        around = content[max(0, place - _LONGEST_NAME) : place + _LONGEST_NAME]
        names |= {name.decode() for name in _NAME.findall(around)}
        place = content.find(b".so", place + 1)
    return names


def _is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(4) == _ELF


def _copy_kernels(source: Path, destination: Path) -> None:
    """Copy the kernel files of the target set, and those that are for every target."""
    wanted = {name.partition(":")[0] for name in targets()}
    with_kernels: set[str] = set()
    for path in sorted(source.rglob("*")):
        found = set(_TARGET.findall(path.name))
        if not path.is_file() or (found and not found & wanted):
            continue
        with_kernels |= found & wanted
        place = destination / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        place.chmod(0o644)
    for name in sorted(wanted - with_kernels):
        say(f"{source.name} has no kernel files for {name}")
