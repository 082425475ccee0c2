#!/usr/bin/env python3
"""What the build.sh of every recipe that Bazel builds calls: one verb a step.

preflight WORKSPACE             find all that is missing, in seconds
deps WORKSPACE                  download what the build needs, into /rocbake/deps
build WORKSPACE                 build, from what was downloaded
make PACKAGE WORKSPACE ARCHIVE  the same by the make step of an Elixir package

Which of them a build.sh is to take, the variable STAGE says: deps or build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import disk
import downloads
import makestep
import preflight
import targets
from line import DISK_CACHE, HOME, Line, line, planned, write_startup
from toolchain import ToolError, run, say

_DEPS = Path("/rocbake/deps")
_LOCKED = Path("/rocbake/sources/repository-cache.tar")
_REPOSITORIES = _DEPS / "repositories"
_RULES_LOG = Path("/rocbake/build/workspace-rules.log")


def main(words: list[str]) -> int:
    """Carry out one verb; a message and 1 where that fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("preflight", "deps", "build"):
        verbs.add_parser(name).add_argument("workspace", type=Path)
    make = verbs.add_parser("make")
    for name in ("package", "workspace", "archive"):
        make.add_argument(name, type=Path)
    asked = parser.parse_args(words)
    try:
        match asked.verb:
            case "preflight":
                preflight.preflight(asked.workspace, planned())
            case "deps":
                deps(asked.workspace)
            case "build":
                build(asked.workspace)
            case "make":
                build(asked.workspace, package=asked.package, archive=asked.archive)
    except ToolError as wrong:
        for row in str(wrong).splitlines():
            print(f"error: {row}", file=sys.stderr)  # noqa: T201 - the log of the build
        return 1
    return 0


def deps(workspace: Path) -> None:
    """Download everything that the build needs, and say what of it nobody vouches for.

    Raises:
        ToolError: Bazel failed; what it said stands in the log.
    """
    write_startup()
    told = line(offline=False)
    # Analysis asks for every repository that the build will, and compiles nothing.
    extra = ["--nobuild", f"--experimental_workspace_rules_log_file={_RULES_LOG}"]
    _bazel(workspace, ["build", *extra, *told.words])
    external = _external(workspace)
    _read_targets_back(external, told)
    _keep_unsure(external)
    # What is on its way is no download.
    for path in [one for one in _DEPS.rglob("*") if one.name.startswith("tmp-")]:
        path.unlink()


def _external(workspace: Path) -> Path:
    """Return where Bazel keeps the repositories of a workspace."""
    # Behind warnings, if there are any.
    said = run("bazel", "info", "output_base", cwd=workspace, env=_environment()).stdout
    return Path(said.rstrip().rpartition("\n")[2]) / "external"


def _read_targets_back(external: Path, line_told: Line) -> None:
    asked = [name for name in os.environ.get("GPU_TARGETS", "").split(",") if name]
    if told := targets.require(external, asked, line_told.words):
        say(told)


def _keep_unsure(external: Path) -> None:
    """Keep whole repositories whose downloads no checksum vouches for, and name them.

    The repository cache finds files by their checksums, so it has none of these.
    """
    unsure = downloads.without_checksum(_RULES_LOG.read_bytes() if _RULES_LOG.exists() else b"")
    for name, urls in unsure.items():
        say(f"no checksum: @{name}: {', '.join(urls)}; its bytes are those of the lock from now on")
        # What differs from one fetch to the next, and is no input of a build.
        besides = shutil.ignore_patterns("__pycache__", ".git")
        shutil.copytree(external / name, _REPOSITORIES / name, ignore=besides)


def build(workspace: Path, *, package: Path | None = None, archive: Path | None = None) -> None:
    """Build from what was downloaded.

    Args:
        workspace: The workspace.
        package: The folder of an Elixir package whose make step calls Bazel; called here if None.
        archive: What that make step is to make.

    Raises:
        ToolError: Bazel failed, or upstream's make step would tell it something else.
    """
    write_startup()
    if not _LOCKED.is_file():
        raise ToolError(f"{_LOCKED} is not there: invoke lock records what Bazel downloads")
    with tarfile.open(_LOCKED) as tar:
        tar.extractall(_DEPS, filter="data")
    told = line(offline=True)
    kept = sorted(_REPOSITORIES.iterdir()) if _REPOSITORIES.is_dir() else []
    told.flags.extend(f"--override_repository={one.name}={one}" for one in kept)
    try:
        # Configured first, and what for is read back: before the hours, and not after them.
        _bazel(workspace, ["build", "--nobuild", *told.words])
        _read_targets_back(_external(workspace), told)
        if package and archive:
            _make(told, workspace, package, archive)
        else:
            _bazel(workspace, ["build", *told.words])
    finally:
        run("bazel", "shutdown", cwd=workspace, env={"HOME": str(HOME)})
        if DISK_CACHE.is_dir():
            say(disk.prune(DISK_CACHE))


def _make(told: Line, workspace: Path, package: Path, archive: Path) -> None:
    words = makestep.words(told, workspace, package, archive)
    makestep.require_same(told, words)
    say(f"make: {archive.name}")
    code = subprocess.run(words, cwd=package, env=_environment(), check=False).returncode
    if code != 0:
        raise ToolError(f"make ended with exit code {code}")


def _bazel(workspace: Path, words: list[str]) -> None:
    say("bazel " + " ".join(words))
    code = subprocess.run(
        ["bazel", *words], cwd=workspace, env=_environment(), check=False
    ).returncode
    if code != 0:
        raise ToolError(f"bazel ended with exit code {code}")


def _environment() -> dict[str, str]:
    """Return what Bazel's client sees: the container's, whoever builds and wherever."""
    if not shutil.which("bazel"):
        raise ToolError("bazel is not on PATH: is this the container for it?")
    return os.environ | {"HOME": str(HOME), "LC_ALL": "C.UTF-8"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
