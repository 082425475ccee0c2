"""Doctor: everything that would go wrong, found at once, each with what to type."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import grp
import json
import os
import pwd
import shutil
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocbake import disk, engine, gpu, hardware, lock, machine, mirror, project, run, store
from rocbake.errors import (
    EngineError,
    FetchError,
    LockError,
    RecipeError,
    ReproError,
    RocbakeError,
)
from rocbake.finding import Finding
from rocbake.hardware import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rocbake.cache import Cache
    from rocbake.passthrough import EngineFacts
    from rocbake.project import Project
    from rocbake.store import Store

_PATIENCE_SECONDS = 10.0
# An engine that hangs takes a connection and never answers; one that does not answers at once.
_ENGINE_SECONDS = 5.0
# Clocks of machines that share a checkout differ a little.
_CLOCK_SLACK_SECONDS = 120.0
_SET_CLOCK = "sudo timedatectl set-ntp true   or: sudo date --set='...'"
_NOT_WRITTEN_BY_PEOPLE = {".git", ".venv", "artifacts", "__pycache__"}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_CONTAINERD = "/run/containerd/containerd.sock"
_CONTAINERD_ROOT = "/var/lib/containerd"


@dataclass(frozen=True)
class _Daemon:
    """What an engine says of itself, beyond what run plans need.

    Attributes:
        id: Of this very engine.
        name: Of its machine.
        cpus: How many its builds may take.
        memory: Bytes that they may take.
        store: How it keeps images.
        containerd: Where its containerd answers, if it says that.
    """

    id: str
    name: str
    cpus: int
    memory: int
    store: str
    containerd: str

    @classmethod
    def from_info(cls, info: dict[str, Any]) -> _Daemon:
        """Read what /info answers: https://docs.docker.com/reference/api/engine/version/v1.47/."""
        return cls(
            id=str(info.get("ID") or ""),
            name=str(info.get("Name") or ""),
            cpus=int(info.get("NCPU") or 0),
            memory=int(info.get("MemTotal") or 0),
            store=str(dict(info.get("DriverStatus") or []).get("driver-type") or ""),
            containerd=str((info.get("Containerd") or {}).get("Address") or ""),
        )


def examine(kept: Store, cache: Cache, *, root: Path = Path("/")) -> list[Finding]:
    """Look at everything that building and smoke tests stand on, all of it at the same time.

    Args:
        kept: Where artifacts are.
        cache: Where sources are.
        root: Root folder of the machine whose hardware is looked at.
    """
    patient = _Patient(kept, cache, root)
    # What other things stand on comes first.
    looks = [
        _Look("engine", patient.engine),
        _Look("context", patient.context),
        _Look("user", patient.user),
        _Look("tools", patient.tools),
        _Look("recipes", patient.recipes),
        _Look("locks", patient.locks),
        _Look("clock", patient.clock),
        _Look("mirrors", patient.mirrors),
        _Look("proxy", patient.proxies),
        _Look("room", patient.room),
        _Look("hardware", patient.hardware),
    ]
    deadline = time.monotonic() + _PATIENCE_SECONDS
    return [finding for look in looks for finding in look.answer(deadline)]


class _Look(threading.Thread):
    """One look at something, which neither breaks off the others nor keeps them waiting."""

    def __init__(self, subject: str, look: Callable[[], Iterable[Finding]]) -> None:
        super().__init__(daemon=True)
        self._subject = subject
        self._look = look
        self._found: list[Finding] = []
        self.start()

    def run(self) -> None:
        """Look; what cannot be looked at is a finding, too."""
        found: list[Finding] = []
        try:
            found += self._look()
        except RocbakeError as error:
            found.append(self._unseen(str(error), error.hint or "mend that, and ask again"))
        except Exception as error:  # noqa: BLE001 - on an odd system the rest is still of use
            found.append(self._unseen(f"{type(error).__name__}: {error}", "go by the other lines"))
        self._found = found

    def answer(self, deadline: float) -> list[Finding]:
        """Return what was found until then."""
        self.join(max(0.0, deadline - time.monotonic()))
        if self.is_alive():
            return [self._unseen(f"no answer within {_PATIENCE_SECONDS:g} s", "docker info")]
        return self._found

    def _unseen(self, why: str, remedy: str) -> Finding:
        return Finding(subject=self._subject, says=f"not looked at: {why}", remedy=remedy)


