"""Whether a product runs on a machine: its manifest against what is known of the machine. Pure.

A misfit would end the product at its start, or at its first use of the GPU; what only may matter
is a note. Both sides are always named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rocbake import blas, host, linkage, passthrough, soname
from rocbake.errors import FitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from rocbake.gpu import Card
    from rocbake.host import Host
    from rocbake.manifest import FileEntry, Manifest

Kind = Literal["libc", "version", "cpu", "rocm", "library", "gpu", "kernels"]

_GLIBC = re.compile(
    r"lib(c|m|dl|rt|pthread|util|resolv|anl|mvec)\.so\.\d|ld-linux-x86-64\.so\.2", re.ASCII
)
_MOST_FILES = 3


@dataclass(frozen=True, slots=True)
class Misfit:
    """One thing that a product needs and the machine has not.

    Attributes:
        kind: For programs.
        needed: What, such as "GLIBC_2.34".
        here: What there is instead, and where.
        files: Files of the product that need it.
        remedy: What would mend it.
    """

    kind: Kind
    needed: str
    here: str
    files: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        more = len(self.files) - _MOST_FILES
        named = ", ".join(self.files[:_MOST_FILES]) + (f" and {more} more" if more > 0 else "")
        return f"{self.needed} is needed{f' by {named}' if named else ''}; here is {self.here}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that came of a check."""

    misfits: tuple[Misfit, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether nothing stands against the product."""
        return not self.misfits


@dataclass(frozen=True, slots=True)
class Beyond:
    """What a manifest does not say, and only the files themselves do.

    Attributes:
        levels: x86-64 level that a file says it needs, by path; above 1 only.
        opened: Names of ROCm's libraries that a file may open when it runs, by path.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    opened: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def look_beyond(folder: Path, manifest: Manifest) -> Beyond:
    """Read from the files of an unpacked product what its manifest does not say.

    Raises:
        BuildError: A file is damaged or cannot be read.
    """
    levels: dict[str, int] = {}
    opened: dict[str, tuple[str, ...]] = {}
    for entry in manifest.files:
        if entry.elf is None:
            continue
        level = linkage.isa_level(folder / entry.path)
        # The loader takes what lies in such a folder only where the processor is good enough.
        if level > 1 and "glibc-hwcaps" not in entry.path.split("/"):
            levels[entry.path] = level
        # What ROCm's own libraries open comes with them.
        if not soname.is_rocm(_name(entry)):
            names = set(filter(soname.is_rocm, linkage.opened(folder / entry.path)))
            if names := names.difference(entry.elf.needed):
                opened[entry.path] = tuple(sorted(names))
    return Beyond(levels, opened)


def check(manifest: Manifest, here: Host, beyond: Beyond | None = None) -> Verdict:
    """Compare what a product needs with what a machine has.

    Args:
        manifest: Of the archive; a bundled one brings its libraries, and asks for the GPU alone.
        here: The machine.
        beyond: What its files say themselves, once they are there.
    """
    beyond = beyond or Beyond()
    misfits: list[Misfit] = []
    notes: list[str] = []
    libc = _libc(manifest, here, notes)
    misfits += libc
    # Of a system with another C library nothing else can be compared.
    if not libc or libc[0].kind != "libc":
        misfits += _versions(manifest, here)
        misfits += _rocm(manifest, here, notes)
        misfits += _libraries(manifest, here)
    misfits += _opened(manifest, here, beyond, notes)
    misfits += _levels(here, beyond, notes)
    misfits += _gpus(manifest, here, notes)
    return Verdict(tuple(misfits), tuple(notes))


def fitting(candidates: Iterable[tuple[str, Manifest]], here: Host) -> tuple[str, ...]:
    """Return the names of those products that fit a machine, the best first.

    One that brings less is better: without libraries of its own, and for fewer targets.

    Args:
        candidates: A name for people, such as the archive's, and its manifest.
        here: The machine.
    """
    good = [(name, one) for name, one in candidates if check(one, here).fits]
    good.sort(key=lambda pair: (pair[1].kind != "plain", len(pair[1].targets)))
    return tuple(name for name, _ in good)


def require(
    verdict: Verdict, name: str, *, instead: Sequence[str] = (), skip: bool = False
) -> tuple[str, ...]:
    """Return what is to be told of a product that may be used.

    Args:
        verdict: What came of the check.
        name: Of the product, for people.
        instead: Commands or names of what would fit, the best first.
        skip: Whether a person wants it all the same; then each misfit is told, and not refused.

    Raises:
        FitError: With every misfit.
    """
    if verdict.fits:
        return verdict.notes
    lines = [str(one) for one in verdict.misfits]
    if skip:
        return (*(f"--no-fit-check passes over: {line}" for line in lines), *verdict.notes)
    remedies = list(dict.fromkeys(one.remedy for one in verdict.misfits))
    raise FitError(
        f"{name} does not fit this machine:\n  " + "\n  ".join(lines),
        hint=f"this one fits: {instead[0]}" if instead else "; ".join(remedies),
    )


def _libc(manifest: Manifest, here: Host, notes: list[str]) -> list[Misfit]:
    needed = manifest.versions.get("GLIBC", "")
    if not any(map(_is_glibc, manifest.needed)):
        return []
    libc = here.libc
    remedy = (
        f"a system with glibc {needed or '2'} or later, the product's image, "
        "or its bundled archive where there is one"
    )
    if libc is None or libc.kind != "glibc":
        there = f"{libc.kind} {libc.version or ''}".strip() if libc else "no C library for x86-64"
        files = _askers(manifest, _is_glibc)
        return [Misfit("libc", f"glibc {needed}".strip(), there, files, remedy)]
    if libc.version is None:
        notes.append(f"{libc.path} does not tell its version, so {needed} was not compared")
        return []
    if _numbers(libc.version) >= _numbers(needed):
        return []
    files = _newer(manifest, "GLIBC", libc.version)
    there = f"glibc {libc.version}, {libc.path}"
    return [Misfit("version", f"GLIBC_{needed}", there, files, remedy)]


def _versions(manifest: Manifest, here: Host) -> list[Misfit]:
    """Compare the versions of other libraries, where they are and give such versions."""
    misfits = []
    for prefix, needed in manifest.versions.items():
        given = (name for name in manifest.needed if prefix in here.versions.get(name, {}))
        name = next(given, None)
        if name is None:
            continue
        best, path = here.versions[name][prefix], here.libraries[name]
        if _numbers(best) < _numbers(needed):
            what = f"{prefix}_{needed}"
            files = _newer(manifest, prefix, best)
            remedy = f"a {name} that has {what}, from a newer release"
            misfits.append(Misfit("version", what, f"{prefix}_{best}, {path}", files, remedy))
    return misfits


def _rocm(manifest: Manifest, here: Host, notes: list[str]) -> list[Misfit]:
    """Compare ROCm's first number; that there is none at all, its libraries tell.

    It decides nothing where every library is there: 10 has the sonames of 7.
    """
    asked = [name for name in manifest.needed if soname.is_rocm(name)]
    if not (manifest.rocm and here.rocms and asked):
        return []
    major = int(manifest.rocm.partition(".")[0])
    if any(one.major == major for one in here.rocms):
        return []
    there = " and ".join(f"ROCm {one.version}, {one.place}" for one in here.rocms)
    if here.libraries.keys() >= set(asked):
        notes.append(f"it was built with ROCm {manifest.rocm}; here is {there}")
        return []
    files = _askers(manifest, soname.is_rocm)
    return [Misfit("rocm", f"ROCm {major}", there, files, _install(str(major)))]


def _libraries(manifest: Manifest, here: Host) -> list[Misfit]:
    return [
        _missing(name, _askers(manifest, name.__eq__), here)
        for name in manifest.needed
        if name not in here.libraries
    ]


def _missing(name: str, files: tuple[str, ...], here: Host) -> Misfit:
    """Say of a library that the loader does not find what there is in its place."""
    what = soname.described(name)
    for one in here.rocms:
        if name in one.libraries:
            path = one.libraries[name]
            remedy = f"export LD_LIBRARY_PATH={path.rpartition('/')[0]}"
            there = f"{path}, where the loader does not look"
            return Misfit("library", what, there, files, remedy)
    known = {path: other for one in here.rocms for other, path in one.libraries.items()}
    known |= {path: other for other, path in here.libraries.items()}
    stem = name.partition(".so")[0] + ".so."
    # libfoo.so.1.2 is the file behind libfoo.so.1.
    others = [
        f"{path.rpartition('/')[0]}/{soname.described(other)}"
        for path, other in sorted(known.items())
        if other.startswith(stem) and other.removeprefix(stem).isdigit()
    ]
    remedy = f"this system's package that has {name}"
    if soname.is_rocm(name):
        releases = " or ".join(map(str, soname.releases_of(name)))
        remedy = _install(releases) if releases else f"the package of ROCm that has {name}"
    return Misfit("library", what, " and ".join(others) or "none", files, remedy)


def _install(releases: str) -> str:
    return f"ROCm {releases}, or the product's bundled archive or image, which bring their own"


def _opened(manifest: Manifest, here: Host, beyond: Beyond, notes: list[str]) -> list[Misfit]:
    """Look for the libraries that files name in their data; any one of several numbers does."""
    inside = {_name(entry) for entry in manifest.files}
    inside |= {entry.elf.soname for entry in manifest.files if entry.elf and entry.elf.soname}
    by_library: dict[str, dict[str, list[str]]] = {}
    for path, names in beyond.opened.items():
        for name in names:
            by_library.setdefault(name.partition(".so")[0], {}).setdefault(name, []).append(path)
    misfits = []
    for askers in by_library.values():
        # What is needed as well is told of already.
        if not inside.union(here.libraries, manifest.needed).isdisjoint(askers):
            continue
        name = max(askers, key=_numbers)
        files = tuple(dict.fromkeys(path for paths in askers.values() for path in paths))
        if soname.computes(name) and name[-1].isdigit():
            misfits.append(_missing(name, files, here))
        else:
            notes.append(f"{name} is not here; {files[0]} may open it when it runs")
    return misfits


def _levels(here: Host, beyond: Beyond, notes: list[str]) -> list[Misfit]:
    level = max(beyond.levels.values(), default=1)
    files = tuple(path for path, one in beyond.levels.items() if one == level)
    if level == 1:
        return []
    if here.cpu_level is None:
        notes.append(f"x86-64-v{level} is needed; the processor's features could not be read")
        return []
    if here.cpu_level >= level:
        return []
    lacks = ", ".join(host.missing_features(here.cpu_features, level))
    there = f"x86-64-v{here.cpu_level}, without {lacks}"
    remedy = f"a build without -march=x86-64-v{level} and -march=native"
    return [Misfit("cpu", f"x86-64-v{level}", there, files, remedy)]


def _gpus(manifest: Manifest, here: Host, notes: list[str]) -> list[Misfit]:
    cards = here.gpus.cards
    if not manifest.targets:
        if cards:
            notes.append("no code for a GPU is in it: it computes on the processor")
        return []
    if not cards:
        why = f": {here.gpus.absence.message}" if here.gpus.absence else ""
        notes.append(f"no GPU was compared with {', '.join(manifest.targets)}{why}")
        return []
    served = [card for card in cards if passthrough.has_code(manifest.targets, card.target)]
    if not served:
        return [
            Misfit(
                "gpu",
                f"a GPU of {' or '.join(manifest.targets)}",
                ", ".join(map(_listed, cards)),
                tuple(entry.path for entry in manifest.files if entry.code_objects),
                f"invoke build --recipe {manifest.name} --target {cards[0].target}",
            )
        ]
    for card in served:
        running = [one for one in manifest.targets if passthrough.has_code([one], card.target)]
        if all(":" in one for one in running):
            notes.append(
                f"{', '.join(running)} runs only where the driver has set these features so"
            )
    if len(served) < len(cards):
        shown = ",".join(str(card.index) for card in served)
        others = ", ".join(_listed(card) for card in cards if card not in served)
        notes.append(f"it has no code for {others}: export HIP_VISIBLE_DEVICES={shown}")
    return _kernels(manifest, here, served, notes)


def _kernels(
    manifest: Manifest, here: Host, served: Sequence[Card], notes: list[str]
) -> list[Misfit]:
    """Look for the BLAS kernel files of the cards, in the archive or beside the machine's own."""
    wants = _askers(manifest, lambda name: blas.is_wanted([name]))
    asked = [name for name in manifest.needed if blas.is_wanted([name])]
    brings = not asked
    if not wants or not here.libraries.keys() >= set(asked):
        return []
    found = blas.coverage(entry.path for entry in manifest.files) if brings else here.kernels
    lacking = [card for card in served if not found.of(card.target)]
    known = ", ".join(sorted(found.rocblas | found.hipblaslt)) or "no GPU"
    where = "in the archive" if brings else "beside this machine's rocBLAS"
    if len(lacking) == len(served):
        what = f"a BLAS kernel file for {' or '.join(card.target for card in lacking)}"
        remedy = (
            f"invoke build --recipe {manifest.name} --target {lacking[0].target}"
            if brings
            else "a rocBLAS that was built for it, or the product's bundled archive"
        )
        return [Misfit("kernels", what, f"{where} those for {known}", wants, remedy)]
    notes += [f"no BLAS kernel file for {_listed(card)} is {where}" for card in lacking]
    return []


def _listed(card: Card) -> str:
    return f"{card.target} ({card.product})"


def _name(entry: FileEntry) -> str:
    return entry.path.rpartition("/")[2]


def _is_glibc(name: str) -> bool:
    return _GLIBC.fullmatch(name) is not None


def _askers(manifest: Manifest, wanted: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the files that ask for a library of this kind."""
    return tuple(
        entry.path
        for entry in manifest.files
        if entry.elf and any(wanted(name) for name in entry.elf.needed)
    )


def _newer(manifest: Manifest, prefix: str, version: str) -> tuple[str, ...]:
    """Return the files that ask for a newer version than this."""
    return tuple(
        entry.path
        for entry in manifest.files
        if entry.elf and _numbers(entry.elf.versions.get(prefix, "")) > _numbers(version)
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,9}", version)))
