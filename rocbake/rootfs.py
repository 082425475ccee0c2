"""The root file system: Debian from locked packages alone, made by mmdebstrap, no network.

The same packages give the same bytes on every machine; see docs/reproducibility.md.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from debian.debfile import DebFile

from rocbake import digest, run
from rocbake.apt import ARCHITECTURE
from rocbake.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocbake.plan import Layer
    from rocbake.source import Deb

_SECONDS = 1800.0
# What a machine's own mmdebstrap, apt and dpkg leave behind, and differently from version to
# version: logs, caches, lists, and the host's name and resolver, which mmdebstrap copies in.
_LEFT_BEHIND = (
    "etc/fstab",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d/*",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/aux-cache",
    "var/lib/apt/extended_states",
    "var/lib/dpkg/*-old",
    "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock",
    "run/*",
    "tmp/*",
)


def make(layer: Layer, destination: Path, *, files: Mapping[str, Path], log_path: Path) -> None:
    """Write the root container's file system as a tar, by rename.

    Args:
        layer: The root layer of a plan.
        destination: Where the tar goes.
        files: Where each package lies, by SHA-256.
        log_path: A file that mmdebstrap's output is appended to.

    Raises:
        BuildError: mmdebstrap is missing or failed.
    """
    if not shutil.which("mmdebstrap"):
        raise BuildError("mmdebstrap is not installed, or not on PATH", hint="./bootstrap")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rocbake-rootfs-") as folder:
        # mmdebstrap unshares as another user where it is not root, who must reach this.
        Path(folder).chmod(0o755)
        repository = Path(folder, "repository")
        repository.mkdir()
        _write_repository(layer.packages, repository, files)
        remove = " ".join(f'"$1"/{pattern}' for pattern in _LEFT_BEHIND)
        folders = " ".join(f'"$1"/{name}' for name in _EMPTY)
        made = Path(folder, "rootfs.tar")
        words = [
            "mmdebstrap",
            "--variant=custom",
            f"--architectures={ARCHITECTURE}",
            f"--include={','.join(f'{deb.name}={deb.version}' for deb in layer.packages)}",
            "--aptopt=APT::Install-Recommends false",
            # The lock has the packages' digests, and the files were checked against them.
            "--aptopt=Acquire::AllowInsecureRepositories true",
            "--aptopt=APT::Get::AllowUnauthenticated true",
            "--format=tar",
            f"--customize-hook=rm -rf {remove}",
            f"--customize-hook=find {folders} -type f -delete",
            f"--customize-hook={_NORMALISE}",
            "",
            str(made),
            f"deb [trusted=yes] copy:{repository} ./",
        ]
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": folder,
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "SOURCE_DATE_EPOCH": str(layer.epoch),
            "DEBIAN_FRONTEND": "noninteractive",
        }
        run.run(words, env=env, timeout=_SECONDS, log_path=log_path)
        partial = destination.with_name(f".{destination.name}.{os.getpid()}")
        try:
            shutil.copyfile(made, partial)
            partial.replace(destination)
        finally:
            partial.unlink(missing_ok=True)


# The files only: the folders are the packages'.
_EMPTY = ("var/cache/apt", "var/lib/apt/lists", "var/log")
# An empty machine-id is made anew at the first boot; a filled one would be every container's.
_NORMALISE = ': > "$1"/etc/machine-id; chmod 0644 "$1"/etc/machine-id'


def _write_repository(packages: tuple[Deb, ...], folder: Path, files: Mapping[str, Path]) -> None:
    """Write a flat repository that holds the packages and nothing else."""
    stanzas = []
    for deb in packages:
        path = folder / deb.file_name
        shutil.copyfile(files[deb.sha256], path)
        control = str(DebFile(str(path)).debcontrol()).rstrip()
        stanzas.append(
            f"{control}\nFilename: ./{deb.file_name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        )
    folder.joinpath("Packages").write_text("\n".join(stanzas), encoding="utf-8")


def key(layer: Layer) -> str:
    """Return what a kept tar is known by: all that decides about its bytes."""
    return digest.sha256_json(
        {
            "packages": [deb.sha256 for deb in layer.packages],
            "epoch": layer.epoch,
            "left_behind": list(_LEFT_BEHIND),
            "empty": list(_EMPTY),
            "normalise": _NORMALISE,
        }
    )
