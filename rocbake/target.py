"""GPU targets: the one table of their names, and how text becomes a target set.

A target is what a compiler is told with `--offload-arch`; a target set is what one build is for.
Nothing here looks at this machine: a build has no GPU, so targets are always given by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocbake.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_HINT = "invoke list --targets prints every target"

# An OCI tag ends at 128 characters; what is put before a set's tag needs its share.
LONGEST_TAG = 96


@dataclass(frozen=True, slots=True)
class Processor:
    """One row of the table: what is known about a GPU's instruction set.

    Attributes:
        name: LLVM's name of it, without features.
        machine: The number in the lowest byte of e_flags of a code object's ELF header.
        products: Cards and chips that have it, as AMD or LLVM name them; empty if none is named.
        families: TheRock's names for groups that it is in; empty where TheRock does not build it.
        is_apu: Whether it shares the processor's memory; None if that is not said, or both exist.
        since: The first ROCm release whose rocBLAS, or else whose compiler, is known to be built
            for it; "5.6" also stands for older ones; None if nothing can be said.
        features: What may be switched on or off for it, in LLVM's order.
        generic: The generic instruction set that runs on it too, or None.
        works_with: What is known to work on it, of TRAITS.
    """

    name: str
    machine: int
    products: str = ""
    families: tuple[str, ...] = ()
    is_apu: bool | None = None
    since: str | None = None
    features: tuple[str, ...] = ()
    generic: str | None = None
    works_with: tuple[str, ...] = ()


# What the rules of build options may ask of a target, and what it means.
TRAITS = {
    "apu": "shares the processor's memory",
    "discrete": "has memory of its own",
    "vmm": "a discrete card on which ggml is known to work with HIP virtual memory management",
    "hipblaslt": "hipBLASLt of ROCm 7.2, as Debian builds it, has kernels for it",
}

_XNACK = ("xnack",)
_BOTH = ("sramecc", "xnack")

# In the order in which a target set is written: by number, a generic one before its members.
# Numbers, features and generic sets: each row was compiled with Clang 22 and its ELF header read;
#   products, dGPU and APU: https://llvm.org/docs/AMDGPUUsage.html#processors and
#   https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html
# Families: https://github.com/ROCm/TheRock/blob/main/cmake/therock_amdgpu_targets.cmake
# Releases: the TARGET_LIST_ROCM_* of
#   https://github.com/ROCm/rocm-libraries/blob/develop/projects/rocblas/CMakeLists.txt;
#   gfx125x: device libraries, https://github.com/ROCm/llvm-project/pull/553, first in 7.2
# vmm: the cards that audio.cpp switches it on for, https://github.com/0xShug0/audio.cpp, in
#   scripts/install_arch_amd.sh; ggml has it off, as it fails on cards that nobody can name:
#   https://github.com/ggml-org/llama.cpp/pull/11420
# hipblaslt: the names of the kernel files in Debian's libhipblaslt1 7.2.4. Upstream's own list has
#   gfx942, gfx950, gfx1103 and gfx1150 as well, but not gfx1102:
#   https://github.com/ROCm/rocm-libraries/blob/develop/projects/hipblaslt/cmake/tensilelite_supported_architectures.cmake
PROCESSORS: tuple[Processor, ...] = (
    Processor("gfx9-generic", 0x51, features=_XNACK),
    Processor(
        "gfx900",
        0x2C,
        "Radeon RX Vega 56, RX Vega 64, Instinct MI25",
        ("gfx900-dgpu",),
        is_apu=False,
        since="5.6",
        features=_XNACK,
        generic="gfx9-generic",
    ),
    Processor(
        "gfx902",
        0x2D,
        "Ryzen 3 2200G, Ryzen 5 2400G",
        is_apu=True,
        features=_XNACK,
        generic="gfx9-generic",
    ),
    Processor("gfx904", 0x2E, is_apu=False, features=_XNACK, generic="gfx9-generic"),
    Processor(
        "gfx906",
        0x2F,
        "Radeon VII, Radeon Pro VII, Instinct MI50, MI60",
        ("gfx906-dgpu",),
        is_apu=False,
        since="5.6",
        features=_BOTH,
        generic="gfx9-generic",
    ),
    Processor(
        "gfx908",
        0x30,
        "Instinct MI100",
        ("gfx908-dcgpu",),
        is_apu=False,
        since="5.6",
        features=_BOTH,
        works_with=("hipblaslt",),
    ),
    Processor("gfx909", 0x31, is_apu=True, features=_XNACK, generic="gfx9-generic"),
    Processor(
        "gfx90a",
        0x3F,
        "Instinct MI210, MI250, MI250X",
        ("gfx90a-dcgpu",),
        is_apu=False,
        since="5.6",
        features=_BOTH,
        works_with=("hipblaslt",),
    ),
    Processor(
        "gfx90c",
        0x32,
        "Renoir, Lucienne, Cezanne: Ryzen 7 4700G and others",
        ("gfx90c-igpu",),
        is_apu=True,
        features=_XNACK,
        generic="gfx9-generic",
    ),
    Processor("gfx9-4-generic", 0x5F, features=_BOTH),
    Processor(
        "gfx942",
        0x4C,
        "Instinct MI300A, MI300X, MI325X",
        ("gfx94X-dcgpu", "gfx94X-all"),
        since="5.7",
        features=_BOTH,
        generic="gfx9-4-generic",
    ),
    Processor(
        "gfx950",
        0x4F,
        "Instinct MI350X, MI355X",
        ("gfx950-dcgpu", "gfx950-all"),
        is_apu=False,
        since="7.0",
        features=_BOTH,
        generic="gfx9-4-generic",
    ),
    Processor("gfx10-1-generic", 0x52, features=_XNACK),
    Processor(
        "gfx1010",
        0x33,
        "Radeon RX 5700, RX 5700 XT, Pro 5600 XT, Pro 5600M",
        ("gfx101X-dgpu", "gfx101X-all"),
        is_apu=False,
        since="5.6",
        features=_XNACK,
        generic="gfx10-1-generic",
    ),
    Processor(
        "gfx1011",
        0x34,
        "Radeon Pro V520",
        ("gfx101X-dgpu", "gfx101X-all"),
        is_apu=False,
        features=_XNACK,
        generic="gfx10-1-generic",
    ),
    Processor(
        "gfx1012",
        0x35,
        "Radeon RX 5500, RX 5500 XT, Pro W5500",
        ("gfx101X-dgpu", "gfx101X-all"),
        is_apu=False,
        since="5.6",
        features=_XNACK,
        generic="gfx10-1-generic",
    ),
    Processor("gfx1013", 0x42, is_apu=True, features=_XNACK, generic="gfx10-1-generic"),
    Processor("gfx10-3-generic", 0x53),
    Processor(
        "gfx1030",
        0x36,
        "Radeon RX 6800, RX 6800 XT, RX 6900 XT, RX 6950 XT, PRO W6800, PRO V620",
        ("gfx103X-dgpu", "gfx103X-all"),
        is_apu=False,
        since="5.6",
        generic="gfx10-3-generic",
    ),
    Processor(
        "gfx1031",
        0x37,
        "Radeon RX 6700, RX 6700 XT, RX 6750 XT",
        ("gfx103X-dgpu", "gfx103X-all"),
        is_apu=False,
        generic="gfx10-3-generic",
    ),
    Processor(
        "gfx1032",
        0x38,
        "Radeon RX 6600, RX 6600 XT, RX 6650 XT, PRO W6600",
        ("gfx103X-dgpu", "gfx103X-all"),
        is_apu=False,
        generic="gfx10-3-generic",
    ),
    Processor(
        "gfx1033",
        0x39,
        "Van Gogh",
        ("gfx103X-igpu", "gfx103X-all"),
        is_apu=True,
        generic="gfx10-3-generic",
    ),
    Processor(
        "gfx1034",
        0x3E,
        "Radeon RX 6500 XT",
        ("gfx103X-dgpu", "gfx103X-all"),
        is_apu=False,
        generic="gfx10-3-generic",
    ),
    Processor(
        "gfx1035",
        0x3D,
        "Radeon 680M",
        ("gfx103X-igpu", "gfx103X-all"),
        is_apu=True,
        generic="gfx10-3-generic",
    ),
    Processor(
        "gfx1036",
        0x45,
        "Raphael",
        ("gfx103X-igpu", "gfx103X-all"),
        is_apu=True,
        generic="gfx10-3-generic",
    ),
    Processor("gfx11-generic", 0x54),
    Processor(
        "gfx1100",
        0x41,
        "Radeon RX 7900 XTX, RX 7900 XT, RX 7900 GRE, PRO W7900, PRO W7800",
        ("gfx110X-dgpu", "gfx110X-all"),
        is_apu=False,
        since="5.6",
        generic="gfx11-generic",
        works_with=("vmm", "hipblaslt"),
    ),
    Processor(
        "gfx1101",
        0x46,
        "Radeon RX 7800 XT, RX 7700 XT, PRO W7700, PRO V710",
        ("gfx110X-dgpu", "gfx110X-all"),
        is_apu=False,
        since="5.6",
        generic="gfx11-generic",
        works_with=("vmm", "hipblaslt"),
    ),
    Processor(
        "gfx1102",
        0x47,
        "Radeon RX 7600, RX 7700S",
        ("gfx110X-dgpu", "gfx110X-all"),
        is_apu=False,
        since="5.6",
        generic="gfx11-generic",
        works_with=("vmm", "hipblaslt"),
    ),
    Processor(
        "gfx1103",
        0x44,
        "Radeon 780M",
        ("gfx110X-igpu", "gfx110X-all"),
        is_apu=True,
        since="7.1",
        generic="gfx11-generic",
    ),
    Processor(
        "gfx1150",
        0x43,
        "Strix Point",
        ("gfx115X-igpu", "gfx115X-all"),
        is_apu=True,
        since="7.0",
        generic="gfx11-generic",
    ),
    Processor(
        "gfx1151",
        0x4A,
        "Strix Halo",
        ("gfx115X-igpu", "gfx115X-all"),
        is_apu=True,
        since="6.3",
        generic="gfx11-generic",
        works_with=("hipblaslt",),
    ),
    Processor(
        "gfx1152",
        0x55,
        "Krackan Point",
        ("gfx115X-igpu", "gfx115X-all"),
        is_apu=True,
        generic="gfx11-generic",
    ),
    Processor(
        "gfx1153",
        0x58,
        "Radeon 820M",
        ("gfx115X-igpu", "gfx115X-all"),
        is_apu=True,
        generic="gfx11-generic",
    ),
    Processor("gfx12-generic", 0x59),
    Processor(
        "gfx1200",
        0x48,
        "Radeon RX 9060, RX 9060 XT",
        ("gfx120X-all",),
        is_apu=False,
        since="6.3",
        generic="gfx12-generic",
        works_with=("vmm", "hipblaslt"),
    ),
    Processor(
        "gfx1201",
        0x4E,
        "Radeon RX 9070, RX 9070 XT, RX 9070 GRE",
        ("gfx120X-all",),
        is_apu=False,
        since="6.3",
        generic="gfx12-generic",
        works_with=("vmm", "hipblaslt"),
    ),
    Processor(
        "gfx1250",
        0x49,
        "Instinct MI450, MI450X, MI455X",
        ("gfx125X-dcgpu", "gfx125X-all"),
        since="7.2",
    ),
    Processor("gfx1251", 0x5A, since="7.2"),
)

_BY_NAME = {processor.name: processor for processor in PROCESSORS}
_BY_MACHINE = {processor.machine: processor for processor in PROCESSORS}
_RANK = {processor.name: rank for rank, processor in enumerate(PROCESSORS)}
_MEMBERS = {
    name: tuple(processor for processor in PROCESSORS if processor.generic == name)
    for name in {processor.generic for processor in PROCESSORS if processor.generic}
}
_KINDS = {True: ("apu",), False: ("discrete",), None: ()}

# Groups of our own beside TheRock's: what most people who hand archives on want to serve.
_OWN_GROUPS = {
    "portable": (
        "gfx1100",
        "gfx1101",
        "gfx1102",
        "gfx1103",
        "gfx1150",
        "gfx1151",
        "gfx1200",
        "gfx1201",
    ),
    "rdna4": ("gfx1200", "gfx1201"),
}


def _groups() -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for processor in PROCESSORS:
        for family in processor.families:
            groups[family] = (*groups.get(family, ()), processor.name)
    return groups | _OWN_GROUPS


# Every name that stands for more than itself, and what it stands for.
GROUPS: dict[str, tuple[str, ...]] = _groups()


@dataclass(frozen=True, slots=True)
class Target:
    """A processor, and the features that are fixed for it.

    Attributes:
        processor: The row of the table.
        features: Such as ("sramecc+", "xnack-"), in LLVM's order; a feature that is not named
            compiles code that runs either way.
    """

    processor: Processor
    features: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ":".join((self.processor.name, *self.features))


@dataclass(frozen=True, slots=True)
class TargetSet:
    """What one build is for: at least one target, sorted, none twice, none in conflict."""

    targets: tuple[Target, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The targets as LLVM writes them, in the order of the table."""
        return tuple(str(target) for target in self.targets)

    @property
    def tag(self) -> str:
        """The set in letters, digits and `_.-`, no two sets alike; at most 96 characters.

        >>> parse_target_set(["gfx1201,gfx90a:xnack+"]).tag
        'gfx90a.xnack-on_gfx1201'
        """
        tag = "_".join(
            ".".join((target.processor.name, *map(_feature_tag, target.features)))
            for target in self.targets
        )
        if len(tag) <= LONGEST_TAG:
            return tag
        import hashlib  # noqa: PLC0415 - only sets of a dozen targets need it

        digest = hashlib.sha256(str(self).encode()).hexdigest()
        return f"{self.targets[0].processor.name}_and-{len(self.targets) - 1}-more_{digest[:32]}"

    def __str__(self) -> str:
        return ",".join(self.names)


