"""Where sources come from: mirrors of package archives and of git repositories, and vaults.

No host is named here. Addresses come from the user's configuration, else from this machine's apt.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import platformdirs
import yaml

from rocbake.errors import RecipeError
from rocbake.run import run

if TYPE_CHECKING:
    from collections.abc import Mapping

SNAPSHOT = "@SNAPSHOT@"
_VARIABLE = "ROCBAKE_MIRRORS"
_BLOBS = "blobs"
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_SCHEMES = ("http", "https", "file")
GIT_SCHEMES = ("file", "git", "http", "https", "ssh")
_GIT_ADDRESS = f"a {', '.join(GIT_SCHEMES[:-1])} or {GIT_SCHEMES[-1]} address of git"
_SERVICE = re.compile(r'^Acquire::Snapshots::URI::(\S+) "([^"]*)";', re.MULTILINE)
_APT_SECONDS = 30.0
_SECRETS = re.compile(r"(?<=//)[^/?#\s]*@|(?<=\?)[^#\s]*")


@dataclass(frozen=True)
class Mirrors:
    """Base addresses, in the order they are to be tried.

    Attributes:
        archives: For each package archive's name, such as `debian`, the addresses of its root.
        blobs: Addresses below which a file of any kind lies under its SHA-256.
        git: For a git address, or the beginning of some that ends at a slash, what takes its
            place: addresses that git fetches from, or absolute paths of this machine.
    """

    archives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blobs: tuple[str, ...] = ()
    git: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def archive_urls(self, archive: str, path: str, *, snapshot: str | None) -> list[str]:
        """Return every address of a path below an archive's root.

        Args:
            archive: The archive's name.
            path: The path as a lock holds it, unquoted.
            snapshot: What takes the place of `@SNAPSHOT@`, like `20261030T080801Z`; without it
                an address that holds the placeholder is left out.
        """
        urls = []
        for base in self.archives.get(archive, ()):
            if SNAPSHOT in base and snapshot is None:
                continue
            # A plus is escaped, as apt does: stores behind some mirrors read it as a blank.
            place = base.replace(SNAPSHOT, snapshot or "").rstrip("/")
            urls.append(f"{place}/{quote(path, safe='/~:')}")
        return urls

    def blob_urls(self, sha256: str) -> list[str]:
        """Return every address where a vault would have the file."""
        return [f"{base.rstrip('/')}/{sha256}" for base in self.blobs]

    def git_places(self, url: str) -> list[str]:
        """Return every place to fetch a repository from: its mirrors, and its own address last.

        As with git's `url.<base>.insteadOf`, the longest match wins; a shorter one is not asked.
        """
        matching = [key for key in self.git if url == key or _is_below(url, key)]
        key = max(matching, key=len, default=url)
        rest = url.removeprefix(key)
        found = [f"{base.rstrip('/')}/{rest}" if rest else base for base in self.git.get(key, ())]
        return list(dict.fromkeys([*found, url]))


def redact(address: str) -> str:
    """Return the address without what may be a secret: user and password, and the query."""
    return _SECRETS.sub(lambda found: "***@" if found[0].endswith("@") else "***", address)


def load() -> Mirrors:
    """Read the configuration: `ROCBAKE_MIRRORS`, else the user's `mirrors.yaml`; apt for the rest.

    An archive that the configuration names has these addresses alone; every other one has those
    of this machine's apt, and then apt's snapshot service where apt knows one.

    Raises:
        RecipeError: The configuration is not of the form, with its file and line.
    """
    configured = _configured()
    blobs = configured.pop(_BLOBS, ())
    git = {name: configured.pop(name) for name in list(configured) if _is_git(name)}
    return Mirrors(archives={**_from_apt(), **configured}, blobs=blobs, git=git)


def parse(text: str, *, where: str) -> dict[str, tuple[str, ...]]:
    """Read a mirrors file: YAML, the value of each key one address or a list.

    A key is an archive's name, `blobs`, a git address, or the beginning of some up to a slash.

    Raises:
        RecipeError: The text is not of that form.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise RecipeError(f"{where}:{line}: not YAML: {problem}") from error
    except (RecursionError, ValueError) as error:
        raise RecipeError(f"{where}:1: not YAML that can be read: {error}") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise _wrong(root, where, "expected `NAME: ADDRESS` lines")
    result: dict[str, tuple[str, ...]] = {}
    for key, value in root.value:
        name = _scalar(key, where)
        if name in result:
            raise _wrong(key, where, f"{redact(name)} is here twice")
        listed = value.value if isinstance(value, yaml.SequenceNode) else [value]
        result[_checked_name(name, _at(key, where))] = tuple(
            _checked_value(name, _scalar(item, where), _at(item, where)) for item in listed
        )
    return result


