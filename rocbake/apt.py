"""apt as a resolver: an isolated root, no root rights, nothing of the machine but its proxies.

Turns wishes into packages of one archive state; knows nothing of containers or locks.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

from debian import deb822

from rocbake import digest, log, run
from rocbake.errors import FetchError, LockError, TrustError
from rocbake.mirror import redact
from rocbake.source import Deb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rocbake.container import Archive, Suite

ARCHITECTURE = "amd64"
_COMPONENT = "main"
# Above 100, what is installed; below 500, another suite's default. Any number between would do.
_PREFERRED = 600
_UPDATE_SECONDS = 600.0
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s']+", re.IGNORECASE)


@dataclass(frozen=True)
class Release:
    """The state of one suite, as its signed Release file gives it."""

    suite: str
    codename: str
    date: datetime
    sha256: str


class Indices:
    """The indices of an archive's suites, fetched once, checked against a keyring.

    Use it as a context manager: the isolated root lives in a temporary folder.
    """

    def __init__(self, archive: Archive, *, keyring: Path, mirrors: Sequence[str]) -> None:
        self._archive = archive
        self._keyring = keyring.resolve()
        self._mirrors = mirrors
        self._root = Path()

    def __enter__(self) -> Self:
        if not shutil.which("apt-get"):
            raise LockError(
                "locks are made with apt, and apt-get is not on PATH",
                hint="run invoke lock on a Debian or Ubuntu machine; invoke build needs no apt",
            )
        self._root = Path(tempfile.mkdtemp(prefix="rocbake-apt-"))
        try:
            self._update()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def _update(self) -> None:
        """Fetch and check the indices from the first mirror that has them all."""
        if not self._mirrors:
            raise FetchError(
                f"no mirror of the archive {self._archive.name!r} is known on this machine",
                hint=f"ROCBAKE_MIRRORS={self._archive.name}=<address of a mirror> invoke lock",
            )
        answers = []
        for mirror in self._mirrors:
            self._lay_out(mirror)
            result = self._apt("apt-get", "update", timeout=_UPDATE_SECONDS, check=False)
            # apt-get update forgives what it could not fetch, so its exit code is not enough.
            faults = [
                line for line in result.stderr.splitlines() if line.startswith(("E:", "W:", "Err:"))
            ]
            if result.returncode == 0 and not faults:
                return
            answers += [
                _without_secrets(f"{mirror}: {line}")
                for line in faults or [f"exit {result.returncode}"]
            ]
        signature = any("GPG error" in answer or "not signed" in answer for answer in answers)
        told = "no mirror gave indices that can be trusted:\n  " + "\n  ".join(answers)
        if signature:
            raise TrustError(
                told, hint=f"check {self._keyring.name} against the archive's published keys"
            )
        raise FetchError(told, hint="check the network, or set ROCBAKE_MIRRORS to another mirror")

    def _lay_out(self, mirror: str) -> None:
        """Write the folders and files of an apt that shares nothing with the machine's."""
        shutil.rmtree(self._root)
        for folder in ("etc/apt.conf.d", "state/lists/partial", "cache/archives/partial", "log"):
            (self._root / folder).mkdir(parents=True)
        self._root.joinpath("status").touch()
        signed_by = f"signed-by={self._keyring}"
        self._root.joinpath("sources.list").write_text(
            "".join(
                f"deb [{signed_by}] {mirror} {suite.name} {_COMPONENT}\n"
                for suite in self._archive.suites
            )
        )
        self._root.joinpath("preferences").write_text(_preferences(self._archive.suites))
        settings = {
            "Dir": self._root,
            "Dir::State": self._root / "state",
            "Dir::State::status": self._root / "status",
            "Dir::Cache": self._root / "cache",
            "Dir::Etc": self._root / "etc",
            "Dir::Etc::sourcelist": self._root / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::preferences": self._root / "preferences",
            "Dir::Etc::preferencesparts": "-",
            "Dir::Etc::trusted": "/dev/null",
            "Dir::Etc::trustedparts": "-",
            "Dir::Log": self._root / "log",
            "APT::Architecture": ARCHITECTURE,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            # A mirror may lag, or be frozen on purpose. The date of each Release file is printed
            # and recorded, so that an old one shows; `releases` warns of one past its date.
            "Acquire::Check-Valid-Until": "false",
            "Acquire::Retries": "3",
        }
        text = "".join(f'{key} "{value}";\n' for key, value in settings.items())
        text += f'APT::Architectures {{ "{ARCHITECTURE}"; }};\n' + _machine_settings()
        self._root.joinpath("apt.conf").write_text(text)

    def _apt(self, *words: str, timeout: float | None = None, check: bool = True) -> run.Result:
        env = {**os.environ, "APT_CONFIG": str(self._root / "apt.conf"), "LC_ALL": "C.UTF-8"}
        try:
            return run.run(words, env=env, timeout=timeout, check=check, error=LockError)
        except LockError as failed:
            # It shows apt's last lines, and they may hold addresses.
            raise LockError(_without_secrets(str(failed)), hint=failed.hint) from None

    def releases(self) -> list[Release]:
        """Return the state of each suite."""
        found = []
        for suite in self._archive.suites:
            (path,) = self._root.glob(f"state/lists/*_dists_{suite.name}_InRelease")
            release = deb822.Release(path.read_bytes())
            _warn_if_past(suite.name, release)
            found.append(
                Release(
                    suite=suite.name,
                    codename=release["Codename"],
                    date=parsedate_to_datetime(release["Date"]),
                    sha256=digest.sha256_file(path),
                )
            )
        return found

    def resolve(
        self, wishes: Sequence[str], *, installed: Sequence[Deb] = (), essential: bool = False
    ) -> list[Deb]:
        """Return the closure of the wishes beyond what is installed, sorted by name.

        Args:
            wishes: Names of packages.
            installed: What the layers below hold already; never changed.
            essential: Whether the essential packages are wished for too.

        Raises:
            LockError: When apt cannot satisfy the wishes without changing what is installed, or
                the archive does not hold what is installed any more.
        """
        status = "".join(
            f"{str(stanza).rstrip()}\nStatus: install ok installed\n\n"
            for stanza in self._show(installed)
        )
        self._root.joinpath("status").write_text(status)
        words = [*(["?essential"] if essential else []), *wishes]
        printed = self._apt("apt-get", "install", "--print-uris", "--yes", "-qq", *words)
        wanted = []
        for line in printed.stdout.splitlines():
            if not line.startswith("'"):
                continue
            file_name = line.split()[1]
            name, version, architecture = file_name.removesuffix(".deb").split("_")
            wanted.append((name, unquote(version), architecture))
        below = {deb.name: deb for deb in installed}
        changed = [
            f"{name}: {below[name].version} is below, {version} is needed"
            for name, version, _ in wanted
            if name in below
        ]
        if changed:
            raise LockError(
                "the archive moved on, and a layer below would have to change:\n  "
                + "\n  ".join(changed),
                hint="invoke lock  (all of them, at one moment)",
            )
        return self._locked(wanted)

    def _locked(self, wanted: Sequence[tuple[str, str, str]]) -> list[Deb]:
        stanzas = {
            (one["Package"], one["Version"]): one
            for one in self._stanzas([f"{name}={version}" for name, version, _ in wanted])
        }
        found = []
        for name, version, _ in sorted(wanted):
            stanza = stanzas[name, version]
            found.append(
                Deb(
                    archive=self._archive.name,
                    name=name,
                    version=version,
                    architecture=stanza["Architecture"],
                    sha256=stanza["SHA256"],
                    size=int(stanza["Size"]),
                    path=stanza["Filename"],
                )
            )
        return found

    def _show(self, debs: Sequence[Deb]) -> list[deb822.Packages]:
        """Return the stanzas of packages, which must all be in the archive still."""
        stanzas = self._stanzas([f"{deb.name}={deb.version}" for deb in debs])
        known = {(one["Package"], one["Version"]) for one in stanzas}
        gone = [deb.label for deb in debs if (deb.name, deb.version) not in known]
        if gone:
            raise LockError(
                "the archive moved on and does not list any more what a layer below holds:\n  "
                + "\n  ".join(gone),
                hint="invoke lock  (all of them, at one moment)",
            )
        return stanzas

    def _stanzas(self, names: Sequence[str]) -> list[deb822.Packages]:
        if not names:
            return []
        text = self._apt("apt-cache", "show", "--no-all-versions", *names, check=False).stdout
        return list(deb822.Packages.iter_paragraphs(text, use_apt_pkg=False))