def _feature_tag(feature: str) -> str:
    return feature[:-1] + ("-on" if feature.endswith("+") else "-off")


def name_of_machine(number: int) -> str | None:
    """Return the name behind the lowest byte of a code object's e_flags, or None.

    >>> name_of_machine(0x4E)
    'gfx1201'
    """
    processor = _BY_MACHINE.get(number)
    return processor.name if processor else None


def parse_target(text: str) -> Target:
    """Read one target, no group.

    Raises:
        TargetError: If it is not exactly a target's name, naming the nearest one.

    >>> str(parse_target("gfx90a:xnack-:sramecc+"))
    'gfx90a:sramecc+:xnack-'
    """
    if text in GROUPS:
        raise TargetError(
            f"target {text!r} is a group, and one target is wanted here: "
            f"one of {', '.join(GROUPS[text])}",
            hint=_HINT,
        )
    return _parse_target(text)


def parse_target_set(values: Sequence[str]) -> TargetSet:
    """Read the target set of one build from comma-separated targets and groups.

    Raises:
        TargetError: If anything is not a name as it stands, or two exclude each other; one
            error tells everything that is wrong.

    >>> str(parse_target_set(["gfx1201,gfx1100", "rdna4"]))
    'gfx1100,gfx1200,gfx1201'
    """
    targets: set[Target] = set()
    problems: list[str] = []
    for value in values:
        for text in value.split(","):
            try:
                targets.update(_parse_element(text, value))
            except TargetError as error:
                problems.append(str(error))
    if not values:
        problems.append("no target is given")
    problems += _conflicts(targets)
    if problems:
        raise _together(problems)
    return TargetSet(tuple(sorted(targets, key=_rank)))


