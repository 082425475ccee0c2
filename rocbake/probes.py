"""Probes: what is run in a container to try a GPU, and how its answer is judged. Pure.

An answer counts only if it shows where it was computed. A program that prints the right numbers
after it has fallen back to the processor has not used the GPU, and neither has one that says OK
because it skipped everything.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from rocbake import access
from rocbake.report import Probe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocbake.gpu import Card, DeviceNode
    from rocbake.passthrough import Ended
    from rocbake.smoke_wish import SmokeCommand

# The program of the recipe of that name; it says in its README what it prints.
HIP_PROBE = "hip-probe"
_SCHEMA = 1
_CHECKS = ("transfer", "increment", "matmul", "matmul-edges", "reduce")
_CHECKS_ON_GPU = ("identity", *_CHECKS, "streams")
# The one check whose result is known without reading what the program expected.
_INCREMENT = [2, 3, 4]
_TAIL_LINES = 20

# Opens each node as the runtime does, with nothing but a shell, and says who it is. `<>` opens for
# reading and writing: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html
_OPEN_NODES = r"""
for node in "$@"; do
    if [ -d "$node" ]; then why='Is a directory'
    elif [ ! -e "$node" ]; then why='No such file or directory'
    elif why=$( (: <>"$node") 2>&1); then why=open
    fi
    echo "node $node ${why##*: }"
done
while read -r key value; do
    case $key in Uid: | Groups:) echo "$key $value" ;; esac
done </proc/self/status
"""


def open_nodes_command(paths: Sequence[str]) -> list[str]:
    """Return a command that tries to open nodes, for `judge_access`."""
    return ["sh", "-c", _OPEN_NODES, "sh", *paths]


def judge_access(run: Ended, nodes: Sequence[DeviceNode], *, selinux_enforcing: bool) -> Probe:
    """Say whether the image's own user can open every node, and if not, why not."""
    if fault := _cut_off("access", run):
        return fault
    answers = dict(re.findall(r"^node (\S+) (.*)$", run.stdout, re.MULTILINE))
    uid = re.search(r"^Uid:\s+\d+\s+(\d+)", run.stdout, re.MULTILINE)
    held = re.search(r"^Groups:(.*)$", run.stdout, re.MULTILINE)
    if run.exit_code or uid is None or any(node.path not in answers for node in nodes):
        return _failed(
            "access", run, f"the image's shell did not try the nodes (exit code {run.exit_code})"
        )
    groups = [int(number) for number in held.group(1).split()] if held else []
    for node in nodes:
        if answers[node.path] != "open":
            explained = access.explain(
                node,
                _NUMBERS.get(answers[node.path].casefold(), 0),
                uid=int(uid.group(1)),
                groups=groups,
                selinux_enforcing=selinux_enforcing,
            )
            return Probe(
                name="access",
                verdict="failed",
                says=explained.message,
                remedy=explained.remedy,
                seconds=run.seconds,
            )
    return Probe(
        name="access",
        verdict="passed",
        says=f"user {uid.group(1)} opens {' and '.join(node.path for node in nodes)}",
        seconds=run.seconds,
    )


# What a shell prints is the system's sentence for a number; shells differ in its first letter.
_NUMBERS = {os.strerror(number).casefold(): number for number in range(1, 134)}


def judge_devices(run: Ended, card: Card) -> Probe:
    """Say whether the runtime sees the card that was passed, and no other."""
    document, fault = _document("device", run)
    if fault:
        return fault
    devices = document["devices"]
    if len(devices) != 1:
        return _failed(
            "device",
            run,
            f"expected the one device that was passed, the runtime sees {len(devices)}",
        )
    if wrong := _other_card(devices[0], card):
        return _failed("device", run, wrong)
    return Probe(
        name="device",
        verdict="passed",
        says=f"the runtime sees {devices[0]['name']} ({devices[0]['gcn_arch']}) as its device 0",
        seconds=run.seconds,
    )


def judge_compute(run: Ended, card: Card | None, *, target: str) -> Probe:
    """Say whether hip-probe computed what it should, on the card.

    Args:
        run: How it ended.
        card: What was passed; None for a GPU that an emulator makes up.
        target: What the runtime calls the card: its own target, or that of an override.
    """
    document, fault = _document("compute", run)
    if fault:
        return fault
    computed_on = document.get("computed_on") or {}
    if wrong := _unproven(document, computed_on, card, target):
        where = "host" if computed_on.get("kind") == "host" else None
        return _failed("compute", run, wrong).model_copy(update={"where": where})
    return Probe(
        name="compute",
        verdict="passed",
        where="gpu" if card else "emulated",
        says=f"{len(_CHECKS_ON_GPU)} checks, [1, 2, 3] became [2, 3, 4], by {computed_on['name']}",
        seconds=run.seconds,
    )


def _unproven(
    document: Mapping[str, Any], computed_on: Mapping[str, Any], card: Card | None, target: str
) -> str | None:
    """Return what keeps an answer from being proof that the card computed."""
    if computed_on.get("kind") == "host":
        return "it was computed on the host"
    if wrong := _wrong_checks(document, _CHECKS_ON_GPU):
        return wrong
    if document["verdict"] != "pass" or computed_on.get("kind") != "gpu":
        return "nothing in the answer shows that a GPU computed it"
    got = str(computed_on.get("gcn_arch", "")).partition(":")[0]
    if got != target:
        return f"expected {target} to compute, it was {got or 'unnamed'}"
    return _other_card(document["devices"][document["device"]], card) if card else None


