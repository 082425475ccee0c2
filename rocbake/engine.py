"""The container engine: BuildKit builds, the Docker SDK does the rest.

The one module that says "docker". The SDK has no BuildKit client
(https://github.com/docker/docker-py/issues/2230), hence the command line for building.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import docker
import docker.errors
import requests
from docker.context import ContextAPI

from rocbake import log, passthrough, run
from rocbake.buildlog import BuildLog
from rocbake.errors import BuildError, EngineError
from rocbake.passthrough import Ended, EngineFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from docker.models.containers import Container as Running

    from rocbake.oci import Layout
    from rocbake.passthrough import RunPlan

LABEL = "dev.rocbake"
KEY_LABEL = f"{LABEL}.key"
_PROCESS_LABEL = f"{LABEL}.process"
_STAGING = "rocbake/staging-"
# The first with rewrite-timestamp in its BuildKit (0.13), and the first CLI that can ask for it.
_OLDEST_SERVER = (25, 0)
_OLDEST_BUILDX = (0, 13)
_OLDEST_BUILDKIT = (0, 13)
_API_SECONDS = 600
_QUICK_SECONDS = 30.0
# Whoever the build asks, no source but the local ones is let in: https://docs.docker.com/reference/
# names this "source policy"; RUN is governed by network=none.
_POLICY = {
    "rules": [
        {"action": "DENY", "selector": {"identifier": f"{scheme}://*"}}
        for scheme in ("docker-image", "http", "https", "git")
    ]
}


@dataclass(frozen=True)
class Image:
    """An image of ours in the engine."""

    id: str
    references: tuple[str, ...]
    size: int
    key: str


def address() -> str:
    """Return the engine's address: DOCKER_HOST, else the CLI's context, else the usual socket.

    The SDK alone reads only the first; two clients that talk to two engines build and run
    different things.
    """
    return _chosen()[0]


def decided_by() -> str:
    """Return what decides which engine answers."""
    return _chosen()[1]


def _chosen() -> tuple[str, str]:
    host = os.environ.get("DOCKER_HOST")
    if host:
        return host, "DOCKER_HOST"
    name = os.environ.get("DOCKER_CONTEXT")
    with contextlib.suppress(docker.errors.DockerException, OSError, ValueError):
        context = ContextAPI.get_context(name) if name else ContextAPI.get_current_context()
        if context and context.Host:
            decided = "DOCKER_CONTEXT" if name else "Docker's current context"
            return context.Host, f"{decided}, {context.Name}"
    return "unix:///var/run/docker.sock", "the usual place"


@contextlib.contextmanager
def connect() -> Iterator[docker.DockerClient]:
    """Open a connection to the engine that answers.

    Raises:
        EngineError: None answers.
    """
    host = address()
    try:
        # Never a version: an engine refuses what is older than it knows.
        client = docker.DockerClient(base_url=host, timeout=_API_SECONDS)
        try:
            client.ping()
        except BaseException:
            client.close()
            raise
    except (docker.errors.DockerException, requests.RequestException) as silent:
        raise EngineError(
            f"no container engine answers at {host}: {_cause(silent)}", hint="./bootstrap"
        ) from silent
    try:
        yield client
    except requests.exceptions.ConnectionError as gone:
        raise EngineError(
            f"the engine at {host} went away in the middle: {_cause(gone)}",
            hint="./bootstrap  starts it again, and the next command clears away what it left",
        ) from gone
    except (docker.errors.DockerException, requests.RequestException) as failed:
        raise EngineError(f"the engine at {host} failed: {_cause(failed)}") from failed
    finally:
        client.close()


def _cause(error: Exception) -> str:
    """Return the innermost sentence of a chain of wrapped errors."""
    explanation = getattr(error, "explanation", None)
    inner: BaseException = error
    # What goes wrong on a socket is carried as an argument, twice over.
    while carried := [one for one in inner.args if isinstance(one, BaseException)]:
        inner = carried[-1]
    said = inner.strerror if isinstance(inner, OSError) and inner.strerror else inner
    return str(explanation or said).split("\n")[0]


def _cli_environment() -> dict[str, str]:
    """Return our environment for the CLI, bound to the engine that the SDK talks to."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in {"DOCKER_CONTEXT", "SOURCE_DATE_EPOCH"}
    }
    return kept | {
        "DOCKER_HOST": address(),
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        # A layer that is not exported is only a step on the way. Without this, the engine's own
        # builder keeps an image of each, under no name and with times of its own.
        "BUILDX_NO_DEFAULT_LOAD": "1",
        "BUILDX_EXPERIMENTAL": "0",
    }