def parse_many(options: Sequence[str]) -> list[TargetSet]:
    """Read one target set from each option, equal ones once, in the order given.

    Raises:
        TargetError: If an option is wrong; one error tells what is wrong with all of them.

    >>> [str(targets) for targets in parse_many(["gfx1201", "rdna4", "gfx1201,gfx1200"])]
    ['gfx1201', 'gfx1200,gfx1201']
    """
    target_sets: dict[TargetSet, None] = {}
    problems: list[str] = []
    for option in options:
        try:
            target_sets[parse_target_set([option])] = None
        except TargetError as error:
            problems.append(str(error))
    if problems:
        raise _together(problems)
    return list(target_sets)


def check_rocm(targets: TargetSet, rocm_version: str) -> None:
    """Refuse targets that a ROCm release is too old for.

    A release newer than everything in the table is trusted to know them all.

    Args:
        targets: What is to be built for.
        rocm_version: Such as "7.2.4"; what follows the dotted numbers does not count.

    Raises:
        TargetError: If the release is older than the first that a target is known to work with,
            or is not a version.
    """
    given = _version(rocm_version)
    if not given:
        raise TargetError(f"ROCm version {_shown(rocm_version)} does not start with a number")
    problems = [
        f"ROCm {rocm_version} is too old for {target}: "
        f"the first release known to be built for it is {target.processor.since}"
        for target in targets.targets
        if target.processor.since is not None and given < _version(target.processor.since)
    ]
    if problems:
        raise _together(problems)


