"""How much of this machine Bazel may use: asked, because it would look at the host's, not ours."""

from __future__ import annotations

import os
from pathlib import Path

from toolchain import say

# What one action of OpenXLA may take while it compiles: host code of MLIR and device code alike.
BYTES_PER_JOB = 2 * 1000**3
# Bazel's own server, a program in Java.
_SERVER_BYTES = 2 * 1000**3
_CGROUP = Path("/sys/fs/cgroup")


def flags(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> list[str]:
    """Return the words by which Bazel heeds the container's limits, and say what they are."""
    memory, processors = _memory(cgroup, meminfo), _cores(cgroup)
    asked = os.environ.get("JOBS", "")
    count = int(asked) if asked else fitting(processors, memory)
    # rocbake reads this line, to say what to do if memory runs out.
    say(f"jobs: {count} ({processors} core{'s' if processors > 1 else ''}, "
        f"{memory / 1024**3:.1f} GiB)")  # fmt: skip
    for_actions = max(BYTES_PER_JOB, memory - _SERVER_BYTES)
    return [
        f"--jobs={count}",
        f"--local_resources=cpu={max(processors, count)}",
        f"--local_resources=memory={for_actions // 1024**2}",
    ]


def is_enough(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> bool:
    """Tell whether one action fits beside Bazel's server."""
    return _memory(cgroup, meminfo) >= BYTES_PER_JOB + _SERVER_BYTES


def fitting(processors: int, memory: int) -> int:
    """Return how many actions fit beside Bazel's server."""
    return max(1, min(processors, (memory - _SERVER_BYTES) // BYTES_PER_JOB))


def _memory(cgroup: Path, meminfo: Path) -> int:
    """Return how many bytes this container may use."""
    amounts = [
        int(row.split()[1]) * 1024
        for row in meminfo.read_text().splitlines()
        if row.startswith("MemAvailable:")
    ]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _read(cgroup / name)
        if limit.isdigit():
            amounts.append(int(limit))
            break
    return min(amounts, default=BYTES_PER_JOB)


def _cores(cgroup: Path) -> int:
    """Return how many processors this container may keep busy."""
    counts = [float(len(os.sched_getaffinity(0)))]
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        counts.append(int(quota) / int(period))
    return max(1, int(min(counts)))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
