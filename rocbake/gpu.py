"""GPUs of a machine, as the kernel shows them: pure over a root folder, nothing is opened.

KFD is the compute driver inside amdgpu. Its topology lists what can compute; each GPU there names
the minor number of its render node, and a process needs both nodes, /dev/kfd and that one.

What the files say is told by the kernel, and how a runtime reads them by ROCm:
https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_topology.c
https://github.com/ROCm/rocm-systems/blob/develop/projects/rocr-runtime/libhsakmt/src/topology.c
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rocbake.target import PROCESSORS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Look = Callable[[Path], os.stat_result]

KFD = "/dev/kfd"
_DRI = "/dev/dri"
_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
_PCI_DEVICES = "sys/bus/pci/devices"

_AMD = "0x1002"
# Classes of PCI devices: display controllers, and processing accelerators such as MI300X.
_CLASSES = ("0x03", "0x12")
# Frame buffers that the processor can reach, and such that it cannot: HSA_HEAPTYPE_FRAME_BUFFER_*.
_OWN_HEAPS = (1, 2)
# A file of sysfs is at most a page long; what is longer is none of the kernel's.
_LONGEST_FILE = 65536
_LONGEST_SHOWN = 60
_LARGEST_NUMBER = 2**64 - 1
# Two decimal digits each for major, minor and stepping.
_LARGEST_VERSION = 999_999
# The kernel's numbers of devices have 20 bits for the minor one: include/linux/kdev_t.h.
_LARGEST_MINOR = 2**20 - 1
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
_NODE_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_PROPERTY = re.compile(r"([a-z0-9_]+) +([0-9]{1,20})[ \r]*", re.ASCII)
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BY_NAME = {processor.name: processor for processor in PROCESSORS}

_LOOK_AT_KFD = "on the host: dmesg | grep -iE 'amdgpu|kfd'"


class NodeKind(StrEnum):
    """What a path in /dev turned out to be."""

    CHARACTER = "character device"
    FOLDER = "folder"
    OTHER = "other file"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A path in /dev.

    Attributes:
        path: As programs name it: /dev/kfd, /dev/dri/renderD128.
        kind: What it is; all that follows is None where it is missing.
        mode: Permission bits, such as 0o660.
        uid: Number of the owner.
        gid: Number of the owning group.
        major: Of the device; None unless it is a character device.
        minor: Likewise.
    """

    path: str
    kind: NodeKind
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    major: int | None = None
    minor: int | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, or one partition of it, that KFD lists: it can compute.

    Attributes:
        index: Its place among the cards, from 0: the number that ROCm on this host gives it.
        kfd_node: Number of its folder in KFD's topology.
        target: Such as "gfx1201", from gfx_target_version.
        product: Its name for people.
        is_apu: Whether it shares the processor's memory.
        memory: Bytes of its own memory; of an APU, of the carve-out.
        compute_units: How many.
        render: Its render node.
        by_path: Link that names the render node by PCI address, which does not change when render
            numbers do; None if there is none.
        pci: Such as "0000:03:00.0", or None if KFD gives none.
        uuid: Such as "GPU-1d5e2c6b0f3a9c47", as ROCR_VISIBLE_DEVICES takes it; None if it has none.
        partition: Number of the partition of its device, from 0, or None if it is not partitioned.
    """

    index: int
    kfd_node: int
    target: str
    product: str
    is_apu: bool
    memory: int
    compute_units: int
    render: DeviceNode
    by_path: str | None = None
    pci: str | None = None
    uuid: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Stranger:
    """An AMD display device that KFD does not list: it cannot compute, and this says why.

    Attributes:
        pci: Its address.
        product: Its name for people, or its identifiers.
        driver: Name of the kernel module that holds it, or None.
        render: Its render node, if it has one.
        why: One sentence.
    """

    pci: str
    product: str
    driver: str | None
    render: DeviceNode | None
    why: str


@dataclass(frozen=True, slots=True)
class Absence:
    """Why no GPU can compute here.

    Attributes:
        reason: One word for programs: no-driver, kfd-missing, kfd-not-a-device, render-missing,
            render-not-a-device, no-device, unknown-card, wsl.
        message: One sentence for people.
        remedy: What to type or do.
    """

    reason: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Gpus:
    """Everything that was found.

    Attributes:
        kfd: The compute driver's node.
        cards: Those that can compute, in KFD's order.
        strangers: AMD devices that cannot.
        absence: Why there is nothing to compute on; None if a card has both of its nodes.
        oddities: Sentences about what is broken or unusual and hinders no card.
    """

    kfd: DeviceNode
    cards: tuple[Card, ...] = ()
    strangers: tuple[Stranger, ...] = ()
    absence: Absence | None = None
    oddities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Listed:
    """A GPU in KFD's topology, as its files say."""

    number: int
    properties: Mapping[str, int]
    own_memory: int

    @property
    def device(self) -> tuple[int, int]:
        """Domain and address of the PCI device; all its partitions have the same."""
        return self.properties.get("domain", 0), self.properties.get("location_id", 0) & 0xFFFF

    @property
    def pci(self) -> str | None:
        domain, location = self.device
        if not location:
            return None
        return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"