def members(processor: Processor) -> tuple[Processor, ...]:
    """Return what code for a processor runs on: itself alone, or the members of a generic one.

    >>> [member.name for member in members(parse_target("gfx12-generic").processor)]
    ['gfx1200', 'gfx1201']
    """
    return _MEMBERS.get(processor.name, (processor,))


def traits_of(processor: Processor) -> tuple[str, ...]:
    """Return the traits a processor has, in the order of TRAITS; a generic one's are its members'.

    >>> traits_of(parse_target("gfx1151").processor)
    ('apu', 'hipblaslt')
    """
    each = [(*_KINDS[member.is_apu], *member.works_with) for member in members(processor)]
    return tuple(trait for trait in TRAITS if all(trait in own for own in each))


TABLE_HEADER = ("target", "products", "kind", "ROCm", "features", "traits", "generic", "groups")


def table() -> list[tuple[str, ...]]:
    """Return every target as a row of text under TABLE_HEADER; "" where nothing is known."""
    kinds = {True: "APU", False: "discrete", None: ""}
    return [
        (
            processor.name,
            processor.products,
            kinds[processor.is_apu],
            f">= {processor.since}" if processor.since else "",
            " ".join(processor.features),
            " ".join(traits_of(processor)),
            processor.generic or "",
            " ".join(group for group, names in GROUPS.items() if processor.name in names),
        )
        for processor in PROCESSORS
    ]


