"""Findings: what a doctor saw, in a form for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

if TYPE_CHECKING:
    from collections.abc import Iterable

State = Literal["ok", "warn", "fail"]

_RANKS: dict[State, int] = {"ok": 0, "warn": 1, "fail": 2}


class Finding(BaseModel):
    """One thing looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subject: str
    says: Annotated[str, Field(description="what was found")]
    remedy: Annotated[str | None, Field(description="what to type or do; null if all is well")] = (
        None
    )
    exit_code: Annotated[
        int, Field(description="of the kind of failure it would become; 0 if of none")
    ] = 0

    @computed_field(description="`warn` hinders no build")  # type: ignore[prop-decorator]
    @property
    def state(self) -> State:
        """How bad it is: what needs no remedy is right, and what has an exit code fails."""
        if self.exit_code:
            return "fail"
        return "warn" if self.remedy else "ok"


class Examination(BaseModel):
    """Everything looked at: what `invoke doctor --json` prints."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    worst: State
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Examination:
        """Return the findings, with the worst state among them."""
        found = tuple(findings)
        worst = max((one.state for one in found), key=_RANKS.__getitem__, default="ok")
        return cls(worst=worst, findings=found)