@dataclass(frozen=True, slots=True)
class _Topology:
    """What KFD lists: its GPUs, and how many more are closed to this process."""

    gpus: tuple[_Listed, ...]
    closed: int


def discover(root: Path = Path("/"), *, look: Look = Path.stat) -> Gpus:
    """Find every AMD GPU of a machine, and say why there is none that can compute.

    Broken files are no error: what they would have said is missing, and an oddity tells it.

    Args:
        root: The machine's root folder.
        look: Answers what a path in /dev below it is.
    """
    oddities: list[str] = []
    kfd = _node(root, KFD, look)
    topology = _topology(root, oddities)
    cards: list[Card] = []
    partitions = Counter(one.device for one in topology.gpus)
    for one in topology.gpus:
        card = _card(root, one, len(cards), look, oddities)
        if card and one.pci and partitions[one.device] > 1:
            # In bits 28 to 31; all of them are 0 where there is one partition only.
            number = one.properties.get("location_id", 0) >> 28
            card = dataclasses.replace(card, partition=number)
        if card:
            cards.append(card)
    strangers = _strangers(root, topology, {card.pci for card in cards}, look)
    absence = _absence(root, kfd, cards, strangers, closed=topology.closed)
    if absence is None:
        oddities += [
            f"{_title(card)} cannot be used: {_wrong(card.render)}"
            for card in cards
            if card.render.kind is not NodeKind.CHARACTER
        ]
    return Gpus(kfd, tuple(cards), strangers, absence, tuple(oddities))