def _parse_element(text: str, whole: str) -> Iterable[Target]:
    """Read one of the comma-separated names of an option; the option is only for messages."""
    if not text:
        reason = "is empty" if not whole else "has an empty name between its commas"
        correct = ",".join(name for name in whole.split(",") if name)
        advice = f": write {correct[:_SHOWN]}" if correct else ": give a name such as gfx1201"
        raise TargetError(f"target {_shown(whole)} {reason}{advice}")
    if text in GROUPS:
        return [Target(_BY_NAME[name]) for name in GROUPS[text]]
    return [_parse_target(text)]


def _parse_target(text: str) -> Target:
    name, *features = text.split(":")
    processor = _BY_NAME.get(name)
    if processor is None or text != text.strip():
        raise TargetError(f"target {_shown(text)} {_why_unknown(text)}", hint=_HINT)
    wanted: dict[str, str] = {}
    for feature in features:
        key = feature[:-1]
        if feature in processor.features:
            why = f"says {feature} without a sign: write {name}:{feature}+ or {name}:{feature}-"
        elif feature[-1:] not in ("+", "-") or key not in processor.features:
            known = ", ".join(f"{known}+ or {known}-" for known in processor.features) or "none"
            why = f"asks for {_shown(feature)}, which {name} does not have; it has: {known}"
        elif key in wanted:
            why = f"names {key} twice: write {name}:{feature}"
        else:
            wanted[key] = feature
            continue
        raise TargetError(f"target {_shown(text)} {why}", hint=_HINT)
    return Target(processor, tuple(wanted[key] for key in processor.features if key in wanted))


