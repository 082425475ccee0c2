"""What was asked of `invoke smoke`, as it was typed, and what it means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from rocbake import target
from rocbake.errors import UsageError
from rocbake.passthrough import Relaxation, Wish

if TYPE_CHECKING:
    from collections.abc import Sequence

EMULATORS = ("tinygrad", "rocjitsu")
_MOST_SECONDS = 86_400
_MOST_GIB = 1 << 20


@dataclass(frozen=True)
class Asked:
    """What a person typed, as text.

    Attributes:
        targets: Target sets whose artifacts are tried; those that fit a card if none is given.
        recipes: Recipes; every one if none is given.
        gpu_target: A card of this target.
        device_index: A card of this number.
        render_node: A card of this node.
        override: HSA_OVERRIDE_GFX_VERSION.
        relax: Protections to give up.
        memory: GiB.
        timeout: Seconds.
        host: On the processor.
        emulator: Name of an emulator, or empty.
        require_gpu: Whether the absence of a GPU is a failure.
    """

    targets: Sequence[str] = ()
    recipes: Sequence[str] = ()
    gpu_target: str = ""
    device_index: str = ""
    render_node: str = ""
    override: str | None = None
    relax: Sequence[str] = ()
    memory: str = "8"
    timeout: str = "120"
    host: bool = False
    emulator: str = ""
    require_gpu: bool = False

    def wish(self) -> Wish:
        """Return what the plan is told.

        Raises:
            UsageError: A value that makes no sense.
            TargetError: A target that is none.
        """
        if self.host and self.emulator:
            raise UsageError("--host and --emulate exclude each other", hint="invoke smoke --help")
        if self.emulator and self.emulator not in EMULATORS:
            raise UsageError(f"--emulate: expected {' or '.join(EMULATORS)}, got {self.emulator!r}")
        known = get_args(Relaxation)
        for name in self.relax:
            if name not in known:
                raise UsageError(f"--relax: expected one of {', '.join(known)}, got {name!r}")
        if self.gpu_target:
            target.parse_target(self.gpu_target)
        return Wish(
            device_index=number("--device-index", self.device_index, 0, 1023)
            if self.device_index
            else None,
            render_node=self.render_node or None,
            gpu_target=self.gpu_target or None,
            relax=tuple(name for name in known if name in self.relax),
            override=self.override,
            memory=number("--memory", self.memory, 1, _MOST_GIB) << 30,
            seconds=number("--timeout", self.timeout, 1, _MOST_SECONDS),
        )


def number(option: str, text: str, least: int, most: int) -> int:
    """Return the number that an option was given.

    Raises:
        UsageError: It is no whole number from `least` to `most`.
    """
    # As many digits as Python would take are more than anybody types on purpose.
    value = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
    if not least <= value <= most:
        raise UsageError(f"{option}: expected a whole number from {least} to {most}, got {text!r}")
    return value