def target_name(version: int) -> str:
    """Return LLVM's name for KFD's gfx_target_version.

    It has two decimal digits each for major, minor and stepping; the name writes the last two in
    hexadecimal.

    >>> target_name(120001), target_name(90010)
    ('gfx1201', 'gfx90a')
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def parse_properties(data: bytes) -> tuple[dict[str, int], list[str]]:
    """Read a `properties` file of KFD's topology: a name and an unsigned number on each line.

    Returns:
        The numbers by name, and the lines that are no such thing, made printable.
    """
    values: dict[str, int] = {}
    wrong: list[str] = []
    for line in data.decode(errors="replace").split("\n"):
        found = _PROPERTY.fullmatch(line)
        if found and int(found[2]) <= _LARGEST_NUMBER:
            values[found[1]] = int(found[2])
        elif line.strip():
            wrong.append(_printable(line)[:_LONGEST_SHOWN])
    return values, wrong


def _node(root: Path, path: str, look: Look) -> DeviceNode:
    try:
        found = look(root / path.lstrip("/"))
    except (FileNotFoundError, NotADirectoryError):
        return DeviceNode(path, NodeKind.MISSING)
    except OSError:  # such as links that lead to each other
        return DeviceNode(path, NodeKind.OTHER)
    mode, uid, gid = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
    if stat.S_ISCHR(found.st_mode):
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        return DeviceNode(path, NodeKind.CHARACTER, mode, uid, gid, major, minor)
    kind = NodeKind.FOLDER if stat.S_ISDIR(found.st_mode) else NodeKind.OTHER
    return DeviceNode(path, kind, mode, uid, gid)


def _topology(root: Path, oddities: list[str]) -> _Topology:
    gpus = []
    closed = 0
    names = _names(root / _TOPOLOGY)
    # As numbers: a runtime counts the nodes up, and 10 does not come before 2.
    for name in sorted(filter(_NODE_NUMBER.fullmatch, names), key=int):
        folder = root / _TOPOLOGY / name
        try:
            values, wrong = parse_properties(_bytes(folder / "properties"))
        except PermissionError:
            # The kernel closes the GPUs that a process in a container may not open:
            # kfd_devcgroup_check_permission in kfd_topology.c.
            closed += 1
            continue
        except OSError as error:
            oddities.append(f"KFD's node {name} has no properties: {error.strerror}")
            continue
        where = f"properties of KFD's node {name}"
        if wrong:
            oddities.append(f"{where}: expected a name and a number, got {wrong[0]!r}")
        if not values:
            oddities.append(f"{where}: nothing is in them")
        if values.get("simd_count") or values.get("gfx_target_version"):
            gpus.append(_Listed(int(name), values, _own_memory(folder, oddities)))
    return _Topology(tuple(gpus), closed)


def _own_memory(folder: Path, oddities: list[str]) -> int:
    """Return the bytes in a GPU's own memory banks; 0 if none is told."""
    total = 0
    for bank in _names(folder / "mem_banks"):
        try:
            values, wrong = parse_properties(_bytes(folder / "mem_banks" / bank / "properties"))
        except OSError as error:
            wrong = [error.strerror or "unreadable"]
            values = {}
        if wrong:
            where = f"memory bank {_printable(bank)} of KFD's node {folder.name}"
            oddities.append(f"{where}: expected a name and a number, got {wrong[0]!r}")
        if values.get("heap_type") in _OWN_HEAPS:
            total += values.get("size_in_bytes", 0)
    return total


def _card(root: Path, listed: _Listed, index: int, look: Look, oddities: list[str]) -> Card | None:
    values = listed.properties
    node = f"KFD's node {listed.number}"
    version = values.get("gfx_target_version", 0)
    if not 0 < version <= _LARGEST_VERSION:
        oddities.append(f"{node} is a GPU of unknown target: gfx_target_version is {version}")
        return None
    name = target_name(version)
    minor = values.get("drm_render_minor", 0)
    if not 0 < minor <= _LARGEST_MINOR:
        oddities.append(f"{node}, {name}, names no render node: drm_render_minor is {minor}")
        return None
    render = f"renderD{minor}"
    pci = listed.pci
    shown = _pci_of_render(root, render)
    if shown and shown != pci:
        if pci:
            oddities.append(f"{node} is at {pci}, and its render node {render} at {shown}")
        pci = shown
    folder = root / _PCI_DEVICES / (pci or "")
    vram = _number(folder / "mem_info_vram_total") if pci else None
    processor = _BY_NAME.get(name)
    # An APU's banks are more than its video memory: KFD counts what it may take of the host's
    # (amdgpu_amdkfd_get_local_mem_info), or it has none (gmc_v9_0_mc_init, for MI300A).
    # In older kernels it shares its node with the processor's cores.
    is_apu = (
        bool(values.get("cpu_cores_count"))
        or (vram is not None and listed.own_memory > vram)
        or bool(processor and processor.is_apu)
    )
    memory = vram if vram is not None and is_apu else listed.own_memory or vram or 0
    product = (_text(folder / "product_name") if pci else None) or (
        processor.products if processor else ""
    )
    unique = values.get("unique_id", 0)
    return Card(
        index=index,
        kfd_node=listed.number,
        target=name,
        product=product or name,
        is_apu=is_apu,
        memory=memory,
        compute_units=values.get("simd_count", 0) // max(1, values.get("simd_per_cu", 0)),
        render=_node(root, f"{_DRI}/{render}", look),
        by_path=_by_path(root, render),
        pci=pci,
        uuid=f"GPU-{unique:016x}" if unique else None,
    )


