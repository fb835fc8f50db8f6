"""Verify: a compressed model beside what it was, on one metric with a budget.

`Judge.of` measures the model itself; `look` holds a compressed one against it, and `Judged.within` says whether the budget is
met. Where it is not, `suffering` looks at each part by itself and `keep_fewest` finds the fewest to keep as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from burnish.compress.divergence import Probe, Seen
from burnish.compress.metrics import Measured, Metric, judge
from burnish.compress.sensitivity import Exchange, alone, fewest, mixed
from burnish.errors import BudgetNotMet
from burnish.verified import PERCENT, Judged, Part, Verified

Progress = Callable[[int, int], None]


class OverBudget(BudgetNotMet):
    """A compressed model lost more than it may; `verified` says what, with its parts by how much they suffer."""

    def __init__(self, message: str, verified: Verified) -> None:
        super().__init__(message)
        self.verified = verified


@dataclass(frozen=True, eq=False)
class Judge:
    """The uncompressed model, what both are judged by, and what it measured of itself."""

    baseline: nn.Module
    metric: Metric
    probe: Probe
    before: Measured
    max_drop: float | None

    @classmethod
    def of(cls, baseline: nn.Module, metric: Metric, probe: Probe, max_drop: float | None = None) -> Judge:
        """Measure the uncompressed model."""
        return cls(baseline, metric, probe, metric.measure(baseline), max_drop)

    def look(self, model: nn.Module) -> tuple[Judged, Seen]:
        """Both models on the metric, and how their outputs agree. Raises UserError for figures that are not finite."""
        after = self.metric.measure(model)
        seen = after.seen or self.probe.seen(model)
        return judge(self.metric, self.before, after, self.max_drop), seen

    def meets(self, model: nn.Module) -> bool:
        """Whether the budget is met."""
        return judge(self.metric, self.before, self.metric.measure(model), self.max_drop).within


@dataclass(frozen=True)
class Suffering:
    """Parts of a model in their order, and how far the output moves when one alone is compressed."""

    parts: tuple[Exchange, ...]
    harm: tuple[float, ...]


def suffering(
    own: nn.Module, compressed: nn.Module, parts: Sequence[Exchange], probe: Probe, progress: Progress | None = None
) -> Suffering:
    """Look at every part by itself, on a probe that may be smaller than the judge's and says what `own` says."""
    return Suffering(tuple(parts), tuple(alone(own, compressed, parts, probe, progress)))


def keep_fewest(
    judge_: Judge, own: nn.Module, compressed: nn.Module, found: Suffering, progress: Progress | None = None
) -> tuple[nn.Module, list[Exchange]] | None:
    """The model with the fewest parts kept as `own` has them that meets the budget, and these parts; None where none does."""
    count = [0]

    def meets(kept: Sequence[Exchange]) -> bool:
        count[0] += 1
        if progress:
            progress(count[0], len(found.parts))
        return judge_.meets(mixed(compressed, own, kept))

    kept = fewest(found.parts, found.harm, meets)
    return None if kept is None else (mixed(compressed, own, kept), kept)


def kept_matrices(
    baseline: nn.Module, kept: Sequence[Exchange], kinds: type[Any] | tuple[type[Any], ...]
) -> frozenset[str]:
    """Names of the linear layers in parts that are kept."""
    return frozenset(
        f"{name}.{inner}" if inner else name
        for part in kept
        for name in part.modules
        for inner, module in baseline.get_submodule(name).named_modules()
        if isinstance(module, kinds)
    )


def over_budget(judged: Judged, parts: tuple[Part, ...], fallback: str) -> str:
    """One line on a budget that was not met, and what would help."""
    unit = "%" if judged.unit == PERCENT else "points"
    moved = f"{abs(judged.drop):.2f} {unit} {'worse' if judged.drop >= 0 else 'better'}"
    said = f"{judged.name} {judged.baseline:.4g} became {judged.compressed:.4g}, {moved}; at most {judged.max_drop:g} {unit} may go"
    if not parts:
        return said
    worst = max(parts, key=lambda part: part.divergence)
    if fallback == "mixed":
        return f"{said}, whatever parts are kept as they were; allow more, or use other settings"
    return f"{said}; {worst.name} suffers most, and --fallback mixed keeps the fewest parts as they were"
