"""Findings about GPUs, their driver, and what keeps containers from them.

Pure: what was found on the machine is told by the caller. Nothing here is a failure, for building
needs no GPU. Where nothing is known, nothing is said.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rocbake import access, passthrough
from rocbake.finding import Finding
from rocbake.gpu import NodeKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from rocbake.gpu import Card, DeviceNode, Gpus
    from rocbake.machine import Device, Machine
    from rocbake.passthrough import EngineFacts

Version = tuple[int, int]

FIRMWARE = "/lib/firmware/amdgpu"
# What one compiler of HIP may need: it compiles every kernel of a file for every target.
# https://github.com/ggml-org/llama.cpp/issues/17844
COMPILER_BYTES = 2 << 30

_READ_WRITE = 0o6
_SEVERAL = 2
_NOBODY = 65534
_LOOK_AT_KERNEL = "sudo dmesg | grep -iE 'amdgpu|kfd'"

# The first kernel whose amdkfd knows any of a family. Older ones know none: only that is used.
# Tags of https://gitlab.freedesktop.org/agd5f/linux, whose pull requests list what is new:
#   GC 9.4.3: amd-drm-next-6.5-2023-06-02     GC 11.0: amd-drm-next-5.19-2022-05-11
#   GC 11.5:  amd-drm-next-6.7-2023-10-13     GC 12.0: amd-drm-next-6.11-2024-06-07
# Which GC is which target:
# https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_device.c
_FIRST_KERNELS: tuple[tuple[str, Version], ...] = (
    ("gfx942", (6, 5)),
    ("gfx110", (5, 19)),
    ("gfx11-generic", (5, 19)),
    ("gfx115", (6, 7)),
    ("gfx120", (6, 11)),
    ("gfx12-generic", (6, 11)),
)

# How the files begin that amdgpu loads for a card of a target: gc_12_0_1_pfp.bin and others.
# https://gitlab.com/kernel-firmware/linux-firmware/-/tree/main/amdgpu
_FIRMWARE_OF: dict[str, tuple[str, ...]] = {
    "gfx942": ("gc_9_4_3", "gc_9_4_4"),
    "gfx1100": ("gc_11_0_0",),
    "gfx1101": ("gc_11_0_3",),
    "gfx1102": ("gc_11_0_2",),
    "gfx1103": ("gc_11_0_1", "gc_11_0_4"),
    "gfx1150": ("gc_11_5_0",),
    "gfx1151": ("gc_11_5_1",),
    "gfx1152": ("gc_11_5_2",),
    "gfx1200": ("gc_12_0_0",),
    "gfx1201": ("gc_12_0_1",),
}


class _OldestDriver(NamedTuple):
    """The oldest module of AMD's own package that AMD names for a ROCm release and later ones.

    Attributes:
        rocm: The release.
        driver: Version of the module.
        came_with: The ROCm release that the module came with.
    """

    rocm: Version
    driver: Version
    came_with: str


# Highest release first.
# https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/user-kernel-space-compat-matrix.html
# and, for 7.2, https://rocm.docs.amd.com/en/docs-7.2.4/about/release-notes.html
_OLDEST_DRIVERS = (
    _OldestDriver((7, 2), (6, 10), "6.3"),
    _OldestDriver((7, 0), (6, 8), "6.2"),
)

# Since then KFD gives an APU the host's memory, and not only what the firmware set aside:
# https://github.com/torvalds/linux/commit/89773b85599affe89dfc030aa1cb70d6ca7de4d3
_FIRST_WITH_HOST_MEMORY = (6, 10)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What matters besides the hardware.

    Attributes:
        uid: User that runs rocbake.
        groups: All its groups.
        targets: Those that the artifacts have code for.
        releases: ROCm releases of the artifacts.
        firmware: Names in /lib/firmware/amdgpu; None if there is no such folder.
        may_use_dri: SELinux's boolean container_use_dri_devices; None if there is none to read.
    """

    uid: int = 0
    groups: tuple[int, ...] = ()
    targets: frozenset[str] = frozenset()
    releases: frozenset[str] = frozenset()
    firmware: frozenset[str] | None = None
    may_use_dri: bool | None = None


