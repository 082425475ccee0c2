"""Run plans: how a container gets one GPU and nothing else. Pure; nothing is run here.

The groups of the nodes are passed by number, as they are on this host: a name would be looked up
in the image, and a number in an image is right on one host only.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rocbake.errors import EngineError, FitError, NoGpuError, UsageError
from rocbake.gpu import KFD, NodeKind, target_name
from rocbake.target import PROCESSORS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rocbake.gpu import Card, DeviceNode, Gpus

# What every container is run with, whatever its plan says.
PIDS = 4096
CAP_DROP = ("ALL",)

_SCHEMA = 1
_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
_VISIBLE = "ROCR_VISIBLE_DEVICES"
_READ_WRITE = 0o6
_ROOT = 0
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
# Major, minor and stepping, in decimal.
_VERSION = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{1,2})", re.ASCII)
_BY_NAME = {processor.name: processor for processor in PROCESSORS}
_LONGEST_SHOWN = 60

_RULES = "/etc/udev/rules.d/70-amdgpu.rules"
_TO_A_GROUP = 'GROUP="render", MODE="0660"'
_TO_ALL = 'MODE="0666"'

# What is left over in a shell and leads a runtime astray; so does whatever begins with HSA_.
# https://rocm.docs.amd.com/projects/HIP/en/latest/reference/env_variables.html
_LEFTOVERS = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HIP_PATH",
    "HIP_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "ROCM_PATH",
    _VISIBLE,
)

# The first Podman that maps its user to another number: https://github.com/containers/podman/pull/15389
_FIRST_WITH_MAPPING = (4, 3)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a run plan must know of an engine.

    Attributes:
        product: Which engine answers; Podman's socket speaks Docker's language.
        version: Of the engine.
        address: Where it answers.
        is_local: Whether it runs on this machine, so that its devices are the ones found here.
        is_desktop: Docker Desktop: a virtual machine that has no /dev/kfd.
        rootless: Whether it runs without root rights.
        remapped: Whether a rootful engine maps users of containers to others (userns-remap).
        runtime: Name of its default OCI runtime: runc, crun.
    """

    product: Literal["docker", "podman"]
    version: str
    address: str
    is_local: bool = True
    is_desktop: bool = False
    rootless: bool = False
    remapped: bool = False
    runtime: str = "runc"


# What may be given up, by name. The default is none of it.
Relaxation = Literal["privileged", "seccomp", "ipc", "network"]