class _Asked(threading.Thread):
    """The engine, asked once, by which nobody is kept waiting for long."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._told: tuple[_Daemon | None, EngineFacts | None] = None, None
        self._deadline = time.monotonic() + _ENGINE_SECONDS
        self.start()

    def run(self) -> None:
        """Ask; what keeps an engine from answering is told by another look."""
        with contextlib.suppress(EngineError):
            with engine.connect() as client:
                daemon = _Daemon.from_info(client.info())
            self._told = daemon, engine.facts()

    def told(self) -> tuple[_Daemon | None, EngineFacts | None]:
        """Return what it says of itself; nothing if it does not answer."""
        self.join(max(0.0, self._deadline - time.monotonic()))
        return self._told

    @property
    def hangs(self) -> bool:
        """Whether it took the question and gives no answer."""
        self.told()
        return self.is_alive()


class _Patient:
    """This machine and this project. What several looks need is read by the first of them."""

    def __init__(self, kept: Store, cache: Cache, root: Path) -> None:
        self._kept = kept
        self._cache = cache
        self._root = root
        self._asked = _Asked()

    @functools.cached_property
    def _project(self) -> Project | None:
        try:
            return project.load()
        except RecipeError:
            return None

    @property
    def _daemon(self) -> _Daemon | None:
        return self._asked.told()[0]

    @property
    def _facts(self) -> EngineFacts | None:
        return self._asked.told()[1]

    @functools.cached_property
    def _groups(self) -> tuple[int, ...]:
        return tuple(sorted({*os.getgroups(), os.getegid()}))

    def engine(self) -> Iterator[Finding]:
        """Look at the engine, and at the client that builds."""
        if self._asked.hangs:
            yield _failure(
                "engine",
                f"that at {mirror.redact(engine.address())} takes connections and does not answer",
                "sudo systemctl restart docker",
                EngineError,
            )
            return
        faults = engine.problems()
        for what, remedy in faults:
            yield _failure("engine", what, _to_open_socket() or remedy, EngineError)
        if faults:
            return
        about = engine.describe()
        names = engine.versions()
        yield Finding(
            subject="engine",
            says=f"Docker {names['docker']} (API {about['api']}) at "
            f"{mirror.redact(about['address'])}, buildx {names['buildx']}, store {about['store']}"
            + (", rootless" if about["rootless"] else ""),
        )
        version = os.environ.get("DOCKER_API_VERSION")
        if version:
            yield Finding(
                subject="engine",
                says=f"DOCKER_API_VERSION is {version!r}: the docker command line speaks that "
                "alone, whatever the engine knows",
                remedy="unset DOCKER_API_VERSION",
            )

    def context(self) -> Iterator[Finding]:
        """Look at what decides which engine answers, and whether the command line agrees.

        https://docs.docker.com/engine/manage-resources/contexts/
        """
        shown = f"{mirror.redact(engine.address())}, by {mirror.redact(engine.decided_by())}"
        host, named = os.environ.get("DOCKER_HOST"), os.environ.get("DOCKER_CONTEXT")
        daemon = self._daemon
        if daemon is None:
            yield Finding(subject="context", says=shown)
            return
        asked = run.run(
            ["docker", "info", "--format", "{{json .}}"],
            timeout=_PATIENCE_SECONDS,
            check=False,
            error=EngineError,
        )
        told = _object(asked.stdout)
        # Podman makes up another identifier for each answer.
        is_docker = self._facts is not None and self._facts.product == "docker"
        if host and named:
            yield Finding(
                subject="context",
                says=f"{shown}; DOCKER_CONTEXT, {named}, has no effect beside it",
                remedy="unset DOCKER_HOST, or unset DOCKER_CONTEXT",
            )
        elif not told:
            why = (asked.stderr.strip() or "it says nothing").splitlines()[0]
            yield Finding(
                subject="context",
                says=f"{shown}; the docker command line does not know its own: "
                f"{mirror.redact(why)}",
                remedy="docker context ls",
            )
        elif is_docker and told.get("ID") and told["ID"] != daemon.id:
            yield _failure(
                "context",
                f"two engines: that of {daemon.name} is at {shown}; the docker command line "
                f"reaches that of {told.get('Name')}",
                "docker context ls",
                EngineError,
            )
        elif is_docker and told.get("ID"):
            yield Finding(
                subject="context", says=f"{shown}; the docker command line reaches the same"
            )
        else:
            yield Finding(subject="context", says=shown)

    def user(self) -> Iterator[Finding]:
        """Look at who this is."""
        names = ", ".join(_group_name(number) for number in self._groups)
        yield Finding(subject="user", says=f"{_user_name()} ({os.geteuid()}), groups {names}")

    def tools(self) -> Iterator[Finding]:
        """Look for the programs that are called."""
        for tool, purpose, error in (
            ("mmdebstrap", "makes the root file system", EngineError),
            ("git", "fetches sources of the kind git", FetchError),
            ("apt-get", "makes locks; building needs none", None),
        ):
            path = shutil.which(tool)
            if path:
                yield Finding(subject=tool, says=path)
            elif error:
                yield _failure(tool, f"not on PATH; it {purpose}", "./bootstrap", error)
            else:
                yield Finding(subject=tool, says=f"not here; it {purpose}")

    def recipes(self) -> Iterator[Finding]:
        """Look at what people wrote."""
        try:
            loaded = project.load()
        except RecipeError as wrong:
            for line in str(wrong).splitlines():
                yield _failure("recipes", line, "mend the file", type(wrong))
            return
        says = f"{', '.join(loaded.recipes)} on {', '.join(loaded.containers)}"
        yield Finding(subject="recipes", says=says)

    def locks(self) -> Iterator[Finding]:
        """Look at whether the locks answer the wishes."""
        told = set()
        for recipe in self._project.recipes.values() if self._project else ():
            try:
                locks, recipe_lock = lock.require_fresh(recipe.containers, recipe)
            except LockError as stale:
                # Recipes share containers, and what is wrong with those.
                for line in str(stale).splitlines():
                    if line not in told:
                        yield _failure("locks", line, stale.hint, type(stale))
                    told.add(line)
                continue
            snapshot = max(one.snapshot for one in locks.values())
            count = sum(len(one.packages) for one in locks.values())
            says = f"{recipe.name}: {count} packages as of {snapshot}"
            if names := lock.unrecorded(recipe, locks, recipe_lock):
                says += f"; files of {', '.join(names)} were never recorded"
            yield Finding(subject="locks", says=says)

    def clock(self) -> Iterator[Finding]:
        """Look at whether the clock can be right: nothing that is here can be of the future."""
        now = time.time()
        epochs = []
        for one in self._project.containers.values() if self._project else ():
            with contextlib.suppress(LockError):
                epochs.append(lock.read_container(one).epoch)
        epoch = max(epochs, default=0)
        newest, changed = _newest_file(project.ROOT)
        if now < epoch:
            # Times of files in images are cut down to the epoch, and never put up to it.
            yield _failure(
                "clock",
                f"{_time(now)} is before the locks, {_time(epoch)}: what is built would differ",
                _SET_CLOCK,
                ReproError,
            )
        elif newest and changed > now + _CLOCK_SLACK_SECONDS:
            yield Finding(
                subject="clock",
                says=f"{_time(now)} is before the last change of "
                f"{newest.relative_to(project.ROOT)}, {_time(changed)}",
                remedy=_SET_CLOCK,
            )
        else:
            says = f"{_time(now)}, after all locks and files of this checkout"
            yield Finding(subject="clock", says=says)

    def mirrors(self) -> Iterator[Finding]:
        """Look at where packages come from."""
        try:
            known = mirror.load()
        except RecipeError as wrong:
            yield _failure("mirrors", str(wrong), wrong.hint or "mend the file", type(wrong))
            return
        containers = self._project.containers.values() if self._project else ()
        for name in sorted({one.archive.name for one in containers}):
            places = known.archives.get(name, ())
            if places:
                says = f"{name}: {', '.join(map(mirror.redact, places))}"
                yield Finding(subject="mirrors", says=says)
            else:
                yield _failure(
                    "mirrors",
                    f"{name}: none known on this machine; a full cache is enough to build",
                    f"export ROCBAKE_MIRRORS={name}=<address of a mirror>",
                    FetchError,
                )

    def proxies(self) -> Iterator[Finding]:
        """Look at what stands between this machine and the mirrors."""
        told = []
        is_none = True
        for name in _PROXIES:
            lower, upper = os.environ.get(name), os.environ.get(name.upper())
            is_none = is_none and not lower and not upper
            if lower and upper and lower != upper:
                yield Finding(
                    subject="proxy",
                    says=f"{name} is {_proxy(lower)} and {name.upper()} is {_proxy(upper)}: "
                    "which of them counts is each program's own choice",
                    remedy=f"unset {name.upper()}",
                )
            elif lower or upper:
                told.append(f"{name} {_proxy(lower or upper or '')}")
        besides = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        if told and besides:
            told.append(f"but not for {besides}")
        if told:
            yield Finding(
                subject="proxy",
                says=f"{', '.join(told)}: sources are fetched through it; no build step gets it",
            )
        if _docker_config().get("proxies"):
            says = "the docker command line has its own; no build step gets it"
            yield Finding(subject="proxy", says=says)
        elif is_none:
            yield Finding(subject="proxy", says="none is set")

    def room(self) -> Iterator[Finding]:
        """Look at bytes and inodes of every file system that a build writes to."""
        wanted = dict.fromkeys(("engine", "store", "cache"), 0)
        for recipe in self._project.recipes.values() if self._project else ():
            with contextlib.suppress(LockError):
                locks, recipe_lock = lock.require_fresh(recipe.containers, recipe)
                packages = [deb for one in locks.values() for deb in one.packages]
                needed = disk.needs([*packages, *recipe_lock.sources])
                wanted = {place: max(wanted[place], needed[place]) for place in wanted}
        if self._daemon is None:
            yield Finding(
                subject="room",
                says="not looked at: no engine tells where it writes",
                remedy="see engine",
            )
            return
        faults = disk.problems(wanted, store=self._kept.root, cache=self._cache.root)
        images = self._images_dir()
        if images and _free_bytes(images) < wanted["engine"]:
            faults.append(
                f"images ({images}): about {_gb(wanted['engine'])} needed, "
                f"{_gb(_free_bytes(images))} free"
            )
        for line in faults:
            yield _failure("room", line, "invoke clean", EngineError)
        if not faults:
            places = [images, self._kept.root, self._cache.root]
            told = ", ".join(dict.fromkeys(_room(one) for one in places if one))
            yield Finding(
                subject="room",
                says=f"enough for the largest recipe, about {_gb(sum(wanted.values()))}: {told}",
            )

    def _images_dir(self) -> Path | None:
        """Return the folder where the engine keeps images, if it is on this machine.

        With the containerd image store that is containerd's own, unless the engine started it:
        https://docs.docker.com/engine/storage/containerd/
        """
        daemon, facts = self._daemon, self._facts
        if not daemon or not facts or not facts.is_local:
            return None
        # Before API 1.46 an engine does not say where its containerd is; it starts none of its
        # own where this one answers.
        answers_at = daemon.containerd or (_CONTAINERD if Path(_CONTAINERD).exists() else "")
        is_given = answers_at == _CONTAINERD and Path(_CONTAINERD_ROOT).is_dir()
        if daemon.store.startswith("io.containerd.snapshotter") and is_given:
            return Path(_CONTAINERD_ROOT)
        return engine.root_dir()

    def hardware(self) -> Iterator[Finding]:
        """Look at memory, and at all that is between a container and a GPU."""
        here = machine.read(self._root)
        daemon = self._daemon
        if daemon and daemon.cpus and daemon.memory:
            # Builds run in the engine, and not in our control group.
            here = dataclasses.replace(here, cpus=daemon.cpus, memory=daemon.memory)
        targets: set[str] = set()
        releases: set[str] = set()
        for entry in self._kept.entries():
            if entry.artifact.archive:
                targets.update(entry.artifact.targets)
                with contextlib.suppress(RocbakeError):
                    releases.add(str(store.read_manifest(entry.folder).get("rocm") or ""))
        return iter(
            hardware.examine(
                gpu.discover(self._root),
                here,
                engine=self._facts,
                environment=os.environ,
                around=Surroundings(
                    uid=os.geteuid(),
                    groups=self._groups,
                    targets=frozenset(targets),
                    releases=frozenset(releases - {""}),
                    firmware=_names(self._root / hardware.FIRMWARE.lstrip("/")),
                    may_use_dri=_selinux_boolean(self._root, "container_use_dri_devices"),
                ),
            )
        )


def _failure(subject: str, says: str, remedy: str | None, error: type[RocbakeError]) -> Finding:
    return Finding(subject=subject, says=says, remedy=remedy, exit_code=error.exit_code)


def _to_open_socket() -> str | None:
    """Return what lets this user use the engine's socket, if that is what is wrong."""
    socket = Path(engine.address().removeprefix("unix://"))
    if not socket.is_absolute() or os.access(socket, os.R_OK | os.W_OK):
        return None
    try:
        group = grp.getgrgid(socket.stat().st_gid)
    except (OSError, KeyError):
        return None
    if _user_name() in group.gr_mem:
        return f"log in again: you are in group {group.gr_name}, and this session is not"
    return f'sudo usermod -aG {group.gr_name} "$(id -un)"; then log in again'


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "a user without a name"