def _buildx(*words: str) -> run.Result:
    return run.run(
        ["docker", "buildx", *words],
        env=_cli_environment(),
        timeout=_QUICK_SECONDS,
        error=EngineError,
    )


def versions() -> dict[str, str]:
    """Return the versions of the engine's parts: docker, buildx, buildkit.

    Raises:
        EngineError: No engine answers, or the CLI has no buildx.
    """
    with connect() as client:
        server = client.version()["Version"]
    buildx = _buildx("version").stdout.split()[1]
    return {
        "docker": server,
        "buildx": buildx.removeprefix("v"),
        "buildkit": _buildkit(_buildx("inspect").stdout) or "unknown",
    }


def _buildkit(inspected: str) -> str | None:
    """Return BuildKit's version as `buildx inspect` prints it, if it says one.

    Debian builds the engine without it: 0.0.0+unknown.
    """
    found = re.search(r"^Buildkit(?: version)?:\s*v?(\S+)", inspected, re.MULTILINE | re.IGNORECASE)
    return found.group(1) if found and not found.group(1).startswith("0.0.0") else None


def problems() -> list[tuple[str, str]]:
    """Return what keeps this engine from building, each with what to do about it."""
    found: list[tuple[str, str]] = []
    try:
        with connect() as client:
            server = client.version()["Version"]
            info = client.info()
    except EngineError as silent:
        return [(str(silent), silent.hint or "./bootstrap")]
    if _numbers(server) < _OLDEST_SERVER:
        found.append(
            (f"the engine is Docker {server}, and 25 is the oldest that will do", "./bootstrap")
        )
    try:
        buildx = _buildx("version").stdout.split()[1]
        builder = _buildx("inspect").stdout
    except EngineError as failed:
        found.append((str(failed), "./bootstrap"))
        return found
    if _numbers(buildx) < _OLDEST_BUILDX:
        found.append((f"buildx is {buildx}, and 0.13 is the oldest that will do", "./bootstrap"))
    driver = re.search(r"^Driver:\s*(\S+)", builder, re.MULTILINE)
    own = driver is not None and driver.group(1) == "docker"
    store = dict(info.get("DriverStatus") or []).get("driver-type", "")
    if own and not store.startswith("io.containerd.snapshotter"):
        found.append(
            (
                "the engine keeps images in its old store, which cannot export OCI layouts",
                "docker buildx create --use, or switch the containerd image store on",
            )
        )
    buildkit = _buildkit(builder)
    if buildkit and _numbers(buildkit) < _OLDEST_BUILDKIT:
        found.append(
            (
                f"the builder is BuildKit {buildkit}, and 0.13 is the oldest that will do",
                "docker buildx create --use",
            )
        )
    return found


def require_usable() -> None:
    """Check that the engine can build.

    Raises:
        EngineError: With all that keeps it from doing so.
    """
    found = problems()
    if found:
        raise EngineError("\n".join(what for what, _ in found), hint=found[0][1])