# What giving it up costs.
COSTS: Mapping[Relaxation, str] = {
    "privileged": "the container gets every device of the host and every capability: "
    "who is root in it can become root on the host",
    "seccomp": "no system call is filtered, so more of the kernel is open to attack",
    "ipc": "the container reads and writes the shared memory of the host's programs; "
    "a larger /dev/shm of its own is what most programs need instead",
    "network": "the container is on the host's network, and reaches what listens on localhost",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for.

    Attributes:
        device_index: Number of a card among those of the host.
        render_node: /dev/dri/renderD128, its by-path link, or renderD128.
        gpu_target: Such as gfx1201: a card of this target.
        relax: Protections to give up.
        override: Value for HSA_OVERRIDE_GFX_VERSION, such as 11.0.0; None for none.
        memory: Bytes that the container may use.
        shm: Bytes of /dev/shm.
        seconds: Time after which a probe is ended.
    """

    device_index: int | None = None
    render_node: str | None = None
    gpu_target: str | None = None
    relax: tuple[Relaxation, ...] = ()
    override: str | None = None
    memory: int = 8 << 30
    shm: int = 1 << 30
    seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Hidden:
    """A card that the container does not get, and why."""

    card: Card
    why: str


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How to run a container; everything that is not said here is refused.

    Attributes:
        image: Its name in the engine.
        user: Number of the user that the image itself names, or what it says; never changed.
        card: The card it gets; None where none is passed (on the host's CPU).
        nodes: The nodes passed, the same inside.
        groups: Numbers of the groups added, sorted.
        keep_groups: Podman without root: the caller's groups are kept, and no number is given.
        user_namespace: Such as "keep-id:uid=1000,gid=1000", or None for the engine's own.
        environment: Variables set.
        hidden: The other cards.
        relaxed: Protections given up.
        notes: Sentences for people: what was noticed and does not stop the run, and what each
            protection given up costs.
        memory: Bytes, swap included.
        shm: Bytes of /dev/shm.
        seconds: Time limit of each probe.
        tmpfs: Writable places, with their options.
    """

    image: str
    user: str
    card: Card | None
    nodes: tuple[DeviceNode, ...] = ()
    groups: tuple[int, ...] = ()
    keep_groups: bool = False
    user_namespace: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[Hidden, ...] = ()
    relaxed: tuple[Relaxation, ...] = ()
    notes: tuple[str, ...] = ()
    memory: int = 8 << 30
    shm: int = 1 << 30
    seconds: float = 120.0
    tmpfs: Mapping[str, str] = field(
        default_factory=lambda: {"/tmp": "exec,mode=1777,size=1g"}  # noqa: S108 - its own
    )

    @property
    def devices(self) -> tuple[str, ...]:
        """Paths of the nodes passed."""
        return tuple(node.path for node in self.nodes)

    @property
    def network(self) -> Literal["none", "host"]:
        """Which network it is on."""
        return "host" if "network" in self.relaxed else "none"

    @property
    def ipc(self) -> Literal["private", "host"]:
        """Whose shared memory it sees."""
        return "host" if "ipc" in self.relaxed else "private"

    @property
    def security_options(self) -> tuple[str, ...]:
        """What engines call security options."""
        unfiltered = ("seccomp=unconfined",) if "seccomp" in self.relaxed else ()
        return ("no-new-privileges", *unfiltered)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended.

    Attributes:
        exit_code: Of its first process; -1 where it was ended because its time was up.
        stdout: What it printed.
        stderr: Likewise.
        out_of_memory: Whether the kernel ended a process in it for want of memory; the first
            process may have ended well all the same.
        timed_out: Whether its time was up.
        seconds: How long it ran.
    """

    exit_code: int
    stdout: str
    stderr: str
    out_of_memory: bool = False
    timed_out: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Override:
    """A value for HSA_OVERRIDE_GFX_VERSION, and the target that it makes of a card."""

    text: str
    target: str


@dataclass(frozen=True, slots=True)
class _Access:
    """How the image's user comes to open the nodes; see RunPlan."""

    groups: tuple[int, ...] = ()
    keep_groups: bool = False
    user_namespace: str | None = None
    notes: tuple[str, ...] = ()


def make(
    found: Gpus,
    engine: EngineFacts,
    *,
    image: str,
    user: str,
    targets: Sequence[str],
    wish: Wish,
    environment: Mapping[str, str],
) -> RunPlan:
    """Choose a card and say how a container gets it.

    Args:
        found: What the machine has.
        engine: What will run the container.
        image: The image's name.
        user: The user that the image names; empty for root, as engines have it.
        targets: What the artifact has code for, such as ("gfx90a:xnack+", "gfx12-generic");
            empty if that is not known.
        wish: What a person asked for.
        environment: Of the person's shell; nothing of it is passed on, some of it is warned of.

    Raises:
        UsageError: A choice that makes no sense or meets no card, or a wrong override.
        NoGpuError: There is no GPU to pass, or nobody but its owner may open it.
        FitError: The artifact has no code for any card, or not for the one chosen.
        EngineError: This engine cannot pass the card.
    """
    override = _override(wish.override)
    if found.absence:
        raise NoGpuError(found.absence.message, hint=found.absence.remedy)
    _require_own_devices(engine)
    card = _choose(_asked_for(found, wish), targets, override)
    if override:
        _require_override_fits(override, card, targets)
    nodes = (found.kfd, card.render)
    access = _access(nodes, engine, user)
    variables = {_OVERRIDE: override.text} if override else {}
    if "privileged" in wish.relax:
        # All nodes are inside, so the card is named as on the host. Its number comes second:
        # partitions have one name together.
        own_name = card.uuid if card.partition is None else None
        variables[_VISIBLE] = own_name or str(card.index)
    return RunPlan(
        image=image,
        user=user,
        card=card,
        nodes=nodes,
        groups=access.groups,
        keep_groups=access.keep_groups,
        user_namespace=access.user_namespace,
        environment=variables,
        hidden=tuple(
            Hidden(other, _why_hidden(other, targets)) for other in found.cards if other != card
        ),
        relaxed=tuple(name for name in COSTS if name in wish.relax),
        notes=(
            *_notes_of_code(override.target if override else card.target, targets),
            *(_notes_of_override(override, card, targets) if override else ()),
            *access.notes,
            *_notes_of_shell(environment),
            *(f"{name}: {cost}" for name, cost in COSTS.items() if name in wish.relax),
        ),
        memory=wish.memory,
        shm=wish.shm,
        seconds=wish.seconds,
    )


def has_code(targets: Sequence[str], target: str) -> bool:
    """Tell whether an artifact has code that a card of a target can run.

    Features do not count: what a card has switched on is not seen from outside.

    >>> has_code(["gfx12-generic"], "gfx1201"), has_code(["gfx1200"], "gfx1201")
    (True, False)
    """
    return any(_runs(one, target) for one in targets)


def seen_as(plan: RunPlan) -> str:
    """Return the target that a runtime takes the plan's card for."""
    override = _override(plan.environment.get(_OVERRIDE))
    if override:
        return override.target
    assert plan.card is not None  # noqa: S101 - a plan that is asked for its card has one
    return plan.card.target


def _runs(code: str, target: str) -> bool:
    name = code.partition(":")[0]
    processor = _BY_NAME.get(target)
    return name == target or (processor is not None and name == processor.generic)


def _override(text: str | None) -> _Override | None:
    """Read a value for HSA_OVERRIDE_GFX_VERSION."""
    if text is None:
        return None
    match = _VERSION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--override: expected three numbers such as 11.0.0 for gfx1100, got {_shown(text)}"
        )
    major, minor, stepping = map(int, match.groups())
    name = target_name(major * 10000 + minor * 100 + stepping)
    if name not in _BY_NAME:
        raise UsageError(
            f"--override: {text} would be {name}, which is no target",
            hint="invoke list --targets prints every target",
        )
    return _Override(text, name)