def _group_name(number: int) -> str:
    try:
        return f"{grp.getgrgid(number).gr_name} ({number})"
    except KeyError:
        return str(number)


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}


def _docker_config() -> dict[str, Any]:
    # https://docs.docker.com/engine/cli/proxy/
    folder = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker")
    with contextlib.suppress(OSError, UnicodeDecodeError, RuntimeError):
        return _object((folder.expanduser() / "config.json").read_text(encoding="utf-8"))
    return {}


def _proxy(address: str) -> str:
    """Return a proxy's address without its password; a proxy may be given without a scheme."""
    return mirror.redact(address if "//" in address else f"//{address}")


def _names(folder: Path) -> frozenset[str] | None:
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError:
        return None


def _selinux_boolean(root: Path, name: str) -> bool | None:
    # The value now, and the one to come:
    # https://github.com/SELinuxProject/selinux/blob/main/libselinux/src/booleans.c
    with contextlib.suppress(OSError, IndexError, UnicodeDecodeError):
        return (root / "sys/fs/selinux/booleans" / name).read_text().split()[0] == "1"
    return None


def _newest_file(root: Path) -> tuple[Path | None, float]:
    """Return the file that was changed last, and when; its folder may be any below the root."""
    newest, latest = None, 0.0
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _NOT_WRITTEN_BY_PEOPLE]
        for name in files:
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                changed = path.lstat().st_mtime
                if changed > latest:
                    newest, latest = path, changed
    return newest, latest


def _there(path: Path) -> Path:
    """Return the path, or the folder above that is there already."""
    while not path.exists():
        path = path.parent
    return path


def _free_bytes(path: Path) -> int:
    about = os.statvfs(_there(path))
    return about.f_bavail * about.f_frsize


def _room(path: Path) -> str:
    """Tell what is free on a file system, and where that is mounted."""
    place = _there(path)
    about = os.statvfs(place)
    while not place.is_mount():
        place = place.parent
    free = f"{place} has {_gb(about.f_bavail * about.f_frsize)}"
    # A file system without a fixed number of inodes says 0 of 0.
    return f"{free} and {about.f_favail} inodes free" if about.f_files else f"{free} free"


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