def root_dir() -> Path | None:
    """Return the folder where the engine keeps its data, if it is on this machine."""
    with connect() as client:
        path = Path(client.info().get("DockerRootDir", ""))
    return path if path.is_absolute() and path.is_dir() else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def bake(bake_file: Path, targets: Sequence[str], *, log_path: Path) -> None:
    """Build the targets of a bake file.

    Raises:
        BuildError: A step failed; the message holds the command, the first error and the end.
    """
    policy = bake_file.with_name("source-policy.json")
    policy.write_text(json.dumps(_POLICY))
    progress = BuildLog()
    words: list[str | os.PathLike[str]] = ["docker", "buildx", "bake", "--progress", "plain"]
    words += ["--file", bake_file, *targets]
    with log.live(progress.status):
        result = run.run(
            words,
            cwd=bake_file.parent,
            env=_cli_environment() | {"EXPERIMENTAL_BUILDKIT_SOURCE_POLICY": str(policy)},
            log_path=log_path,
            on_line=progress.line,
            check=False,
        )
    if result.returncode != 0:
        raise progress.failure(result.stderr, log_path)


def load(layout: Layout, reference: str) -> None:
    """Bring an image into the engine under a name.

    Raises:
        BuildError: The image cannot be read.
        EngineError: The engine does not take it.
    """
    reader, writer = os.pipe()
    fault: list[BaseException] = []

    def send() -> None:
        try:
            with os.fdopen(writer, "wb") as stream:
                layout.write_tar(cast("IO[bytes]", stream), reference)
        except BrokenPipeError:
            pass  # the engine stopped reading, and says why
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            fault.append(error)

    sender = threading.Thread(target=send, daemon=True)
    with connect() as client, os.fdopen(reader, "rb") as stream:
        sender.start()
        # The SDK's own load() drops errors that arrive inside the answer.
        messages = client.api.load_image(stream, quiet=True)  # type: ignore[no-untyped-call]
        refused = [message["error"] for message in messages if "error" in message]
    sender.join()
    # What we failed to send comes first: the engine only says that the end is missing.
    if fault:
        if isinstance(fault[0], OSError):
            raise BuildError(
                f"{reference} cannot be read: {fault[0].filename or layout.folder}: "
                f"{fault[0].strerror or fault[0]}",
                hint="invoke build --force",
            ) from fault[0]
        raise fault[0]
    if refused:
        raise EngineError(f"the engine did not take {reference}: {refused[0]}")


def tag(reference: str, new: str) -> None:
    """Give an image another name."""
    repository, _, version = new.rpartition(":")
    with connect() as client:
        client.images.get(reference).tag(repository, version)


def untag(reference: str) -> None:
    """Take a name from an image; the image goes with its last name. No name is no error."""
    with connect() as client, contextlib.suppress(docker.errors.NotFound):
        client.images.remove(reference)


def overlay(image: str, tar: IO[bytes], folder: str, reference: str) -> None:
    """Lay the files of a tar over an image, and give the result a name of its own.

    Args:
        image: The name of an image that the engine has.
        tar: A tar, read once.
        folder: Where in the image its paths begin.
        reference: The new image's name.
    """
    repository, _, version = reference.rpartition(":")
    with connect() as client:
        container = client.containers.create(
            image, labels={LABEL: "overlay", _PROCESS_LABEL: _process()}
        )
        try:
            container.put_archive(folder, tar)
            container.commit(repository, version)
        finally:
            container.remove(force=True)


def images() -> list[Image]:
    """Return the images of ours, by their label."""
    with connect() as client:
        # Not client.images.list: it asks for each one again, and fails on what went meanwhile.
        listed = client.api.images(filters={"label": KEY_LABEL})
    return [
        Image(
            id=str(image["Id"]),
            references=tuple(
                name for name in image.get("RepoTags") or () if name != "<none>:<none>"
            ),
            size=int(image.get("Size", 0)),
            key=image["Labels"][KEY_LABEL],
        )
        for image in listed
    ]