def _version_of(target: str) -> tuple[int, int, int]:
    """Return major, minor and stepping of a target that is not generic.

    >>> _version_of("gfx90a"), _version_of("gfx1103")
    ((9, 0, 10), (11, 0, 3))
    """
    return int(target[3:-2]), int(target[-2], 16), int(target[-1], 16)


def _require_own_devices(engine: EngineFacts) -> None:
    if engine.is_desktop:
        raise EngineError(
            "Docker Desktop runs containers in a virtual machine that has no /dev/kfd: "
            "the GPU found here is out of its reach",
            hint="docker context use default  for the engine of this machine itself",
        )
    if not engine.is_local:
        raise EngineError(
            f"the engine at {engine.address} is not on this machine itself: "
            "the GPU found here is out of its reach",
            hint="unset DOCKER_HOST; docker context use default",
        )


def _asked_for(found: Gpus, wish: Wish) -> tuple[Card, ...]:
    """Return the cards that all of a person's choices allow."""
    target = wish.gpu_target.partition(":")[0] if wish.gpu_target is not None else None
    choices: tuple[tuple[str, int | str | None, Callable[[Card], Sequence[int | str]]], ...] = (
        ("--device-index", wish.device_index, lambda card: (card.index,)),
        ("--render-node", wish.render_node, _names_of_node),
        ("--gpu-target", target, lambda card: (card.target,)),
    )
    chosen = found.cards
    said: list[str] = []
    for option, value, names in choices:
        if value is None:
            continue
        matching = [card for card in found.cards if value in names(card)]
        if not matching:
            raise UsageError(
                f"{option} {value}: {_why_unknown(found, value)}; "
                f"there is {', '.join(map(_listed, found.cards))}"
            )
        said.append(f"{option} {value} is {' or '.join(map(_listed, matching))}")
        chosen = tuple(card for card in chosen if card in matching)
    if not chosen:
        raise UsageError("these choices exclude each other: " + ", and ".join(said))
    return chosen


def _names_of_node(card: Card) -> tuple[str, ...]:
    paths = [path for path in (card.render.path, card.by_path) if path]
    return (*paths, *(path.rpartition("/")[2] for path in paths))


