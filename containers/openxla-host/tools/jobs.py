"""How much of this machine Bazel may use: asked, because it would look at the host's, not ours."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain import say

if TYPE_CHECKING:
    from collections.abc import Iterator

# What one action of OpenXLA may take while it compiles: host code of MLIR and device code alike.
BYTES_PER_JOB = 2 * 1000**3
# Bazel's own server, a program in Java.
_SERVER_BYTES = 2 * 1000**3
_ROOT = Path("/")
_NUMBER = re.compile(r"[0-9]{1,20}")


def flags(root: Path = _ROOT) -> list[str]:
    """Return the words by which Bazel heeds the container's limits, and say what they are.

    Args:
        root: Where /proc and /sys are.
    """
    memory, processors = _memory(root), _cores(root)
    count = asked() or fitting(processors, memory)
    # rocbake reads this line, to say what to do if memory runs out.
    say(f"jobs: {count} ({processors} core{'s' if processors > 1 else ''}, "
        f"{memory / 1024**3:.1f} GiB)")  # fmt: skip
    for_actions = max(BYTES_PER_JOB, memory - _SERVER_BYTES)
    return [
        f"--jobs={count}",
        f"--local_resources=cpu={max(processors, count)}",
        f"--local_resources=memory={for_actions // 1024**2}",
    ]


def asked() -> int:
    """Return how many jobs were asked for; 0 if that is left to this container."""
    return int(os.environ.get("JOBS") or 0)


def room(root: Path = _ROOT) -> int:
    """Return how many actions find memory beside Bazel's server, however many processors."""
    return max(0, (_memory(root) - _SERVER_BYTES) // BYTES_PER_JOB)


def fitting(processors: int, memory: int) -> int:
    """Return how many actions fit beside Bazel's server."""
    return max(1, min(processors, (memory - _SERVER_BYTES) // BYTES_PER_JOB))


def _memory(root: Path) -> int:
    """Return how many bytes this container may use."""
    amounts = [
        int(row.split()[1]) * 1024
        for row in _read(root / "proc/meminfo").splitlines()
        if row.startswith("MemAvailable:")
    ]
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        limits = [_read(folder / name) for folder in _control_groups(root, controller)]
        amounts += [int(limit) for limit in limits if _NUMBER.fullmatch(limit)]
    return min(amounts, default=BYTES_PER_JOB)


def _cores(root: Path) -> int:
    """Return how many processors this container may keep busy."""
    counts = [float(len(os.sched_getaffinity(0)))]
    for folder in _control_groups(root, ""):
        counts += _share(*_read(folder / "cpu.max").partition(" ")[::2])
    for folder in _control_groups(root, "cpu"):
        counts += _share(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
    return max(1, int(min(counts)))


def _share(quota: str, period: str) -> list[float]:
    """Return the processors' worth of a quota; nothing for `max`, -1, or what is no number."""
    if all(_NUMBER.fullmatch(one) and int(one) for one in (quota, period)):
        return [int(quota) / int(period)]
    return []


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of all above it, which bind as well.

    A line of /proc/self/cgroup is number:controllers:path, with no controllers for version 2:
    https://man7.org/linux/man-pages/man7/cgroups.7.html
    """
    mount = root / "sys/fs/cgroup" / controller
    told = re.findall(r"^\d+:([^:\n]*):/([^\n]*)$", _read(root / "proc/self/cgroup"), re.MULTILINE)
    for names, path in told:
        if controller in names.split(",") and ".." not in path.split("/"):
            group = mount / path.strip("/")
            while group != mount:
                yield group
                group = group.parent
    # A container sees its own group as the top one, whatever the path says.
    yield mount


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