def judge_host(run: Ended) -> Probe:
    """Say whether hip-probe's host path computed what it should, on the host."""
    document, fault = _document("compute", run)
    if fault:
        return fault.model_copy(update={"where": "host"})
    wrong = _wrong_checks(document, _CHECKS)
    if not wrong and (
        document["verdict"] != "host" or (document.get("computed_on") or {}).get("kind") != "host"
    ):
        wrong = "nothing in the answer shows that the host computed it"
    if wrong:
        return _failed("compute", run, wrong).model_copy(update={"where": "host"})
    return Probe(
        name="compute",
        verdict="passed",
        where="host",
        says=f"on the host: {len(_CHECKS)} checks by {document['computed_on']['name']}",
        seconds=run.seconds,
    )


def judge_command(run: Ended, command: SmokeCommand, *, on_host: bool) -> Probe:
    """Say whether a recipe's own command did what the recipe says, and where."""
    if fault := _cut_off(command.name, run):
        return fault
    printed = f"{run.stdout}\n{run.stderr}"
    if wrong := _unexpected(run, command, printed):
        return _failed(command.name, run, wrong)
    shown = re.search(command.gpu, printed) if command.gpu else None
    if not on_host and not shown:
        return _failed(
            command.name,
            run,
            f"computed on the host, as far as it shows: it did not print {command.gpu!r}",
        )
    return Probe(
        name=command.name,
        verdict="passed",
        where="host" if on_host else "gpu",
        says="on the host: it printed what it should"
        if on_host or not shown
        else f"it printed {shown.group(0)!r}",
        seconds=run.seconds,
    )


def _unexpected(run: Ended, command: SmokeCommand, printed: str) -> str | None:
    """Return what a command did that its recipe does not expect, wherever it computed."""
    if run.exit_code:
        return f"exit code {run.exit_code}: {' '.join(command.run or command.host)}"
    for pattern in command.refuse:
        if found := re.search(pattern, printed):
            return f"it printed {found.group(0)!r}, and may not"
    if command.expect and not re.search(command.expect, printed):
        return f"it did not print {command.expect!r}"
    return None


def _document(name: str, run: Ended) -> tuple[Mapping[str, Any], Probe | None]:
    """Return what hip-probe printed, or the probe that failed because it says no success."""
    if fault := _cut_off(name, run):
        return {}, fault
    try:
        document = json.loads(run.stdout)
        is_ours = document["program"] == HIP_PROBE and document["schema"] == _SCHEMA
        verdict, error = document["verdict"], document["error"]
        complete = isinstance(document["devices"], list) and isinstance(document["checks"], list)
    except (ValueError, TypeError, KeyError, RecursionError):
        is_ours = complete = False
        verdict, error, document = None, None, {}
    if not is_ours or not complete:
        return {}, _failed(
            name, run, f"it did not print hip-probe's document (exit code {run.exit_code})"
        )
    if error:
        message, hint = error.get("message"), error.get("hint")
        return {}, _failed(name, run, f"{verdict}: {message}").model_copy(update={"remedy": hint})
    if run.exit_code:
        return {}, _failed(
            name, run, f"it says {verdict}, and ended with exit code {run.exit_code}"
        )
    return document, None


def _wrong_checks(document: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return what is missing or wrong; the program's own word for it is not taken on trust."""
    checks = {one.get("name"): one for one in document["checks"] if isinstance(one, dict)}
    missing = [name for name in names if name not in checks]
    if missing:
        return f"not checked: {', '.join(missing)}"
    for name in names:
        check = checks[name]
        if check.get("ok") is not True or check.get("expected") != check.get("got"):
            return f"{name}: expected {check.get('expected')}, got {check.get('got')}"
    if checks["increment"]["got"] != _INCREMENT:
        return f"increment: expected {_INCREMENT}, got {checks['increment']['got']}"
    return None


def _other_card(device: Mapping[str, Any], card: Card) -> str | None:
    address = device.get("pci_bus_id")
    if card.pci and address and str(address).casefold() != card.pci.casefold():
        return f"expected the card at {card.pci}, it is the one at {address}"
    return None


def _cut_off(name: str, run: Ended) -> Probe | None:
    """Return a failure where the run was ended from outside; its exit code says nothing then."""
    if run.timed_out:
        return _failed(
            name, run, f"hung: it did not end in {run.seconds:.0f} s, and was ended"
        ).model_copy(update={"remedy": "on the host: dmesg | grep -iE 'amdgpu|kfd'"})
    if run.out_of_memory:
        return _failed(
            name,
            run,
            "the kernel ended a process in the container for want of memory "
            f"(exit code {run.exit_code} all the same)",
        ).model_copy(update={"remedy": "give it more: --memory 16"})
    return None


def _failed(name: str, run: Ended, says: str) -> Probe:
    lines = f"{run.stdout}\n{run.stderr}".strip().splitlines()
    return Probe(
        name=name,
        verdict="failed",
        says=says,
        seconds=run.seconds,
        output="\n".join(lines[-_TAIL_LINES:]),
    )