def _pci_of_render(root: Path, render: str) -> str | None:
    """Return the PCI address behind a render node; partitions after the first have none."""
    try:
        name = (root / "sys/class/drm" / render / "device").resolve().name
    except (OSError, RuntimeError):  # links that lead to each other
        return None
    return name if _PCI_ADDRESS.fullmatch(name) else None


def _by_path(root: Path, render: str) -> str | None:
    folder = root / _DRI.lstrip("/") / "by-path"
    for name in _names(folder):
        try:
            to = (folder / name).readlink().name
        except OSError:
            continue
        if to == render:
            return f"{_DRI}/by-path/{name}"
    return None


def _strangers(
    root: Path, topology: _Topology, known: set[str | None], look: Look
) -> tuple[Stranger, ...]:
    listed = {one.pci for one in topology.gpus}
    found = []
    for pci in _names(root / _PCI_DEVICES):
        folder = root / _PCI_DEVICES / pci
        kind = _text(folder / "class") or ""
        if pci in known or _text(folder / "vendor") != _AMD or not kind.startswith(_CLASSES):
            continue
        identifier = f"1002:{(_text(folder / 'device') or '0x????').removeprefix('0x')}"
        driver = _driver(folder)
        renders = [name for name in _names(folder / "drm") if name.startswith("renderD")]
        if pci in listed:
            why = "KFD lists it, but not whole"
        else:
            why = _why_unlisted(root, driver, identifier, closed=topology.closed)
        found.append(
            Stranger(
                pci=pci,
                product=_text(folder / "product_name") or identifier,
                driver=driver,
                render=_node(root, f"{_DRI}/{renders[0]}", look) if renders else None,
                why=why,
            )
        )
    return tuple(found)


def _why_unlisted(root: Path, driver: str | None, identifier: str, *, closed: int) -> str:
    if driver is None:
        if _has_amdgpu(root):
            return f"amdgpu did not take it: it does not know {identifier}, or lacks its firmware"
        return "no driver holds it: amdgpu is not loaded"
    if driver != "amdgpu":
        return f"{driver} holds it, and not amdgpu"
    if not _exists(root / "sys/class/kfd"):
        return "amdgpu drives it, but was built without KFD"
    if closed:
        return "it was not passed into this container, or KFD does not list it"
    return (
        f"amdgpu drives it, but KFD does not list it: it does not know {identifier}, "
        "or the slot has no PCIe atomics"
    )


def _absence(
    root: Path,
    kfd: DeviceNode,
    cards: Sequence[Card],
    strangers: Sequence[Stranger],
    *,
    closed: int,
) -> Absence | None:
    if kfd.kind is NodeKind.MISSING:
        return _no_kfd(root, cards, strangers)
    if kfd.kind is not NodeKind.CHARACTER:
        return Absence("kfd-not-a-device", _wrong(kfd), _remove(kfd))
    if any(card.render.kind is NodeKind.CHARACTER for card in cards):
        return None
    if not cards:
        return _no_card(strangers, closed=closed)
    wrong = [card for card in cards if card.render.kind is not NodeKind.MISSING]
    card = (wrong or cards)[0]
    if wrong:
        return Absence("render-not-a-device", _wrong(card.render), _remove(card.render))
    return Absence(
        "render-missing",
        f"/dev/kfd is here, but {card.render.path} is not, the render node of {_title(card)}",
        f"pass it into the container: --device {card.render.path}; {_LOOK_AT_KFD}",
    )