def _preferences(suites: Sequence[Suite]) -> str:
    paragraphs = []
    for suite in suites:
        if suite.only:
            names = " ".join(suite.only)
            paragraphs.append(
                f"Package: {names}\nPin: release a={suite.name}\nPin-Priority: {_PREFERRED}\n"
            )
            paragraphs.append(f"Package: *\nPin: release a={suite.name}\nPin-Priority: -1\n")
    return "\n".join(paragraphs)


def _warn_if_past(suite: str, release: deb822.Release) -> None:
    until = release.get("Valid-Until")
    if until and parsedate_to_datetime(until) < datetime.now(UTC):
        log.warn(
            f"{suite}: its Release file of {release['Date']} was valid until {until}: "
            "the mirror lags, is frozen, or keeps newer packages back"
        )


def _without_secrets(text: str) -> str:
    return _ADDRESS.sub(lambda found: redact(found[0]), text)


def _machine_settings() -> str:
    """Return the machine's own proxies and certificates: how to reach hosts, not which."""
    dump = run.run(["apt-config", "dump"], check=False, error=LockError).stdout
    wanted = ("Acquire::http::", "Acquire::https::", "Acquire::ftp::")
    return "".join(f"{line}\n" for line in dump.splitlines() if line.startswith(wanted))


def version() -> str:
    """Return apt's version, for the record."""
    words = run.run(["apt-get", "--version"], error=LockError).stdout.split()
    return words[1]