# What compilers and people know as something else than a name.
_NOT_NAMES = {
    "native": "cannot be used, a build sees no GPU: give a name such as gfx1201",
    "gfx": f"names no GPU: give a target such as gfx1201, or one of {', '.join(GROUPS)}",
}


def _why_unknown(text: str) -> str:
    """Say what is wrong with a name that is not in the table, and what to write instead."""
    if not text.strip():
        return "is only blanks: give a name such as gfx1201"
    if text.startswith("-"):
        return "looks like an option that was taken as the value of --target: give a name first"
    if text in _NOT_NAMES:
        return _NOT_NAMES[text]
    trimmed = text.strip()
    known = trimmed in GROUPS or trimmed.partition(":")[0] in _BY_NAME
    if trimmed != text and known and trimmed.isprintable():
        return f"has blanks around it: write {trimmed[:_SHOWN]}"
    parts = [part for part in re.split(r"[\s;+|/]+", trimmed) if part]
    if len(parts) > 1 and all(part in GROUPS or part in _BY_NAME for part in parts):
        return f"must have commas between its names: write {','.join(parts)[:_SHOWN]}"
    nearest = _nearest(trimmed)
    return f"is not known: did you mean {nearest}?" if nearest else "is not known"


_SHOWN = 60


def _shown(text: str) -> str:
    """Return the text as Python writes it, so that blanks show, cut to what can be read."""
    return repr(text) if len(text) <= _SHOWN else repr(text[:_SHOWN]) + "..."


def _nearest(text: str) -> str:
    """Return the name or names most like what was given, or "".

    >>> _nearest("gfx12O1"), _nearest("GFX1201"), _nearest("1201")
    ('gfx1201', 'gfx1201', 'gfx1201')
    """
    import difflib  # noqa: PLC0415 - only a mistake needs it

    names = {name.lower(): name for name in (*_BY_NAME, *GROUPS)}
    name, *features = text[:_SHOWN].lower().split(":")
    if name[:1].isdigit():
        name = f"gfx{name}"
    zeros = name.translate(str.maketrans("oil", "011"))
    for candidate in (name, zeros, re.sub(r"[^0-9a-z]", "", zeros)):
        if candidate in names:
            return ":".join((names[candidate], *filter(str.isprintable, features)))
    close = difflib.get_close_matches(zeros, names, n=3, cutoff=0.7)
    return " or ".join(names[match] for match in close)


def _conflicts(targets: Iterable[Target]) -> list[str]:
    """Find targets that no compiler takes together.

    Clang's rule: a feature is named in all targets of one processor or in none of them.
    """
    first: dict[str, Target] = {}
    problems = []
    for target in sorted(targets, key=_rank):
        other = first.setdefault(target.processor.name, target)
        if _keys(other) != _keys(target):
            problems.append(
                f"targets {other} and {target} exclude each other: a feature is named for all "
                f"of {target.processor.name} or for none"
            )
    return problems


def _keys(target: Target) -> list[str]:
    return [feature[:-1] for feature in target.features]


def _rank(target: Target) -> tuple[int, tuple[str, ...]]:
    return _RANK[target.processor.name], target.features


def _version(text: str) -> tuple[int, ...]:
    """Return the dotted numbers that the text starts with; () if there are none."""
    match = re.match(r"[0-9]{1,9}(\.[0-9]{1,9})*", text)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def _together(problems: list[str]) -> TargetError:
    return TargetError("\n".join(dict.fromkeys(problems)), hint=_HINT)