def parse_inline(text: str, *, where: str) -> dict[str, tuple[str, ...]]:
    """Read `NAME=ADDRESS` words, parted by commas or blanks; a name may come more than once.

    Raises:
        RecipeError: A word is not of that form.
    """
    result: dict[str, tuple[str, ...]] = {}
    for word in re.split(r"[\s,]+", text.strip(", \t\r\n")):
        if not word:
            continue
        name, equals, address = word.partition("=")
        if not equals:
            raise RecipeError(
                f"{where}: {redact(word)!r} is neither a file nor NAME=ADDRESS",
                hint=f"export {_VARIABLE}=debian=ADDRESS,{_BLOBS}=ADDRESS",
            )
        _checked_name(name, where)
        result[name] = (*result.get(name, ()), _checked_value(name, address, where))
    return result


def _configured() -> dict[str, tuple[str, ...]]:
    value = os.environ.get(_VARIABLE, "").strip()
    path = platformdirs.user_config_path("rocbake") / "mirrors.yaml"
    if value:
        try:
            path = Path(value).expanduser()
            is_file = path.is_file()
        except (OSError, ValueError, RuntimeError):  # too long, a NUL, no such home: no path
            is_file = False
        if not is_file:
            return parse_inline(value, where=_VARIABLE)
    elif not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}:1: cannot be read: {error}") from error
    return parse(text, where=str(path))


def _from_apt() -> dict[str, tuple[str, ...]]:
    """Return the archives apt installs this machine from; nothing where there is no apt."""
    if shutil.which("apt-get") is None or shutil.which("apt-config") is None:
        return {}
    # Not indextargets: it knows only what an update brought in, and a new machine has had none.
    listed = _apt("apt-get", "update", "--print-uris", "-o", "Debug::NoLocking=true")
    return apt_archives(listed, _apt("apt-config", "dump", "Acquire::Snapshots::URI"))


def _apt(*arguments: str) -> str:
    env = {**os.environ, "LC_ALL": "C"}
    return run(arguments, env=env, timeout=_APT_SECONDS, check=False).stdout


def apt_archives(repositories: str, snapshots: str) -> dict[str, tuple[str, ...]]:
    """Turn what apt says into archives, each named by the last part of its addresses.

    Args:
        repositories: What `apt-get update --print-uris` prints: each index of each archive, its
            address quoted and first in its line.
        snapshots: `apt-config dump Acquire::Snapshots::URI`: how apt 2.9 and later finds the
            snapshot service of an archive, by host or by origin.
    """
    addresses: dict[str, None] = {}
    for line in repositories.splitlines():
        quoted = line.split("'")
        root, dists, _ = (quoted[1] if len(quoted) > 1 else "").partition("/dists/")
        for address in _apt_addresses(root) if dists else ():
            addresses.setdefault(address.rstrip("/"))
    archives: dict[str, tuple[str, ...]] = {}
    for address in addresses:
        name = _path_of(address).rpartition("/")[2]
        if _NAME.fullmatch(name):
            archives[name] = (*archives.get(name, ()), address)
    services = dict(_SERVICE.findall(snapshots))
    origins = [key.rpartition("::")[2].lower() for key in services if "Origin::" in key]
    for name in dict.fromkeys([*archives, *origins]):
        service = _snapshot_service(name, archives.get(name, ()), services)
        if service:
            archives[name] = (*archives.get(name, ()), service)
    return archives


