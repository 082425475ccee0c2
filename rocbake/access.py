"""Why a GPU's node does not open: the one table of error numbers, what they mean, what to type.

Pure: who opened what, and what the kernel answered, is told by the caller. The reasons are those
of hip-probe, which looks from inside a container.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rocbake.gpu import KFD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocbake.gpu import DeviceNode

_ROOT = 0
_READ_WRITE = 0o6
# What an owner that a user namespace does not map is shown as: /proc/sys/kernel/overflowgid.
_UNMAPPED = 65534
_LOOK_AT_KERNEL = "on the host: dmesg | grep -iE 'amdgpu|kfd'"
_LOAD = "on the host: modprobe amdgpu"


class _Meaning(NamedTuple):
    """What an error number means, whoever the process is; `{path}` is the node's."""

    outcome: str
    why: str
    remedy: str


# What KFD answers: kfd_open and kfd_create_process in
# https://github.com/torvalds/linux/tree/master/drivers/gpu/drm/amd/amdkfd
_MEANINGS = {
    errno.EPERM: _Meaning(
        "denied",
        "the container's device rules forbid it",
        "pass the node as a device, not as a volume: --device {path}",
    ),
    errno.ENOENT: _Meaning(
        "missing",
        "it is not in the container",
        "pass the node into the container: --device {path}",
    ),
    errno.EISDIR: _Meaning(
        "not-a-device",
        "a volume mount of a missing node leaves a folder of its name",
        "on the host: rmdir {path}; then pass the node by --device {path}",
    ),
    errno.ENODEV: _Meaning("refused", "no driver stands behind the node", _LOAD),
    errno.ENXIO: _Meaning("refused", "no driver stands behind the node", _LOAD),
    errno.ENOMEM: _Meaning(
        "refused",
        "the compute driver has no GPU that it can use: this kernel is not the one that the driver "
        "was installed for, or does not know the GPU",
        "on the host: uname -r; dkms status; dmesg | grep -iE 'amdgpu|kfd'",
    ),
    errno.EINVAL: _Meaning(
        "refused",
        "the compute driver refuses this process: a GPU is being reset, or driver and ROCm do not "
        "fit",
        _LOOK_AT_KERNEL,
    ),
    errno.EAGAIN: _Meaning(
        "refused",
        "the compute driver is locked while a GPU is reset or asleep",
        "try again; if it stays so, " + _LOOK_AT_KERNEL,
    ),
}
# What means something else outside of a container.
_MEANINGS_ON_HOST = _MEANINGS | {
    errno.EPERM: _Meaning(
        "denied",
        "the device rules of the process's control group forbid it",
        "run it outside of the service or sandbox that limits its devices",
    ),
    errno.ENOENT: _Meaning("missing", "no driver made it", _LOAD),
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a node did not open.

    Attributes:
        reason: One word for programs: kfd-missing, kfd-not-a-device, kfd-denied, kfd-refused, and
            the same of render.
        message: One sentence for people.
        remedy: What to type or do.
    """

    reason: str
    message: str
    remedy: str


def may_open(
    node: DeviceNode, uid: int, groups: Sequence[int], *, capabilities: bool = True
) -> bool:
    """Tell whether mode and owner let a process open a node for reading and writing.

    The first class that fits decides, even if a later one would allow more:
    https://pubs.opengroup.org/onlinepubs/9799919799/basedefs/V1_chap04.html#tag_04_07

    Args:
        node: The node.
        uid: The process's user.
        groups: All its groups.
        capabilities: Whether root may open everything (CAP_DAC_OVERRIDE).
    """
    if node.mode is None:
        return False
    if uid == _ROOT and capabilities:
        return True
    if uid == node.uid:
        bits = node.mode >> 6
    elif node.gid in groups:
        bits = node.mode >> 3
    else:
        bits = node.mode
    return bits & _READ_WRITE == _READ_WRITE


def explain(
    node: DeviceNode,
    error: int,
    *,
    uid: int,
    groups: Sequence[int],
    selinux_enforcing: bool,
    in_container: bool = True,
) -> Explanation:
    """Say what it means that a node did not open for reading and writing.

    Args:
        node: What the host has at that path.
        error: Number of the error, such as errno.EACCES; 0 if it is not known.
        uid: User of the process that tried.
        groups: All its groups.
        selinux_enforcing: Whether SELinux enforces on the host.
        in_container: Whether the process was in a container.
    """
    kind = "kfd" if node.path == KFD else "render"
    said = os.strerror(error) if error else "nobody said why"
    failed = f"{node.path} cannot be opened for reading and writing: {said}"
    if error == errno.EACCES:
        who = f"the process is user {uid} " + (
            f"with groups {', '.join(map(str, sorted(groups)))}" if groups else "without groups"
        )
        # Root was refused, so it lacks the capability that would have let it.
        if may_open(node, uid, groups, capabilities=False):
            why, remedy = _beyond_mode(selinux_enforcing=selinux_enforcing)
        else:
            why, remedy = None, _for_mode(node, in_container=in_container)
        parts = (failed, f"{_ownership(node)}, {who}", why)
        return Explanation(f"{kind}-denied", "; ".join(filter(None, parts)), remedy)
    meanings = _MEANINGS if in_container else _MEANINGS_ON_HOST
    meaning = meanings.get(error)
    if meaning is None:
        return Explanation(f"{kind}-refused", failed, _LOOK_AT_KERNEL)
    return Explanation(
        f"{kind}-{meaning.outcome}",
        f"{failed}; {meaning.why}",
        meaning.remedy.format(path=node.path),
    )


def _ownership(node: DeviceNode) -> str:
    if node.mode is None:
        return f"{node.path} is not seen from here"
    return f"{node.path} is {node.uid}:{node.gid} {node.mode:04o}"


def _beyond_mode(*, selinux_enforcing: bool) -> tuple[str, str]:
    """Return what forbids it although mode and groups do not, and what would let it."""
    if selinux_enforcing:
        return (
            "mode and groups allow it, SELinux does not",
            "on the host: setsebool -P container_use_dri_devices=1",
        )
    return (
        "mode and groups allow it, something else does not",
        "look for AppArmor (dmesg | grep -i apparmor) or a user namespace that hides the group",
    )


def _for_mode(node: DeviceNode, *, in_container: bool) -> str:
    """Return what would let a process whom mode and groups do not."""
    if node.mode is None:
        return f"ls -l {node.path}, there and on the host"
    group_may = node.mode >> 3 & _READ_WRITE == _READ_WRITE
    if node.gid == _UNMAPPED:
        return "a user namespace hides the owning group; Podman with crun: --group-add keep-groups"
    if not group_may or node.gid == _ROOT:
        name = "kfd" if node.path == KFD else "renderD*"
        return (
            "on the host, give the node to a group, in /etc/udev/rules.d/70-amdgpu.rules: "
            f'KERNEL=="{name}", GROUP="render", MODE="0660"'
        )
    if in_container:
        return f"run it with the group that owns the node, as a number: --group-add {node.gid}"
    return f'sudo usermod -aG "$(getent group {node.gid} | cut -d: -f1)" "$USER"; then log in again'