def _why_unknown(found: Gpus, value: int | str) -> str:
    for one in found.strangers:
        if one.render and value in {one.render.path, one.render.path.rpartition("/")[2]}:
            return f"{one.product} at {one.pci} cannot compute: {one.why}"
    return "no card is that"


def _choose(asked: Sequence[Card], targets: Sequence[str], override: _Override | None) -> Card:
    """Return the first card that an artifact has code for; discrete ones come before APUs."""
    in_order = sorted(asked, key=lambda card: (card.is_apu, card.index))
    usable = [card for card in in_order if card.render.kind is NodeKind.CHARACTER]
    if not usable:
        raise NoGpuError(
            "; ".join(f"{_listed(card)}: {_no_node(card)}" for card in in_order),
            hint="on the host: dmesg | grep -iE 'amdgpu|kfd'",
        )
    fitting = [card for card in usable if not targets or has_code(targets, card.target)]
    if fitting:
        # Before what an override would make fit: it may be left over from another card.
        return fitting[0]
    if override is None:
        raise _misfit(usable, targets)
    return next((card for card in usable if _is_same_major(card, override)), usable[0])


def _is_same_major(card: Card, override: _Override) -> bool:
    return _version_of(card.target)[0] == _version_of(override.target)[0]


def _misfit(cards: Sequence[Card], targets: Sequence[str]) -> FitError:
    there = ", ".join(map(_listed, cards))
    said = f"the artifact has code for {', '.join(targets)}, and there is {there}"
    buildable = [card.target for card in cards if card.target in _BY_NAME]
    if not buildable:
        return FitError(said)
    hint = f"invoke build --target {buildable[0]}"
    stand_in = _stand_in(buildable, targets)
    if stand_in:
        version = ".".join(map(str, _version_of(stand_in)))
        hint += f", or, without AMD's support, --override {version}"
    return FitError(said, hint=hint)


def _stand_in(cards: Sequence[str], targets: Sequence[str]) -> str | None:
    """Return a target whose code one of these cards runs under an override, or None.

    Only targets that share a generic one have the instructions of each other; the major version
    alone does not tell: gfx906 and gfx942 have the same.
    """
    generic = {_BY_NAME[card].generic for card in cards} - {None}
    for target in targets:
        processor = _BY_NAME.get(target.partition(":")[0])
        if processor and processor.generic in generic:
            return processor.name
    return None


def _require_override_fits(override: _Override, card: Card, targets: Sequence[str]) -> None:
    own = ".".join(map(str, _version_of(card.target)))
    takes = f"{_OVERRIDE} {override.text} makes a runtime take {card.target} for {override.target}"
    if not _is_same_major(card, override):
        # https://github.com/ROCm/rocm-systems/issues/3531: memory faults, resets, hangs.
        raise UsageError(
            f"{takes}: that is another major version than its own {own}, "
            "whose instructions it does not have",
            hint="leave out --override, or choose another card: --gpu-target, --device-index",
        )
    if targets and not has_code(targets, override.target):
        raise FitError(
            f"{takes}, and the artifact has code for {', '.join(targets)}",
            hint="leave out --override"
            if has_code(targets, card.target)
            else f"invoke build --target {card.target}, and leave out --override",
        )


def _why_hidden(card: Card, targets: Sequence[str]) -> str:
    if card.render.kind is not NodeKind.CHARACTER:
        return _no_node(card)
    if targets and not has_code(targets, card.target):
        return f"the artifact has no code for {card.target}"
    return "not chosen"


def _no_node(card: Card) -> str:
    return f"{card.render.path} is no device node: {card.render.kind}"


def _notes_of_code(target: str, targets: Sequence[str]) -> tuple[str, ...]:
    if not targets:
        return ("what the image has code for is not known, so it was not compared with the card",)
    running = [one for one in targets if _runs(one, target)]
    if all(":" in one for one in running):
        names = ", ".join(running)
        return (f"{names} runs only where the driver has set these features so: not seen here",)
    return ()