def _apt_addresses(address: str) -> list[str]:
    # Cloud images name a file of addresses instead of one address.
    prefix, _, path = address.partition("mirror+file:")
    if not prefix and path:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        words = [line.split() for line in lines]
        return [word[0] for word in words if word and word[0].partition(":")[0] in _SCHEMES]
    return [address] if address.partition(":")[0] in _SCHEMES else []


def _snapshot_service(
    name: str, addresses: tuple[str, ...], services: dict[str, str]
) -> str | None:
    """Choose as apt does: an override by origin, then the host, then the origin."""
    by_key = {key.lower(): value for key, value in services.items()}
    choices = [(f"override::origin::{name}", name)]
    for address in addresses:
        host = (urlsplit(address).hostname or "").lower()
        path = _path_of(address)
        choices.append((f"host::{host}", path))
        # An entry that begins with a dot is for every host below it.
        labels = host.split(".")
        choices += [(f"host::.{'.'.join(labels[i:])}", path) for i in range(1, len(labels))]
    choices.append((f"origin::{name}", name))
    for key, path in choices:
        service = by_key.get(key, "")
        if service.partition(":")[0] in _SCHEMES:
            return service.replace("@PATH@", path).replace("@SNAPSHOTID@", SNAPSHOT).rstrip("/")
    return None


def _path_of(address: str) -> str:
    try:
        return urlsplit(address).path.strip("/")
    except ValueError:
        return ""


def _at(node: yaml.Node, where: str) -> str:
    return f"{where}:{node.start_mark.line + 1}"


def _wrong(node: yaml.Node, where: str, problem: str) -> RecipeError:
    return RecipeError(f"{_at(node, where)}: {problem}")


def _scalar(node: yaml.Node, where: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _wrong(node, where, "expected an address or a list of addresses")
    return str(node.value)


def _is_git(name: str) -> bool:
    """Tell a git address from an archive's name or a path."""
    return "://" in name


def _is_below(url: str, beginning: str) -> bool:
    return beginning.endswith("/") and url.startswith(beginning)


def _checked_name(name: str, where: str) -> str:
    if not _is_git(name):
        if not _NAME.fullmatch(name):
            raise RecipeError(
                f"{where}: {name!r} is not an archive's name, such as debian, or a git address"
            )
    elif not _is_address(name, GIT_SCHEMES):
        raise RecipeError(f"{where}: {redact(name)!r} is not {_GIT_ADDRESS}")
    elif not urlsplit(name).path:
        # It would be equal to no address, and so never be used.
        raise RecipeError(
            f"{where}: {redact(name)!r} ends at no slash: expected {redact(name) + '/'!r} "
            "for all repositories of the host, or the whole address of one"
        )
    return name


def _checked_value(name: str, address: str, where: str) -> str:
    if _is_git(name):
        return _checked_git_place(address, where)
    if not _is_address(address, _SCHEMES):
        raise RecipeError(f"{where}: {redact(address)!r} is not an http, https or file address")
    return address


def _checked_git_place(place: str, where: str) -> str:
    """Return an address as it is, and a path with its `~` replaced."""
    if _is_git(place) and _is_address(place, GIT_SCHEMES):
        return place
    try:
        path = Path(place).expanduser()
    except RuntimeError:  # there is no such home
        path = Path()
    if not path.is_absolute() or "\0" in place:
        raise RecipeError(
            f"{where}: {redact(place)!r} is neither {_GIT_ADDRESS} nor an absolute path"
        )
    return str(path)


def _is_address(address: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(address)
        placed = parts.path if parts.scheme == "file" else parts.hostname
    except ValueError:
        return False
    return parts.scheme in schemes and bool(placed) and not parts.query and not parts.fragment