def examine(
    gpus: Gpus,
    machine: Machine,
    *,
    engine: EngineFacts | None,
    environment: Mapping[str, str],
    around: Surroundings = Surroundings(),
) -> Iterator[Finding]:
    """Look at everything between a program in a container and a GPU, and at memory for building.

    Args:
        gpus: What was found.
        machine: The machine; its memory and processors are those that builds may take.
        engine: The engine; None if none answers.
        environment: Variables of the shell.
        around: What else matters.
    """
    yield from _memory(machine)
    yield from _cards(gpus, engine, around)
    if engine and gpus.cards:
        yield from _passing(engine, gpus)
    yield from _driver(machine, gpus, around.releases)
    yield from _kernel(machine, gpus, around.targets)
    yield from _firmware(machine, gpus, around)
    yield from _iommu(machine, gpus)
    yield from _video_memory(machine, gpus)
    yield from _confinement(machine, gpus, may_use_dri=around.may_use_dri)
    yield from _environment(environment)


def size(count: int) -> str:
    """Return a number of bytes for people, in powers of two, as memory is sold.

    >>> size(16 << 30), size(256 << 20)
    ('16.0 GiB', '0.25 GiB')
    """
    return f"{round(count / 2**30, 2)} GiB"


def _memory(machine: Machine) -> Iterator[Finding]:
    if not machine.memory or not machine.cpus:
        return
    fit = max(1, machine.memory // COMPILER_BYTES)
    about = f"{size(machine.memory)} and {machine.cpus} processors"
    if machine.cpus <= fit:
        yield Finding(
            subject="memory", says=f"{about}: enough for {machine.cpus} compilers at a time"
        )
        return
    # https://docs.docker.com/build/builders/drivers/docker-container/
    processors = "0" if fit == 1 else f"0-{fit - 1}"
    yield Finding(
        subject="memory",
        says=f"{about}: a build starts {machine.cpus} compilers at a time, which may take "
        f"{size(COMPILER_BYTES)} each; there is room for {fit}",
        remedy=f"docker buildx create --use --driver-opt cpuset-cpus={processors}",
    )


def _cards(gpus: Gpus, engine: EngineFacts | None, around: Surroundings) -> Iterator[Finding]:
    for card in gpus.cards:
        text = f"{_title(card)}, {card.product}, {size(card.memory)}: {_shown(card.render)}"
        closed = [node for node in (gpus.kfd, card.render) if _is_closed(node, engine, around)]
        if card.render.kind is not NodeKind.CHARACTER:
            yield Finding(subject="gpu", says=text, remedy=_LOOK_AT_KERNEL)
        elif closed:
            names = " and ".join(node.path for node in closed)
            yield Finding(
                subject="gpu",
                says=f"{text}; {_whom(closed[0], engine)} read and write {names}",
                remedy=_remedy(closed[0], engine, around),
            )
        else:
            yield Finding(subject="gpu", says=text)
    for one in gpus.strangers:
        says = f"{one.product} at {one.pci} cannot compute: {one.why}"
        yield Finding(subject="gpu", says=says, remedy=_LOOK_AT_KERNEL)
    if gpus.absence:
        # Where no GPU is plugged in, nothing is wrong.
        is_wrong = _has_amd(gpus) or gpus.absence.reason not in {"no-device", "no-driver"}
        yield Finding(
            subject="gpu",
            says=f"{gpus.absence.message}; building needs none",
            remedy=gpus.absence.remedy if is_wrong else None,
        )
    for oddity in gpus.oddities:
        yield Finding(subject="gpu", says=oddity, remedy=_LOOK_AT_KERNEL)


def _is_closed(node: DeviceNode, engine: EngineFacts | None, around: Surroundings) -> bool:
    """Tell whether a node is closed to containers, whatever group they could be given."""
    if node.kind is not NodeKind.CHARACTER or node.gid is None:
        return False
    if _keeps_groups(engine):
        return not access.may_open(node, around.uid, around.groups)
    # What an engine loses on the way is told once, and not for each node.
    return not access.may_open(node, _NOBODY, (node.gid,))


def _keeps_groups(engine: EngineFacts | None) -> bool:
    """Tell whether a container has the groups of who runs the engine, and can get no others."""
    return engine is not None and engine.rootless and engine.product == "podman"


def _whom(node: DeviceNode, engine: EngineFacts | None) -> str:
    if _keeps_groups(engine):
        return f"whoever runs Podman must be in group {node.gid} to"
    return "no group may"


def _remedy(node: DeviceNode, engine: EngineFacts | None, around: Surroundings) -> str:
    keeps = _keeps_groups(engine)
    return access.explain(
        node,
        errno.EACCES,
        uid=around.uid if keeps else _NOBODY,
        groups=around.groups if keeps else (),
        selinux_enforcing=False,
        in_container=False,
    ).remedy


def _passing(engine: EngineFacts, gpus: Gpus) -> Iterator[Finding]:
    subject = "engine and GPU"
    if engine.is_desktop:
        yield Finding(
            subject=subject,
            says="Docker Desktop runs in a virtual machine that has no /dev/kfd: it builds, and "
            "passes no GPU",
            remedy="docker context use default   with Docker Engine on this machine",
        )
    elif not engine.is_local:
        yield Finding(
            subject=subject,
            says="the engine is on another machine: it builds, and passes none of the GPUs here",
            remedy="unset DOCKER_HOST DOCKER_CONTEXT",
        )
    elif engine.rootless and engine.product == "podman":
        runtime = engine.runtime.rpartition("/")[2]
        if runtime != "crun":
            yield Finding(
                subject=subject,
                says="Podman without root keeps the groups of who runs it only with crun, and it "
                f"is on {runtime}",
                remedy='write  runtime = "crun"  below [engine] in '
                "~/.config/containers/containers.conf",
            )
    elif (engine.rootless or engine.remapped) and not _are_open_to_all(gpus):
        how = "without root" if engine.rootless else "with userns-remap"
        yield Finding(
            subject=subject,
            says=f"{engine.product.capitalize()} {how} loses the groups of the host, which the "
            "nodes of the GPU want",
            remedy="use Docker with root, or Podman with crun",
        )


def _are_open_to_all(gpus: Gpus) -> bool:
    nodes = (gpus.kfd, *(card.render for card in gpus.cards))
    return all(
        node.mode is not None and node.mode & _READ_WRITE == _READ_WRITE
        for node in nodes
        if node.kind is NodeKind.CHARACTER
    )


def _driver(machine: Machine, gpus: Gpus, releases: Collection[str]) -> Iterator[Finding]:
    subject = "driver"
    about = ", ".join(
        filter(None, (machine.kernel and f"Linux {machine.kernel}", machine.distribution))
    )
    about = about or "a Linux that does not tell its version"
    if not machine.amdgpu:
        says = f"{about}; amdgpu is not loaded"
        load = "sudo modprobe amdgpu"
        if not _has_amd(gpus):
            yield Finding(subject=subject, says=f"{says}, and would have nothing to drive")
        elif machine.blocklist:
            yield Finding(
                subject=subject,
                says=f"{says}: {machine.blocklist} forbids it",
                remedy=f"take amdgpu out of that, then: {load}",
            )
        else:
            yield Finding(subject=subject, says=says, remedy=load)
        return
    own = f"amdgpu {machine.amdgpu_version}" if machine.amdgpu_version else "its own amdgpu"
    yield Finding(subject=subject, says=f"{about}, with {own}")
    if machine.dkms in {"added", "built"}:
        yield Finding(
            subject=subject,
            says=f"DKMS has another amdgpu, {machine.dkms} and not installed for Linux "
            f"{machine.kernel}",
            remedy=f"dkms autoinstall -k {machine.kernel}",
        )
    loaded = _version(machine.amdgpu_version or "")
    for release in sorted(releases):
        fits = next((one for one in _OLDEST_DRIVERS if _version(release) >= one.rocm), None)
        if fits and loaded and loaded < fits.driver:
            yield Finding(
                subject=subject,
                says=f"amdgpu {machine.amdgpu_version} is older than what AMD supports with ROCm "
                f"{release}: {_dotted(fits.driver)}, which came with ROCm {fits.came_with}",
                remedy="install a newer amdgpu-dkms, and restart",
            )


def _kernel(machine: Machine, gpus: Gpus, targets: Collection[str]) -> Iterator[Finding]:
    """Hold the kernel's own driver against what the artifacts are for."""
    running = _version(machine.kernel or "")
    if not running or machine.amdgpu_version:
        return
    firsts = {name: first for name in sorted(targets) if (first := _first_kernel(name))}
    # A card that KFD lists is known, whatever the version says: distributions bring things back.
    known = {_first_kernel(card.target) for card in gpus.cards}
    late = {name: first for name, first in firsts.items() if running < first and first not in known}
    if late:
        wanted = _dotted(max(late.values()))
        says = f"{', '.join(late)} needs Linux {wanted} or later, and this is {machine.kernel}"
        if _has_amd(gpus):
            yield Finding(
                subject="kernel",
                says=f"{says}, unless the distribution brought it back",
                remedy=f"boot Linux {wanted} or later, or install amdgpu-dkms",
            )
        else:
            yield Finding(subject="kernel", says=f"{says}; there is no GPU here")
    elif firsts:
        yield Finding(
            subject="kernel", says=f"{_dotted(running)} is new enough for {', '.join(firsts)}"
        )


def _firmware(machine: Machine, gpus: Gpus, around: Surroundings) -> Iterator[Finding]:
    subject = "firmware"
    for one in machine.devices:
        shown = ", ".join(f"{name} {version}" for name, version in one.firmware.items())
        if shown:
            yield Finding(subject=subject, says=f"{one.pci}: {shown}")
    if not _has_amd(gpus):
        yield Finding(subject=subject, says="there is no AMD GPU that needs any")
    # Whatever drives a card has found what it needs.
    if all(one.driver for one in gpus.strangers):
        return
    # Debian has it in an archive area of its own.
    remedy = "apt install firmware-amd-graphics   elsewhere linux-firmware; then restart"
    if not around.firmware:
        yield Finding(
            subject=subject,
            says=f"{FIRMWARE} has none, and amdgpu takes no card without",
            remedy=remedy,
        )
        return
    for name in sorted({target.partition(":")[0] for target in around.targets}):
        prefixes = _FIRMWARE_OF.get(name)
        if prefixes and not any(file.startswith(prefixes) for file in around.firmware):
            yield Finding(
                subject=subject,
                says=f"{FIRMWARE} has no {prefixes[0]}_*, and amdgpu takes no {name} without",
                remedy=remedy,
            )


def _iommu(machine: Machine, gpus: Gpus) -> Iterator[Finding]:
    """Tell whether an IOMMU stands between several cards.

    https://rocm.docs.amd.com/projects/radeon/en/docs-6.4.1/docs/install/native_linux/mgpu.html
    """
    if not machine.iommu_groups:
        yield Finding(subject="IOMMU", says="not in use")
        return
    options = " ".join(machine.iommu_options)
    about = f"in use, {machine.iommu_groups} groups" + (f", told {options}" if options else "")
    cards = {card.pci for card in gpus.cards if not card.is_apu}
    if len(cards) >= _SEVERAL and "pt" not in re.split(r"[=, ]", options):
        yield Finding(
            subject="IOMMU",
            says=f"{about}: programs that use several of the {len(cards)} cards may hang",
            remedy="add  iommu=pt  to the kernel's command line, and restart",
        )
    else:
        yield Finding(subject="IOMMU", says=about)


def _video_memory(machine: Machine, gpus: Gpus) -> Iterator[Finding]:
    known = {one.pci: one for one in machine.devices}
    told = set()
    for card in gpus.cards:
        one = known.get(card.pci or "")
        # Partitions of a device share its memory.
        if one is None or not one.vram or one.pci in told:
            continue
        told.add(one.pci)
        yield from _carve_out(one, machine) if card.is_apu else _bar(one)


def _bar(one: Device) -> Iterator[Finding]:
    if one.resizable_bar is None or one.visible_vram is None or one.vram is None:
        return
    says = f"{one.pci}: the processor reaches {size(one.visible_vram)} of {size(one.vram)}"
    if one.resizable_bar:
        yield Finding(subject="resizable BAR", says=says)
        return
    # Peers: amdgpu_device_is_peer_accessible in
    # https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdgpu/amdgpu_device.c
    yield Finding(
        subject="resizable BAR",
        says=f"{says}: other cards cannot reach it, and copying is slower",
        remedy="in the firmware setup, switch on Above 4G Decoding and Resizable BAR",
    )


def _carve_out(one: Device, machine: Machine) -> Iterator[Finding]:
    vram, gtt = one.vram or 0, one.gtt or 0
    says = f"{size(vram)} carved out, {size(gtt)} more of the machine's"
    running = _version(machine.kernel or "")
    is_old = bool(running) and running < _FIRST_WITH_HOST_MEMORY and not machine.amdgpu_version
    if is_old and vram < gtt:
        first = _dotted(_FIRST_WITH_HOST_MEMORY)
        yield Finding(
            subject="memory of the APU",
            says=f"{says}; before Linux {first}, what computes gets only what is carved out",
            remedy=f"boot Linux {first} or later, or carve out more in the firmware setup",
        )
    else:
        yield Finding(subject="memory of the APU", says=says)


def _confinement(machine: Machine, gpus: Gpus, *, may_use_dri: bool | None) -> Iterator[Finding]:
    if machine.selinux == "enforcing":
        # https://github.com/containers/container-selinux/issues/269
        boolean = "the boolean container_use_dri_devices"
        if may_use_dri:
            says = f"enforcing; {boolean} lets containers use GPUs"
            yield Finding(subject="SELinux", says=says)
        elif _has_amd(gpus):
            how = "keeps" if may_use_dri is False else "may keep"
            yield Finding(
                subject="SELinux",
                says=f"enforcing; {boolean} {how} containers from GPUs",
                remedy="sudo setsebool -P container_use_dri_devices=1",
            )
        else:
            yield Finding(subject="SELinux", says="enforcing")
    elif machine.selinux:
        yield Finding(subject="SELinux", says=machine.selinux)
    if machine.apparmor:
        # https://docs.docker.com/engine/security/apparmor/
        yield Finding(subject="AppArmor", says="enabled; Docker's profile leaves nodes alone")
    elif not machine.selinux:
        yield Finding(subject="confinement", says="neither SELinux nor AppArmor is on")


def _environment(environment: Mapping[str, str]) -> Iterator[Finding]:
    names = passthrough.inherited(environment)
    for name in names:
        yield Finding(
            subject="environment",
            says=f"{name} is {environment[name]!r} in this shell: programs that are started here "
            "obey it, containers of rocbake do not get it",
            remedy=f"unset {name}",
        )
    if not names:
        yield Finding(subject="environment", says="no variable that leads ROCm astray")


def _has_amd(gpus: Gpus) -> bool:
    return bool(gpus.cards or gpus.strangers)


def _first_kernel(target: str) -> Version | None:
    return next((first for prefix, first in _FIRST_KERNELS if target.startswith(prefix)), None)


def _title(card: Card) -> str:
    where = f" at {card.pci}" if card.pci else ""
    part = f", partition {card.partition}" if card.partition is not None else ""
    return f"{card.target} card{where}{part}"


def _shown(node: DeviceNode) -> str:
    if node.kind is not NodeKind.CHARACTER or node.mode is None:
        return f"{node.path} is {'missing' if node.kind is NodeKind.MISSING else 'no device node'}"
    return f"{node.path} {node.uid}:{node.gid} {node.mode:04o}"


def _version(text: str) -> Version | tuple[()]:
    """Return the first two dotted numbers that a version starts with; () if it has none."""
    found = re.match(r"([0-9]{1,6})\.([0-9]{1,6})", text)
    return (int(found[1]), int(found[2])) if found else ()


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))
