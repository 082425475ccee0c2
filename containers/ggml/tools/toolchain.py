"""What is in this container to build with: asked, never guessed."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# An object of device code takes up to 2 GB of memory while it is compiled.
BYTES_PER_JOB = 2 * 1000**3
_CGROUP = Path("/sys/fs/cgroup")
_CCACHE = Path("/rocbake/ccache")


class ToolError(Exception):
    """A message for a person; the build ends with it."""


def run(*words: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program and keep what it prints; a program that is not there ends with 127."""
    try:
        return subprocess.run(
            [str(word) for word in words],
            env=None if env is None else os.environ | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(list(words), 127, f"{words[0]}: not found\n")


def targets() -> list[str]:
    """Return the GPU targets of this build."""
    names = [name for name in os.environ.get("GPU_TARGETS", "").split(",") if name]
    if not names:
        raise ToolError("GPU_TARGETS is empty: name the GPU targets, separated by commas")
    return names


def options() -> dict[str, str]:
    """Return the build options, which rocbake resolved: OPTIONS is `name=value name=value`."""
    return dict(word.split("=", 1) for word in os.environ.get("OPTIONS", "").split())


@dataclass(frozen=True)
class Compilers:
    """Where ROCm's own compilers are."""

    c: Path
    cxx: Path


def compilers() -> Compilers:
    """Ask hipconfig for the folder of ROCm's Clang.

    Raises:
        ToolError: hipconfig is not there, or names a folder without compilers.
    """
    answer = run("hipconfig", "--hipclangpath")
    if answer.returncode != 0 or not answer.stdout.strip():
        raise ToolError("hipconfig does not say where ROCm's compiler is: is hipcc installed?")
    folder = Path(answer.stdout.strip().splitlines()[-1])
    found = Compilers(folder / "clang", folder / "clang++")
    missing = [str(one) for one in (found.c, found.cxx) if not os.access(one, os.X_OK)]
    if missing:
        raise ToolError(f"hipconfig names {folder}, but there is no {' and no '.join(missing)}")
    return found


def ccache_environment() -> dict[str, str]:
    """Return ccache's settings, or nothing where it is not to be used.

    The compiler is told apart by the container's key, which stands for every package in it by
    SHA-256: Clang's own file is small, and its work is done by libraries that ccache does not see.
    """
    if os.environ.get("CCACHE") != "1" or not shutil.which("ccache"):
        return {}
    return {
        "CCACHE_DIR": str(_CCACHE),
        "CCACHE_COMPILERCHECK": f"string:{os.environ.get('SDK', '')}",
        "CCACHE_MAXSIZE": "5G",
        "CCACHE_NOINODECACHE": "1",
    }


def memory() -> int:
    """Return how many bytes this container may use."""
    amounts = [
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    ]
    limit = _read(_CGROUP / "memory.max") or _read(_CGROUP / "memory" / "memory.limit_in_bytes")
    if limit.isdigit():
        amounts.append(int(limit))
    return min(amounts, default=BYTES_PER_JOB)


def cores() -> int:
    """Return how many processors this container may keep busy."""
    counts = [float(len(os.sched_getaffinity(0)))]
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        counts.append(int(quota) / int(period))
    return max(1, int(min(counts)))


def jobs() -> int:
    """Return how many compilers may run at once: as asked, or what cores and memory allow."""
    asked = os.environ.get("JOBS", "")
    if asked:
        return int(asked)
    return max(1, min(cores(), memory() // BYTES_PER_JOB))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def say(text: str) -> None:
    """Print at once, so that the log has things in their order."""
    print(text, flush=True)  # noqa: T201 - the log of the build