def run_container(
    image: str,
    command: Sequence[str],
    *,
    timeout: float,
    user: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command in a container of its own to its end: no network, no rights, nothing kept.

    Raises:
        EngineError: It took longer than `timeout` seconds, or could not be started.
    """
    settings = {"user": user, "environment": dict(environment or {})}
    ended = _attempt(image, command, settings, seconds=timeout)
    if ended.timed_out:
        raise EngineError(
            f"{image}: took more than {timeout:g} s and was stopped: {' '.join(command)}"
        )
    return ended


def attempt(plan: RunPlan, command: Sequence[str], *, root: Path = Path("/")) -> Ended:
    """Run a command to its end, or to the end of its time, as a plan says.

    Args:
        plan: What the container gets.
        command: The program and its arguments.
        root: Root folder of the machine whose device nodes are passed.

    Raises:
        EngineError: It could not be started, or the engine or the container went away meanwhile.
    """
    settings = {
        "environment": dict(plan.environment),
        "devices": [f"{root / path.lstrip('/')}:{path}:rw" for path in plan.devices],
        "group_add": ["keep-groups"] if plan.keep_groups else [str(one) for one in plan.groups],
        "userns_mode": plan.user_namespace,
        "mem_limit": plan.memory,
        # As much as the memory itself: swap would only let a machine suffer for longer.
        "memswap_limit": plan.memory,
        # An engine has it for a container's own shared memory alone.
        "shm_size": plan.shm if plan.ipc == "private" else None,
        "pids_limit": passthrough.PIDS,
        "tmpfs": dict(plan.tmpfs),
        "privileged": "privileged" in plan.relaxed,
        "network_mode": plan.network,
        "ipc_mode": plan.ipc,
        "security_opt": list(plan.security_options),
    }
    return _attempt(plan.image, command, settings, seconds=plan.seconds)


def _attempt(
    image: str, command: Sequence[str], settings: Mapping[str, Any], *, seconds: float
) -> Ended:
    begin = time.monotonic()
    with started(image, command, **settings) as container:
        status = None
        try:
            # The SDK's wait() heeds no timeout of the client; it must be given one.
            status = int(container.wait(timeout=seconds)["StatusCode"])
        except requests.exceptions.RequestException:
            # A time that is up and an engine that is gone look alike, except for when they come.
            if time.monotonic() - begin < seconds:
                raise
        try:
            if status is None:
                with contextlib.suppress(docker.errors.APIError):  # it has just ended by itself
                    container.kill()
            container.reload()
            return Ended(
                exit_code=-1 if status is None else status,
                stdout=container.logs(stdout=True, stderr=False).decode("utf-8", "replace"),
                stderr=container.logs(stdout=False, stderr=True).decode("utf-8", "replace"),
                out_of_memory=bool(container.attrs["State"]["OOMKilled"]),
                timed_out=status is None,
                seconds=time.monotonic() - begin,
            )
        except docker.errors.APIError as gone:
            if not _is_going(gone):
                raise
            raise EngineError(
                f"{image}: somebody removed its container while it ran: {' '.join(command)}"
            ) from gone


@contextlib.contextmanager
def started(image: str, command: Sequence[str], **settings: Any) -> Iterator[Running]:  # noqa: ANN401 - as the SDK has them
    """Start a container that is gone when the block ends, however it ends.

    Args:
        image: Its name.
        command: The program and its arguments.
        settings: What the SDK's `create` takes, where it is not to be shut in altogether.
    """
    shut_in: dict[str, Any] = {
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {"/tmp": "exec,mode=1777"},  # noqa: S108 - the container's own
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "init": True,
    }
    with connect() as client:
        container = client.containers.create(
            image,
            list(command),
            labels={LABEL: "run", _PROCESS_LABEL: _process()},
            **(shut_in | settings),
        )
        try:
            container.start()
            yield container
        finally:
            try:
                container.remove(force=True)
            except docker.errors.APIError as stuck:
                if not _is_going(stuck):
                    # A process that waits in the kernel for a GPU which no longer answers.
                    log.warn(
                        f"container {container.name} cannot be ended: {_cause(stuck)}; "
                        "if it stays, only a restart of the machine ends it"
                    )


def _is_going(refused: docker.errors.APIError) -> bool:
    """Tell whether an engine refuses because the container is gone, or being removed."""
    return refused.status_code in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}


def staging_reference(name: str) -> str:
    """Return a name for an image that is not finished, which no other process uses."""
    return f"{_STAGING}{name}:{_process()}"


def is_in_use(reference: str) -> bool:
    """Tell whether a name is of an unfinished image that a running process works on."""
    name, _, process = reference.rpartition(":")
    return name.startswith(_STAGING) and not _is_gone(process)


def reap() -> int:
    """Remove containers and unfinished images of ours whose process is gone; return how many."""
    count = 0
    with connect() as client:
        # Another process may remove one of them while they are listed.
        for container in client.containers.list(
            all=True, filters={"label": _PROCESS_LABEL}, ignore_removed=True
        ):
            if _is_gone(container.labels[_PROCESS_LABEL]):
                with contextlib.suppress(docker.errors.NotFound):
                    container.remove(force=True)
                count += 1
    for image in images():
        for reference in image.references:
            if reference.startswith(_STAGING) and not is_in_use(reference):
                untag(reference)
                count += 1
    return count


def remove_container(name: str) -> None:
    """End and remove a container. None of that name is no error."""
    with connect() as client, contextlib.suppress(docker.errors.NotFound):
        client.containers.get(name).remove(force=True)


def leftovers() -> list[str]:
    """Return the names of containers of ours whose process is gone."""
    with connect() as client:
        found = client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)
        return [
            str(container.name)
            for container in found
            if _is_left(container.labels.get(_PROCESS_LABEL, ""), container.status)
        ]


def _home() -> str:
    """Name what a process number means something in: this boot, and this PID namespace."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().split("-")[0]
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    return "unknown"


def _process() -> str:
    return f"{_home()}.{os.getpid()}"


def _is_gone(process: str) -> bool:
    home, _, number = process.rpartition(".")
    return home == _home() and not Path(f"/proc/{number}").exists()


def _is_left(process: str, status: str) -> bool:
    """Tell whether a container's process is gone; one of an earlier boot is, if nothing runs."""
    boot = _home().partition(".")[0]
    return _is_gone(process) or (not process.startswith(f"{boot}.") and status == "exited")


def facts() -> EngineFacts:
    """Return what a run plan must know of the engine that answers.

    Raises:
        EngineError: None answers.
    """
    with connect() as client:
        version, info = client.version(), client.info()
    where = address()
    components = {part.get("Name", "") for part in version.get("Components") or []}
    options = {
        option.partition(",")[0].removeprefix("name=")
        for option in info.get("SecurityOptions") or []
    }
    return EngineFacts(
        # https://docs.podman.io/en/latest/_static/api.html: the component of Docker's is "Engine"
        product="podman" if "Podman Engine" in components else "docker",
        version=str(version["Version"]),
        address=where,
        # A socket here may lead into a virtual machine, or to another machine through a tunnel.
        is_local=where.startswith("unix://") and info.get("KernelVersion") == os.uname().release,
        is_desktop="Docker Desktop" in str(info.get("OperatingSystem")),
        rootless="rootless" in options or bool(info.get("Rootless")),
        remapped="userns" in options,
        runtime=str(info.get("DefaultRuntime") or "runc"),
    )


def layers(reference: str) -> tuple[str, ...]:
    """Return the diffIDs of an image in the engine; none if it has no image of that name."""
    with connect() as client, contextlib.suppress(docker.errors.ImageNotFound):
        return tuple(client.images.get(reference).attrs["RootFS"]["Layers"])
    return ()


def user(reference: str) -> str:
    """Return the user that an image in the engine names, as it names it."""
    with connect() as client:
        return str(client.images.get(reference).attrs["Config"].get("User") or "")


def describe() -> dict[str, Any]:
    """Return what a doctor asks of an engine: address, versions, API range, store."""
    with connect() as client:
        version, info = client.version(), client.info()
    return {
        "address": address(),
        "server": version["Version"],
        "api": f"{version.get('MinAPIVersion')}-{version.get('ApiVersion')}",
        "store": dict(info.get("DriverStatus") or []).get("driver-type") or info.get("Driver"),
        "rootless": any("rootless" in option for option in info.get("SecurityOptions") or []),
    }