def _no_kfd(root: Path, cards: Sequence[Card], strangers: Sequence[Stranger]) -> Absence:
    if _is_wsl(root):
        return Absence(
            "wsl",
            "this is WSL, where the GPU is behind /dev/dxg: there is no /dev/kfd",
            "run it on Linux itself, on a machine with an AMD GPU",
        )
    if _exists(root / "sys/class/kfd"):
        present = [
            node.path
            for node in (*(card.render for card in cards), *(one.render for one in strangers))
            if node and node.kind is NodeKind.CHARACTER
        ]
        render = cards[0].render.path if cards else f"{_DRI}/renderD128"
        # A container shares /sys with its host: the driver shows there although no node is passed.
        return Absence(
            "kfd-missing",
            "/dev/kfd is not here, although this kernel has the AMD compute driver"
            + (f" and {present[0]} is here" if present else ""),
            "pass it into the container: --device /dev/kfd"
            + ("" if present else f" --device {render}"),
        )
    if _has_amdgpu(root):
        return Absence(
            "kfd-missing",
            "/dev/kfd is not here: amdgpu is loaded, but was built without KFD",
            "boot a kernel with CONFIG_HSA_AMD, such as your distribution's own",
        )
    if not strangers and _exists(root / _PCI_DEVICES):
        return Absence(
            "no-device",
            "/dev/kfd is not here, and no AMD GPU either",
            "run it on a machine with an AMD GPU",
        )
    return Absence(
        "no-driver",
        "/dev/kfd is not here: this kernel has no AMD compute driver (amdgpu) loaded"
        + "".join(f"; {one.pci} ({one.product}): {one.why}" for one in strangers[:1]),
        "on a Linux host with an AMD GPU: modprobe amdgpu",
    )


def _no_card(strangers: Sequence[Stranger], *, closed: int) -> Absence:
    if closed:
        return Absence(
            "render-missing",
            "/dev/kfd is here, but no GPU's render node was passed: "
            f"KFD closes {closed} of its nodes to this container",
            f"pass it into the container: --device {_DRI}/renderD128",
        )
    if not strangers:
        return Absence(
            "no-device",
            "/dev/kfd is here, but KFD lists no GPU, and there is no AMD GPU",
            _LOOK_AT_KFD,
        )
    one = strangers[0]
    return Absence(
        "unknown-card",
        f"/dev/kfd is here, but KFD lists no GPU; {one.pci} ({one.product}): {one.why}",
        _LOOK_AT_KFD,
    )


def _wrong(node: DeviceNode) -> str:
    """Return a sentence about a node that is none."""
    if node.kind is NodeKind.MISSING:
        return f"{node.path} is not here"
    said = f"{node.path} is not a device node"
    return f"{said} but a folder" if node.kind is NodeKind.FOLDER else said


def _remove(node: DeviceNode) -> str:
    how = "rmdir" if node.kind is NodeKind.FOLDER else "rm"
    return (
        "a volume mount of a missing node leaves a folder of its name: "
        f"{how} {node.path} on the host, modprobe amdgpu, and pass it by --device {node.path}"
    )


def _title(card: Card) -> str:
    return f"{card.target} at {card.pci}" if card.pci else card.target


def _has_amdgpu(root: Path) -> bool:
    return _exists(root / "sys/module/amdgpu")


def _is_wsl(root: Path) -> bool:
    release = _text(root / "proc/sys/kernel/osrelease") or ""
    return "microsoft" in release.casefold() or _exists(root / "dev/dxg")


def _driver(device: Path) -> str | None:
    try:
        return _printable((device / "driver").readlink().name)
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; where it is missing or closed, there are none."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.name.isprintable())
    except OSError:
        return []


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LONGEST_FILE)


def _text(path: Path) -> str | None:
    """Return what a file says, or None if it says nothing or cannot be read."""
    try:
        return _printable(_bytes(path).decode(errors="replace")) or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and _NUMBER.fullmatch(text) else None


def _printable(text: str) -> str:
    return "".join(filter(str.isprintable, text)).strip()
