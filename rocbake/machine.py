"""Facts of a machine that a result depends on: kernel, driver, firmware, memory, confinement.

Pure over a root folder, and no more than reports and the doctor tell. What cannot be read is None:
none of it is an error here.
"""

from __future__ import annotations

import errno
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_LONGEST_FILE = 1 << 20
_LONGEST_RECORD = 1 << 14
_MODPROBE = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
# What two clocks of a machine may come to differ by, as a share of the time that it has run.
_DRIFT = 50e-6
_KERNEL = 0
# Priority and facility, sequence number, microseconds, flags, and more to come; then the text.
_RECORD = re.compile(r"(\d{1,9}),\d+,(\d{1,20}),[^;]*;([^\n]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that amdgpu drives.

    Attributes:
        pci: Its address, such as "0000:03:00.0".
        firmware: Versions by name, such as {"mec": "0x0000000b"}.
        vram: Bytes of video memory; of an APU, of the carve-out.
        visible_vram: Bytes of it that the processor can reach.
        gtt: Bytes of the host's memory that it may use besides.
    """

    pci: str
    firmware: dict[str, str] = field(default_factory=dict)
    vram: int | None = None
    visible_vram: int | None = None
    gtt: int | None = None

    @property
    def resizable_bar(self) -> bool | None:
        """Whether the processor can reach all of the video memory."""
        if not self.vram or self.visible_vram is None:
            return None
        return self.visible_vram >= self.vram


@dataclass(frozen=True, slots=True)
class Machine:
    """What is told of a machine.

    Attributes:
        kernel: Its release, such as "6.12.48+deb13-amd64".
        distribution: Its name for people.
        is_wsl: Whether this is Linux under Windows.
        amdgpu: Whether the driver is loaded.
        amdgpu_version: Of the driver; the one in the kernel's own tree has none.
        blocklist: Where it is said that amdgpu must not be loaded, or None.
        dkms: How far DKMS got with amdgpu for this kernel; None if it has none.
        devices: What amdgpu drives, by address.
        selinux: None if there is none.
        apparmor: Whether it is enabled.
        iommu_groups: How many; 0 if no IOMMU is in use.
        iommu_options: What the kernel was told of it, such as ("iommu=pt",).
        cpu: Name of the processor.
        cpus: How many may be used at a time, by the control group's quota at most.
        memory: Bytes in all, by the control group's limit at most.
        memory_available: Bytes that may be taken without swapping.
    """

    kernel: str | None
    distribution: str | None
    is_wsl: bool
    amdgpu: bool
    amdgpu_version: str | None
    blocklist: str | None
    dkms: Literal["added", "built", "installed"] | None
    devices: tuple[Device, ...]
    selinux: Literal["permissive", "enforcing"] | None
    apparmor: bool
    iommu_groups: int
    iommu_options: tuple[str, ...]
    cpu: str | None
    cpus: int | None
    memory: int | None
    memory_available: int | None


def read(root: Path = Path("/")) -> Machine:
    """Read the facts of the machine whose root folder this is."""
    kernel = _text(root / "proc/sys/kernel/osrelease")
    options = (_text(root / "proc/cmdline") or "").split()
    cpu, cpus = _processors(root)
    memory, available = _memory(root)
    return Machine(
        kernel=kernel,
        distribution=_distribution(root),
        is_wsl="microsoft" in (kernel or "").casefold(),
        amdgpu=_is_folder(root / "sys/module/amdgpu"),
        amdgpu_version=_text(root / "sys/module/amdgpu/version"),
        blocklist=_blocklist(root, options),
        dkms=_dkms(root, kernel),
        devices=_devices(root),
        selinux=_selinux(root),
        apparmor=_text(root / "sys/module/apparmor/parameters/enabled") == "Y",
        iommu_groups=len(_names(root / "sys/kernel/iommu_groups")),
        iommu_options=tuple(
            one for one in options if one.startswith(("iommu=", "amd_iommu=", "intel_iommu="))
        ),
        cpu=cpu,
        cpus=cpus,
        memory=memory,
        memory_available=available,
    )


def _distribution(root: Path) -> str | None:
    # https://www.freedesktop.org/software/systemd/man/latest/os-release.html
    for place in ("etc/os-release", "usr/lib/os-release"):
        found = re.search(r"^PRETTY_NAME=(.*)$", _lines(root / place), re.MULTILINE)
        if found:
            return found[1].strip().strip("\"'") or None
    return None


def _blocklist(root: Path, options: Iterable[str]) -> str | None:
    # https://docs.kernel.org/admin-guide/kernel-parameters.html
    for option in options:
        name, _, value = option.partition("=")
        if name in {"modprobe.blacklist", "module_blacklist"} and "amdgpu" in value.split(","):
            return f"the kernel's option {option}"
    # A file hides those of its name in later folders: modprobe.d(5).
    files: dict[str, str] = {}
    for place in _MODPROBE:
        for name in _names(root / place / "modprobe.d"):
            if name.endswith(".conf"):
                files.setdefault(name, f"{place}/modprobe.d/{name}")
    for path in files.values():
        if re.search(r"^\s*blacklist\s+amdgpu\s*$", _lines(root / path), re.MULTILINE):
            return f"/{path}"
    return None


def _dkms(root: Path, kernel: str | None) -> Literal["added", "built", "installed"] | None:
    """Return how far DKMS got, from its tree: a folder a version, in it one a kernel.

    The layout is that of dkms(8); a link `kernel-<release>-<architecture>` is what is installed:
    https://github.com/dkms-project/dkms/blob/main/dkms.in
    """
    tree = root / "var/lib/dkms/amdgpu"
    if not _is_folder(tree):
        return None
    names = _names(tree)
    if kernel and any(name.startswith(f"kernel-{kernel}-") for name in names):
        return "installed"
    versions = [name for name in names if "source" in _names(tree / name)]
    if kernel and any(
        _is_folder(tree / version / kernel / architecture / "module")
        for version in versions
        for architecture in _names(tree / version / kernel)
    ):
        return "built"
    return "added" if versions else None


def _devices(root: Path) -> tuple[Device, ...]:
    # https://docs.kernel.org/gpu/amdgpu/driver-misc.html
    folder = root / "sys/bus/pci/drivers/amdgpu"
    return tuple(
        Device(
            pci=name,
            firmware=_firmware(folder / name / "fw_version"),
            vram=_number(folder / name / "mem_info_vram_total"),
            visible_vram=_number(folder / name / "mem_info_vis_vram_total"),
            gtt=_number(folder / name / "mem_info_gtt_total"),
        )
        for name in _names(folder)
        if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name)
    )


def _firmware(folder: Path) -> dict[str, str]:
    found = {name.removesuffix("_fw_version"): _text(folder / name) for name in _names(folder)}
    # All zeros stands for firmware that the device has not.
    return {name: text for name, text in found.items() if text and text.strip("0x")}


def _selinux(root: Path) -> Literal["permissive", "enforcing"] | None:
    match _text(root / "sys/fs/selinux/enforce"):
        case "1":
            return "enforcing"
        case "0":
            return "permissive"
        case _:
            return None


def _processors(root: Path) -> tuple[str | None, int | None]:
    text = _lines(root / "proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    count = len(re.findall(r"^processor\s*:", text, re.MULTILINE)) or None
    quotas = list(_cpu_quotas(root))
    if count and quotas:
        count = max(1, min(count, int(min(quotas))))
    return model[1].strip() if model else None, count


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the processors' worth of time that each control group above may take."""
    for folder in _control_groups(root, ""):
        found = re.fullmatch(r"([0-9]{1,20}) ([1-9][0-9]{,19})", _text(folder / "cpu.max") or "")
        if found:
            yield int(found[1]) / int(found[2])
    for folder in _control_groups(root, "cpu"):
        limit, each = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if limit and each:
            yield limit / each


def _memory(root: Path) -> tuple[int | None, int | None]:
    text = _lines(root / "proc/meminfo")
    sizes = dict(re.findall(r"^(\w+): +(\d{1,20}) kB$", text, re.MULTILINE | re.ASCII))
    total = int(sizes["MemTotal"]) * 1024 if "MemTotal" in sizes else None
    available = int(sizes["MemAvailable"]) * 1024 if "MemAvailable" in sizes else None
    for limit, free in _memory_limits(root):
        total = total and min(total, limit)
        available = available and min(available, free)
    return total, available


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and what is left of it, for each control group above that has one."""
    for controller, limit_name, used_name, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _control_groups(root, controller):
            limit = _number(folder / limit_name)
            if limit is None:
                continue
            used = _number(folder / used_name) or 0
            # What is cached of files goes when it is needed, so it counts as free.
            found = re.search(
                rf"^{cached} ([0-9]{{1,20}})$", _lines(folder / "memory.stat"), re.MULTILINE
            )
            used -= int(found[1]) if found else 0
            yield limit, max(0, limit - max(0, used))


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of all above it.

    A line of /proc/self/cgroup is number:controllers:path, with no controllers for version 2:
    https://man7.org/linux/man-pages/man7/cgroups.7.html
    """
    mount = root / "sys/fs/cgroup" / controller
    for line in _lines(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") and ".." not in path.split("/"):
            group = mount / path.strip("/")
            while group != mount:
                yield group
                group = group.parent
            # A container sees its own group as the top one, whatever the path says.
            yield mount
            return


def read_kmsg(path: Path = Path("/dev/kmsg")) -> Iterator[bytes]:
    """Yield the kernel's records, from the oldest it still has, without waiting for more.

    Raises:
        OSError: It cannot be opened or read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                record = os.read(descriptor, _LONGEST_RECORD)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                continue  # the next record was overwritten; there is one after it
            if not record:
                return
            yield record
    finally:
        os.close(descriptor)


def kernel_messages(
    since: float | None, read: Callable[[], Iterable[bytes]] = read_kmsg
) -> list[str]:
    """Return what the kernel said of amdgpu and KFD, each with its seconds since the start.

    Where its messages may not be read, one line says that.

    Args:
        since: Seconds since 1970; None for all there is.
        read: Yields records, as /dev/kmsg has them:
            https://github.com/torvalds/linux/blob/master/Documentation/ABI/testing/dev-kmsg
    """
    begin = 0.0
    if since is not None:
        # Records have the time of a clock that nobody corrects; rather some too many than too few.
        begin = (since - time.time() + time.monotonic()) * (1 - _DRIFT) - 1
    lines = []
    try:
        for record in read():
            found = _RECORD.match(record.decode(errors="replace"))
            if found is None or int(found[1]) >> 3 != _KERNEL:
                continue
            seconds = int(found[2]) / 1e6
            if seconds >= begin and re.search(r"amdgpu|kfd", found[3], re.IGNORECASE):
                lines.append(f"[{seconds:.6f}] {found[3]}")
    except OSError as error:
        lines.append(f"the kernel's messages cannot be read: {error.strerror}; try: sudo dmesg")
    return lines


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; where it is missing or closed, there are none."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.name.isprintable())
    except OSError:
        return []


def _lines(path: Path) -> str:
    """Return what a file says; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_FILE).decode(errors="replace")
    except OSError:
        return ""


def _text(path: Path) -> str | None:
    return "".join(filter(str.isprintable, _lines(path).strip())) or None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and re.fullmatch(r"[0-9]{1,20}", text, re.ASCII) else None
