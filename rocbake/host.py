"""Facts of a machine that decide whether a product runs on it: libraries, processor, ROCm, GPUs.

Pure over a root folder, so an unpacked image can be asked as well; nothing is run. What cannot be
read is missing, and no error here. What the facts mean for a product is for rocbake.fit.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rocbake import blas, elf, gpu, linkage, loader, target
from rocbake.errors import BuildError, NoGpuError, TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rocbake.gpu import Gpus, Look
    from rocbake.target import Target

_MUSL = "/lib/ld-musl-x86_64.so.1"
_LONGEST_TEXT = 4 << 20
# Libraries that give versions of their own, and are asked for some of them.
_VERSIONED = re.compile(r"lib(stdc\+\+|gcc_s|amdhip64)\.so\.\d+")
_HIP = re.compile(r"libamdhip64\.so\.(\d+)")
_BLAS = re.compile(r"lib(rocblas|hipblaslt)\.so\.\d+")

# https://gitlab.com/x86-psABIs/x86-64-ABI, "micro-architecture levels", by the kernel's names:
# https://github.com/torvalds/linux/blob/master/arch/x86/include/asm/cpufeatures.h
_LEVELS = (
    "lm cmov cx8 fpu fxsr mmx syscall sse sse2",
    "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "avx512f avx512bw avx512cd avx512dq avx512vl",
)


@dataclass(frozen=True, slots=True)
class Libc:
    """The C library.

    Attributes:
        kind: A program is made for one of them.
        version: Such as "2.36"; None if it could not be read.
        path: Where it is.
    """

    kind: Literal["glibc", "musl"]
    version: str | None
    path: str


@dataclass(frozen=True, slots=True)
class Rocm:
    """A ROCm that is installed.

    Attributes:
        version: Such as "7.2.4"; of one that only its libraries tell of, its runtime's number.
        place: Its folder, or its HIP runtime.
        libraries: Path of each soname in it, whether the loader looks there or not.
    """

    version: str
    place: str
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def major(self) -> int:
        """The first number of its version."""
        return int(self.version.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Host:
    """What is known of a machine; paths are as programs on it name them.

    Attributes:
        libc: None if there is none for x86-64.
        libraries: Path of each soname that the loader finds.
        versions: Highest symbol version that a library gives, by soname and prefix.
        cpu_features: As /proc/cpuinfo names them; empty if it says nothing.
        rocms: Every ROCm, whether the loader looks there or not.
        kernels: For which processors its BLAS libraries have kernel files.
        gpus: As rocbake.gpu finds them.
    """

    libc: Libc | None
    libraries: Mapping[str, str]
    versions: Mapping[str, Mapping[str, str]]
    cpu_features: frozenset[str]
    rocms: tuple[Rocm, ...]
    kernels: blas.Coverage
    gpus: Gpus

    @property
    def cpu_level(self) -> int | None:
        """The x86-64 level, 1 to 4; None if it is not known."""
        return cpu_level(self.cpu_features) if self.cpu_features else None


def read(
    root: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    *,
    look: Look = Path.stat,
) -> Host:
    """Read the facts of the machine, or the unpacked image, whose root folder this is.

    Args:
        root: The root folder; links in it are followed within it.
        environment: Of the shell that will run the product: LD_LIBRARY_PATH, ROCM_PATH.
        look: As for gpu.discover.
    """
    environment = environment or {}
    libraries = loader.find(root, environment.get("LD_LIBRARY_PATH", ""))
    versions = {
        soname: found
        for soname, path in libraries.items()
        if _VERSIONED.fullmatch(soname) and (found := _versions(root, soname, path))
    }
    rocms = _rocms(root, environment.get("ROCM_PATH", ""), libraries)
    everywhere = {soname: path for one in reversed(rocms) for soname, path in one.libraries.items()}
    return Host(
        libc=_libc(root, libraries),
        libraries=libraries,
        versions=versions,
        cpu_features=parse_cpuinfo(_text(root, "/proc/cpuinfo")),
        rocms=rocms,
        kernels=blas.coverage(_kernel_files(root, everywhere | libraries)),
        gpus=gpu.discover(root, look=look),
    )


def card_target(found: Gpus) -> Target:
    """Return the target of the GPU in a machine, where all that can compute have the same.

    Raises:
        NoGpuError: There is none.
        TargetError: There are several different ones, or one that is not in the table.
    """
    if not found.cards:
        why = found.absence
        raise NoGpuError(
            f"no target is given, and none can be taken from a GPU: "
            f"{why.message if why else 'KFD lists none'}",
            hint="--target gfx1201, or whatever it is for; invoke list --targets prints them",
        )
    names = dict.fromkeys(card.target for card in found.cards)
    if len(names) > 1:
        there = ", ".join(f"{card.target} ({card.product})" for card in found.cards)
        # Programs that take an APU beside the card that was meant are a usual fault.
        first = min(found.cards, key=lambda card: (card.is_apu, card.index))
        raise TargetError(
            f"no target is given, and the GPUs here differ: {there}",
            hint=f"--target {first.target}, or --target {','.join(names)} for all of them",
        )
    return target.parse_target(found.cards[0].target)


def parse_cpuinfo(text: str) -> frozenset[str]:
    r"""Return the features that all processors of a /proc/cpuinfo have; of others than x86, none.

    >>> sorted(parse_cpuinfo("processor: 0\nflags\t: sse avx\n\nflags\t: sse\n"))
    ['sse']
    """
    lines = re.findall(r"^flags[ \t]*:(.*)$", text, re.MULTILINE)
    each = [frozenset(line.split()) for line in dict.fromkeys(lines)]
    return frozenset.intersection(*each) if each else frozenset()


def cpu_level(features: Iterable[str]) -> int:
    """Return the highest x86-64 level whose features, and all of those below, are there; or 0."""
    there = set(features)
    level = 0
    for names in _LEVELS:
        if not there.issuperset(names.split()):
            break
        level += 1
    return level


def missing_features(features: Iterable[str], level: int) -> tuple[str, ...]:
    """Return what a processor lacks of an x86-64 level and of those below."""
    there = set(features)
    return tuple(name for names in _LEVELS[:level] for name in names.split() if name not in there)


def _versions(root: Path, soname: str, path: str) -> dict[str, str]:
    """Return the highest version of each prefix that a library gives."""
    try:
        names = linkage.defined_versions(loader.inside(root, path))
    except BuildError:
        return {}
    given = tuple(elf.SymbolVersion(soname, name) for name in names)
    return elf.newest_versions([elf.ElfFacts("DYN", "X86_64", 64, versions=given)])


def _libc(root: Path, libraries: Mapping[str, str]) -> Libc | None:
    """Find the C library, and its version in what it prints when it is started."""
    kind: Literal["glibc", "musl"]
    if "libc.so.6" in libraries:
        # Not from the versions that it gives: 2.31 brought new functions to libm alone.
        kind, path, says = "glibc", libraries["libc.so.6"], rb"release version (\d+\.\d+)"
    elif loader.inside(root, _MUSL).is_file():
        # https://git.musl-libc.org/cgit/musl/tree/src/internal/version.c
        kind, path, says = "musl", _MUSL, rb"\0(\d\.\d{1,2}\.\d{1,2})[\0-]"
    else:
        return None
    version = re.search(says, loader.read(root, path))
    return Libc(kind, version[1].decode() if version else None, path)


def _rocms(root: Path, named: str, libraries: Mapping[str, str]) -> tuple[Rocm, ...]:
    """Find every ROCm: below /opt, where ROCM_PATH says, and by the runtimes the loader finds."""
    places = [named] if named.startswith("/") else []
    places.append("/opt/rocm")
    places += [f"/opt/{name}" for name in loader.names(root, "/opt") if name[:5] == "rocm-"]
    # Since 7.14: https://github.com/ROCm/TheRock/issues/4286
    places += [
        f"/opt/rocm/{name}" for name in loader.names(root, "/opt/rocm") if name[:5] == "core-"
    ]
    found: dict[Path, Rocm] = {}
    for place in places:
        here: dict[str, str] = {}
        loader.add(here, root, [f"{place.rstrip('/')}/lib", f"{place.rstrip('/')}/lib64"])
        majors = [match[1] for name in here if (match := _HIP.fullmatch(name))]
        version = _rocm_version(root, place) or next(iter(majors), None)
        if version:
            found.setdefault(loader.inside(root, place), Rocm(version, place, here))
    for name, path in libraries.items():
        real = loader.inside(root, path)
        runtime = _HIP.fullmatch(name)
        # Of a distribution's own ROCm nothing but the soname tells the release.
        if runtime and not any(real.is_relative_to(folder) for folder in found):
            found[real] = Rocm(runtime[1], path)
    return tuple(found.values())


def _rocm_version(root: Path, place: str) -> str | None:
    found = re.match(r"\d{1,3}\.\d{1,3}(\.\d{1,3})?", _text(root, f"{place}/.info/version"))
    if found:
        return found[0]
    for name in ("include/rocm-core/rocm_version.h", "include/rocm_version.h"):
        numbers = dict(
            re.findall(
                r"^[ \t]*#[ \t]*define[ \t]+ROCM_VERSION_(MAJOR|MINOR|PATCH)[ \t]+(\d{1,3})\b",
                _text(root, f"{place}/{name}"),
                re.MULTILINE,
            )
        )
        if len(numbers) == 3:  # noqa: PLR2004 - as many as are asked for
            return f"{numbers['MAJOR']}.{numbers['MINOR']}.{numbers['PATCH']}"
    return None


def _kernel_files(root: Path, libraries: Mapping[str, str]) -> Iterator[str]:
    """Yield the files beside the BLAS libraries, from the folder with the library's name on."""
    for soname, path in libraries.items():
        if found := _BLAS.fullmatch(soname):
            # A soname is a link, and the library looks beside itself.
            top = loader.inside(root, path).parent
            for folder, _, names in os.walk(top / found[1]):
                inner = Path(folder).relative_to(top).as_posix()
                yield from (f"{inner}/{name}" for name in names)


def _text(root: Path, path: str) -> str:
    return loader.read(root, path, _LONGEST_TEXT).decode(errors="replace")
