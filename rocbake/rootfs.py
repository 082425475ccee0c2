"""The root file system: Debian from locked packages alone, made by mmdebstrap, no network.

The same packages give the same bytes on every machine, whatever its mmdebstrap, apt, dpkg and tar:
what is installed, and how, is decided inside the new system by its own dpkg; what the machine's
programs leave there is taken away; and the tar is written again in one form.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import tarfile
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
_PREFIX = ".rocbake-rootfs-"
# What a machine's own mmdebstrap, apt and dpkg leave behind, and differently from version to
# version: logs, caches, lists, and the host's name and resolver, which mmdebstrap copies in. It is
# left out of the tar, and not removed from the new system by a hook: mmdebstrap still needs some of
# it, and its apt-get would clean the lists and the cache of the host without it.
_LEFT_BEHIND = (
    "dev/*",  # every engine makes its own, and unpacking devices takes rights
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
    "var/lib/apt/lists/auxfiles",
    "var/lib/dpkg/*-old",
    "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock",
    "run/*",
    "tmp/*",
)
# As above, but the folders are the packages'.
_EMPTY = ("var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*")
# An empty machine-id is made anew at the first boot; a filled one would be every container's.
_NORMALISE = ': > "$1"/etc/machine-id; chmod 0644 "$1"/etc/machine-id'
# As root mmdebstrap mounts /proc, /sys and devices where it unpacks, and a kill would leave them
# there, for the next `rm -r` to run into. In name spaces of its own they go with it, as does
# everything it started. Unprivileged it makes such name spaces itself.
_ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# The one extended attribute that packages set. All others are the machine's: SELinux labels, say.
_CAPABILITY = "SCHILY.xattr.security.capability"


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
    # Where it ends up there is room, as was checked; /tmp may be in memory. As an unprivileged
    # user mmdebstrap unpacks under other user numbers, which may not enter one's home.
    place = destination.parent if os.geteuid() == 0 else None
    place = place or Path(tempfile.gettempdir())
    _sweep(place)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=place) as folder:
        # mmdebstrap unshares as another user where it is not root, who must reach this.
        Path(folder).chmod(0o755)
        # What is made in it would inherit this, and whatever sets no mode would have another one.
        with contextlib.suppress(OSError):  # there is none
            os.removexattr(folder, "system.posix_acl_default")
        repository = Path(folder, "repository")
        _write_repository(layer.packages, repository, files)
        made = Path(folder, "rootfs.tar")
        words = [
            *(_ALONE if os.geteuid() == 0 else ()),
            "mmdebstrap",
            "--variant=custom",
            f"--architectures={ARCHITECTURE}",
            f"--include={','.join(f'{deb.name}={deb.version}' for deb in layer.packages)}",
            "--aptopt=APT::Install-Recommends false",
            # The lock has the packages' digests, and the files were checked against them.
            "--aptopt=Acquire::AllowInsecureRepositories true",
            "--aptopt=APT::Get::AllowUnauthenticated true",
            "--format=tar",
            # What it would clean is left out below, and the folders that the host's apt-get makes
            # belong to the number that the user _apt has on the host.
            "--skip=cleanup/apt",
            f"--customize-hook={_NORMALISE}",
            "",
            str(made),
            f"deb [trusted=yes] copy:{repository} ./",
        ]
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": folder,
            # The new system is unpacked here; inside it mmdebstrap unsets the variable.
            "TMPDIR": folder,
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "SOURCE_DATE_EPOCH": str(layer.epoch),
            "DEBIAN_FRONTEND": "noninteractive",
        }
        run.run(words, env=env, timeout=_SECONDS, log_path=log_path)
        partial = destination.with_name(f".{destination.name}.{os.getpid()}")
        try:
            _rewrite(made, partial, layer.epoch)
            partial.replace(destination)
        finally:
            partial.unlink(missing_ok=True)


def _sweep(place: Path) -> None:
    """Remove what runs left in a folder that were killed."""
    for path in place.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path(f"/proc/{number}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _rewrite(made: Path, destination: Path, epoch: int) -> None:
    """Write a tar again: the members that are kept, in the same order, in one form.

    GNU tar 1.34 and 1.35 write the headers of the same files differently.
    """
    with (
        tarfile.open(made, encoding="utf-8") as source,
        tarfile.open(destination, "w", format=tarfile.PAX_FORMAT, encoding="utf-8") as target,
    ):
        for member in source:
            if _is_left_behind(member):
                continue
            # A folder's date says when something was last made or removed in it, here.
            member.mtime = epoch if member.isdir() else min(int(member.mtime), epoch)
            member.uname = member.gname = ""
            member.pax_headers = {
                name: value for name, value in member.pax_headers.items() if name == _CAPABILITY
            }
            target.addfile(member, source.extractfile(member) if member.isreg() else None)


def _is_left_behind(member: tarfile.TarInfo) -> bool:
    patterns = _LEFT_BEHIND if member.isdir() else _LEFT_BEHIND + _EMPTY
    name = member.name.removeprefix("./")
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _write_repository(packages: tuple[Deb, ...], folder: Path, files: Mapping[str, Path]) -> None:
    """Write a flat repository that holds the packages and nothing else, for anyone to read."""
    folder.mkdir()
    folder.chmod(0o755)
    stanzas = []
    for deb in packages:
        path = folder / deb.file_name
        shutil.copyfile(files[deb.sha256], path)
        path.chmod(0o644)
        with DebFile(str(path)) as package:
            control = str(package.debcontrol()).rstrip()
        stanzas.append(
            f"{control}\nFilename: ./{deb.file_name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        )
    index = folder / "Packages"
    index.write_text("\n".join(stanzas), encoding="utf-8")
    index.chmod(0o644)


def find(layer: Layer, folder: Path) -> Path | None:
    """Return the tar that is kept in a folder for this layer, if its bytes are still its own."""
    tar = folder / f"{key(layer)}.tar"
    note = tar.with_suffix(".sha256")
    if not (tar.is_file() and note.is_file()):
        return None
    return tar if digest.sha256_file(tar) == note.read_text().strip() else None


def keep(layer: Layer, folder: Path, *, files: Mapping[str, Path], log_path: Path) -> Path:
    """Make the tar and keep it in a folder, with its SHA-256 beside it; see make().

    The digest is written last and taken away first: a tar without one is never used.
    """
    tar = folder / f"{key(layer)}.tar"
    note = tar.with_suffix(".sha256")
    note.unlink(missing_ok=True)
    make(layer, tar, files=files, log_path=log_path)
    partial = note.with_name(f".{note.name}.{os.getpid()}")
    partial.write_text(f"{digest.sha256_file(tar)}\n")
    partial.replace(note)
    return tar


def key(layer: Layer) -> str:
    """Return what a kept tar is known by: all that decides about its bytes, this file included."""
    return digest.sha256_json(
        {
            "packages": [deb.sha256 for deb in layer.packages],
            "epoch": layer.epoch,
            "how": digest.sha256_file(Path(__file__)),
        }
    )