def _notes_of_override(override: _Override, card: Card, targets: Sequence[str]) -> tuple[str, ...]:
    if override.target == card.target:
        return (f"{_OVERRIDE} {override.text} is {card.target} itself: it changes nothing",)
    takes = f"{_OVERRIDE} {override.text} makes a runtime take {card.target} for {override.target}"
    if has_code(targets, card.target):
        return (f"{takes}, which needs none: the artifact has code for it",)
    return (f"{takes}: AMD does not support that; wrong results and a hang of the GPU may follow",)


def inherited(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables of a shell that change what ROCm does, sorted."""
    return tuple(
        name for name in sorted(environment) if name in _LEFTOVERS or name.startswith("HSA_")
    )


def _notes_of_shell(environment: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"{name} is {_shown(environment[name])} in this shell; it is not passed on"
        for name in inherited(environment)
    )


def _access(nodes: Sequence[DeviceNode], engine: EngineFacts, user: str) -> _Access:
    """Say how the image's user comes to open nodes for reading and writing."""
    closed = [node for node in nodes if not _may(node, 0)]
    if not closed:
        return _Access()
    if engine.remapped or (engine.rootless and engine.product == "docker"):
        raise _groups_are_lost(closed, engine)
    # In a user namespace, nobody is the owner: root of the host is not mapped.
    uid = None if engine.rootless else _uid(user)
    for node in closed:
        _require_openable(node, uid)
    groups = tuple(sorted({node.gid for node in closed if node.gid is not None and _may(node, 3)}))
    if engine.rootless:
        return _access_by_kept_groups(groups, engine, user)
    owned = [node.path for node in closed if node.uid == uid]
    notes = []
    if owned:
        # Also without any capability: an owner needs none.
        notes.append(
            f"the image's user, {user or 'root'}, owns {' and '.join(owned)}: "
            "that it opens them proves nothing for other users"
        )
    if _ROOT in groups:
        rootly = [node for node in closed if node.gid == _ROOT]
        notes.append(
            f"{' and '.join(node.path for node in rootly)} belongs to group 0, root's own, which "
            f"the container is given; better give it to another, {_rule(rootly, _TO_A_GROUP)}"
        )
    return _Access(groups=groups, notes=tuple(notes))


def _access_by_kept_groups(groups: tuple[int, ...], engine: EngineFacts, user: str) -> _Access:
    # https://docs.podman.io/en/latest/markdown/podman-run.1.html#group-add-group-keep-groups
    if engine.runtime.rpartition("/")[2] != "crun":
        raise EngineError(
            "Podman without root passes the groups that may open the GPU's nodes only with the "
            f"runtime crun, and its runtime is {engine.runtime}",
            hint='install crun, and set runtime = "crun" below [engine] in '
            "~/.config/containers/containers.conf",
        )
    namespace = _keep_id(user, engine.version)
    needed = ", ".join(map(str, groups))
    notes = [
        f"the groups kept are those of whoever runs Podman, and {needed} must be among them: id -G",
        "they are lost where a program in the container sets its groups anew, as su and gosu do",
    ]
    if namespace:
        # https://github.com/containers/podman/issues/20845
        notes.append(f"Podman may copy the image once, at the first run with {namespace}")
    return _Access(keep_groups=True, user_namespace=namespace, notes=tuple(notes))


def _keep_id(user: str, version: str) -> str | None:
    """Return the namespace in which the image's user is the caller, or None for the default one.

    Groups are kept either way; but as the caller the user also has what an ACL allows. Without a
    number it is left alone: some releases of Podman then run the image as another user than it
    names, https://github.com/containers/podman/issues/29600. Root is the caller by default.
    """
    uid, gid = _uid(user), user.partition(":")[2]
    numbers = tuple(int(number) for number in re.findall(r"[0-9]{1,9}", version)[:2])
    if not uid or numbers < _FIRST_WITH_MAPPING:
        return None
    return f"keep-id:uid={uid},gid={gid if _NUMBER.fullmatch(gid) else uid}"


def _groups_are_lost(closed: Sequence[DeviceNode], engine: EngineFacts) -> EngineError:
    who = "without root" if engine.rootless else "with userns-remap"
    other = "Docker with root, or Podman with crun" if engine.rootless else "no userns-remap"
    return EngineError(
        f"{engine.product.capitalize()} {who} gives a container none of the host's groups, and "
        + " and ".join(f"{node.path} is {_ownership(node)}" for node in closed),
        hint=f"{_rule(closed, _TO_ALL)}; or use {other}",
    )


def _require_openable(node: DeviceNode, uid: int | None) -> None:
    # The first class that fits decides, even if a later one would allow more:
    # https://pubs.opengroup.org/onlinepubs/9799919799/basedefs/V1_chap04.html#tag_04_07
    if not _may(node, 6 if uid is not None and uid == node.uid else 3):
        raise NoGpuError(
            f"{node.path} is {_ownership(node)}: no group lets the image's user read and write it",
            hint=_rule([node], _TO_A_GROUP),
        )


def _may(node: DeviceNode, shift: int) -> bool:
    """Tell whether a class may read and write: 6 is the owner, 3 the group, 0 everybody else."""
    return node.mode is not None and node.mode >> shift & _READ_WRITE == _READ_WRITE


def _ownership(node: DeviceNode) -> str:
    return f"{node.uid}:{node.gid} {node.mode:04o}" if node.mode is not None else str(node.kind)


def _rule(nodes: Sequence[DeviceNode], what: str) -> str:
    names = dict.fromkeys("kfd" if node.path == KFD else "renderD*" for node in nodes)
    rules = " and ".join(f'KERNEL=="{name}", {what}' for name in names)
    return f"in {_RULES}: {rules}; then udevadm control --reload && udevadm trigger"


def _uid(user: str) -> int | None:
    """Return the number of the user that an image names, or None if only the image knows it."""
    name = user.partition(":")[0]
    if name in {"", "root"}:
        return _ROOT
    return int(name) if _NUMBER.fullmatch(name) else None


def command_line(
    plan: RunPlan, program: Literal["docker", "podman"], command: Sequence[str]
) -> str:
    """Return the line that a person can paste to run a command under this plan.

    One of Docker passes groups by number also where the plan is for Podman without root.
    """
    groups = [str(one) for one in plan.groups]
    if plan.keep_groups:
        closed = {str(node.gid) for node in plan.nodes if not _may(node, 0)}
        groups = ["keep-groups"] if program == "podman" else sorted(closed, key=int)
    options: dict[str, list[str]] = {
        "device": list(plan.devices),
        "group-add": groups,
        "userns": [plan.user_namespace] if plan.user_namespace and program == "podman" else [],
        # Podman hands the proxies of the shell to containers, and passwords may be in them.
        "http-proxy": ["false"] if program == "podman" else [],
        "env": [f"{name}={value}" for name, value in sorted(plan.environment.items())],
        "tmpfs": [f"{path}:{how}" for path, how in sorted(plan.tmpfs.items())],
        "cap-drop": list(CAP_DROP),
        "security-opt": list(plan.security_options),
        "network": [plan.network],
        "ipc": [plan.ipc],
        # Podman refuses it for the host's: https://github.com/containers/podman/issues/16632
        "shm-size": [_size(plan.shm)] if plan.ipc == "private" else [],
        "memory": [_size(plan.memory)],
        "memory-swap": [_size(plan.memory)],
        "pids-limit": [str(PIDS)],
    }
    words = [f"--{name}={value}" for name, values in options.items() for value in values]
    lines = [
        f"{program} run --rm --init --read-only",
        *(["--privileged"] if "privileged" in plan.relaxed else []),
        *map(shlex.quote, words),
        shlex.join((plan.image, *command)),
    ]
    return " \\\n    ".join(lines)


def describe(plan: RunPlan) -> list[tuple[str, str]]:
    """Return the plan as rows for people: a name, and what is said of it."""
    rows = [("image", plan.image), ("user", plan.user or "root")]
    if plan.card:
        rows.append(("card", _titled(plan.card)))
    else:
        rows.append(("card", "none: it computes on the host's processor"))
    rows += [("node", f"{node.path}, {_ownership(node)}") for node in plan.nodes]
    if plan.keep_groups:
        rows.append(("groups", "those of whoever runs Podman (keep-groups)"))
    elif plan.nodes:
        rows.append(("groups", ", ".join(map(str, plan.groups)) or "none is needed"))
    if plan.user_namespace:
        rows.append(("user namespace", plan.user_namespace))
    if plan.card:
        rows.append(("visible as", _visible_as(plan)))
    rows += [("variable", f"{name}={value}") for name, value in sorted(plan.environment.items())]
    rows += [("hidden", f"{_listed(one.card)}: {one.why}") for one in plan.hidden]
    rows += [
        ("files", "read-only"),
        *(("writable", f"{path} ({how})") for path, how in sorted(plan.tmpfs.items())),
        ("rights", _rights(plan)),
        ("network", plan.network),
        ("shared memory", f"{_shown_size(plan.shm)}, its own" if plan.ipc == "private" else "host"),
        ("memory", f"{_shown_size(plan.memory)}, no swap"),
        ("processes", f"{PIDS} at most"),
        ("time", f"{plan.seconds:g} s for each probe"),
        ("relaxed", ", ".join(plan.relaxed) or "nothing"),
    ]
    return rows + [("note", note) for note in plan.notes]


def to_json(plan: RunPlan) -> dict[str, Any]:
    """Return the plan as plain JSON types; the keys of a schema number do not change."""
    return {
        "schema": _SCHEMA,
        "image": plan.image,
        "user": plan.user,
        "card": _json_card(plan.card) if plan.card else None,
        "nodes": [_json_node(node) for node in plan.nodes],
        "groups": list(plan.groups),
        "keep_groups": plan.keep_groups,
        "user_namespace": plan.user_namespace,
        "environment": dict(plan.environment),
        "hidden": [{"card": _json_card(one.card), "why": one.why} for one in plan.hidden],
        "read_only": True,
        "tmpfs": dict(plan.tmpfs),
        "cap_drop": list(CAP_DROP),
        "security_options": list(plan.security_options),
        "privileged": "privileged" in plan.relaxed,
        "network": plan.network,
        "ipc": plan.ipc,
        "memory": plan.memory,
        "shm": plan.shm,
        "pids": PIDS,
        "seconds": plan.seconds,
        "relaxed": {name: COSTS[name] for name in plan.relaxed},
        "notes": list(plan.notes),
    }


def _json_card(card: Card) -> dict[str, Any]:
    return dataclasses.asdict(card) | {"render": _json_node(card.render)}


def _json_node(node: DeviceNode) -> dict[str, Any]:
    return dataclasses.asdict(node) | {"kind": str(node.kind)}


def _visible_as(plan: RunPlan) -> str:
    if _VISIBLE in plan.environment:
        return f"number 0; all are inside, and {_VISIBLE} hides the others"
    # ROCm leaves out each GPU whose render node is not there (topology_sysfs_check_node_supported):
    # https://github.com/ROCm/rocm-systems/blob/develop/projects/rocr-runtime/libhsakmt/src/topology.c
    # An engine with root has the kernel close the others too (kfd_devcgroup_check_permission):
    # https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_priv.h
    # So the card is the first inside with any engine, and its number on the host could hide it.
    return "number 0, the only one whose render node is inside"


def _rights(plan: RunPlan) -> str:
    if "privileged" in plan.relaxed:
        return "all (privileged)"
    return ", ".join(("no capability", *plan.security_options))


def _listed(card: Card) -> str:
    return f"card {card.index} ({card.target}, {card.product}, {card.render.path})"


def _titled(card: Card) -> str:
    kind = "APU" if card.is_apu else "discrete"
    parts = [card.product, card.target, kind, f"{_shown_size(card.memory)} of its own"]
    parts += [f"at {card.pci}"] if card.pci else []
    parts += [f"partition {card.partition}"] if card.partition is not None else []
    parts += [card.by_path] if card.by_path else []
    return ", ".join(parts)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _LONGEST_SHOWN else repr(text[:_LONGEST_SHOWN]) + "..."


def _size(count: int) -> str:
    """Return bytes as engines take them.

    >>> _size(8 << 30), _size(1 << 20), _size(1000)
    ('8g', '1m', '1000')
    """
    for letter, unit in (("g", 1 << 30), ("m", 1 << 20)):
        if count and count % unit == 0:
            return f"{count // unit}{letter}"
    return str(count)


def _shown_size(count: int) -> str:
    return f"{count / (1 << 30):.3g} GiB"
