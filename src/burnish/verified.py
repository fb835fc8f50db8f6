"""Verified: a compressed model beside what it was: one metric with its budget, costs, and how much each part matters."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

# How a drop is counted: of the baseline, or as a difference of shares.
PERCENT: Final = "percent"
POINTS: Final = "points"


class Frozen(BaseModel):
    """Immutable, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Judged(Frozen):
    """The metric that decides. `drop` is how much worse, above 0, in `unit`; `noise` is half the width of the interval that
    holds 95 % of the drops on resampled pieces of the same text, None where there are no pieces."""

    name: str
    lower_is_better: bool
    baseline: float
    compressed: float
    drop: float
    unit: Literal["percent", "points"]
    noise: float | None = None
    pieces: int = 0
    max_drop: float | None = None

    @property
    def within(self) -> bool:
        """Whether the budget is met; a drop that is not a number meets none."""
        return self.max_drop is None or self.drop <= self.max_drop


class Cost(Frozen):
    """A quantity of both models; None where nobody said. `predicted` is of the compressed one, before it was made."""

    key: str
    label: str
    unit: str
    baseline: float | None = None
    compressed: float | None = None
    predicted: float | None = None


class Part(Frozen):
    """A part of the model: its matrices, how far the output moves when it alone is compressed, and whether it was kept.

    `divergence` is in `Verified.divergence_unit`; `bytes_saved` what its compression saves in the file.
    """

    name: str
    divergence: float
    bytes_saved: int = 0
    kept: bool = False


class Verified(Frozen):
    """What was done to a model and what it cost. `parts` stand in the order of the model; empty where nobody looked."""

    model: str
    techniques: tuple[str, ...]
    settings: dict[str, str] = Field(default_factory=dict)
    judged: Judged
    costs: tuple[Cost, ...] = ()
    agreement: dict[str, float] = Field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    divergence_unit: str = "nats per token"
    accepted: bool = True
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The parts that stay as they were, so that the budget is met."""
        return tuple(part.name for part in self.parts if part.kept)
