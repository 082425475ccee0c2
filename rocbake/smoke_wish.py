"""How products are tried, as people write it below `smoke` in recipe.yaml."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from rocbake.container import Name
from rocbake.kernel import KernelTest


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as wrong:
        raise PydanticCustomError(
            "pattern", "not a regular expression: {why}", {"why": str(wrong)}
        ) from wrong
    return text


_Pattern = Annotated[str, Field(min_length=1), AfterValidator(_check_pattern)]
_Words = tuple[Annotated[str, Field(min_length=1)], ...]


class SmokeCommand(_Wish):
    """A command that shows that the product works, and on what."""

    name: Name = Field(description="what it is called in reports")
    run: _Words = Field(
        default=(),
        description="program and arguments, which no shell reads; "
        "left out for what computes on the processor alone",
    )
    gpu: _Pattern | None = Field(
        default=None,
        description="regular expression for what is printed only where the GPU computed, with "
        "'run'; without it, nothing would tell a result of the GPU from one of the processor",
    )
    expect: _Pattern | None = Field(
        default=None, description="regular expression for the result that must be printed"
    )
    refuse: tuple[_Pattern, ...] = Field(
        default=(), description="regular expressions for what must not be printed"
    )
    host: _Words = Field(
        default=(), description="the same on the processor; left out where there is no such thing"
    )
    seconds: int = Field(default=120, ge=1, le=86400, description="time limit")

    @model_validator(mode="after")
    def _is_whole(self) -> SmokeCommand:
        if bool(self.run) != bool(self.gpu):
            raise PydanticCustomError("smoke_command", "'run' and 'gpu' go together")
        if not self.run and not self.host:
            raise PydanticCustomError("smoke_command", "neither 'run' nor 'host': nothing to run")
        return self


class Smoke(_Wish):
    """How a product is tried."""

    commands: tuple[SmokeCommand, ...] = Field(
        default=(), description="run in the image, after hip-probe, in this order"
    )
    kernels: tuple[KernelTest, ...] = Field(
        default=(), description="kernels out of the archive that an emulator can run"
    )
