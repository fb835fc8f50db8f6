"""Speculation rows: published gains of drafting, read as acceptance, length and costs, with a reason where a line cannot be.

A line can be predicted where it says how often a guess stands, how many are made a round, what one costs, and what came of it.
What a step costs that verifies is stated by none of the sources: it is taken for a plain step's. A gain above the tokens of a
round is refused: a round costs a step of the target at least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from burnish.errors import UserError
from burnish.rows.cells import Cells, NotExpressed, read_table
from burnish.speculation import speedup

NEEDED = ("alpha_acceptance", "cost_ratio_c", "gamma_or_K", "measured_speedup")
TOKENS = "mean_accepted_tokens_per_step"


@dataclass(frozen=True)
class Drafted:
    """A line; `why_not` where it is not judged. `round_cost`: plain steps that a round took, by its tokens and its gain."""

    id: str
    source: str
    why_not: str = ""
    method: str = ""
    group: str = ""  # task and temperature
    acceptance: float = 0.0
    length: int = 0
    draft: float = 0.0
    measured: float = 0.0
    published: float | None = None  # what the source itself predicted
    round_cost: float | None = None

    def predicted(self, dearer: float = 1.0, verify: float = 1.0) -> float:
        """Times as fast as without; `dearer`: a draft over what is stated, `verify`: plain steps that verifying takes."""
        return speedup(self.acceptance, self.length, dearer * self.draft, verify)


def read_speculation(path: Path | str) -> list[Drafted]:
    """Every line of a table of speculation rows. Raises UserError where it is none."""
    columns, lines = read_table(path)
    if missing := [name for name in NEEDED if name not in columns]:
        raise UserError(f"{path}: no table of speculation rows; it lacks the columns {', '.join(missing)}")
    return [_drafted(Cells(line)) for line in lines]


def _drafted(cells: Cells) -> Drafted:
    name, source, method = cells.text("id"), cells.text("source"), cells.text("method")
    cost = None
    try:
        cost = _round_cost(cells)
        return _expressed(cells, Drafted(name, source, "", method, _group(cells), round_cost=cost))
    except NotExpressed as error:
        return Drafted(name, source, str(error), method, round_cost=cost)


def _group(cells: Cells) -> str:
    return f"{cells.text('task')} at temperature {cells.text('temperature')}"


def _round_cost(cells: Cells) -> float | None:
    """None where tokens a round or gain are not stated, or are not of the same texts."""
    tokens, gain = cells.number(TOKENS), cells.number("measured_speedup")
    if tokens is None or gain is None or cells.found("notes", "over all tasks"):
        return None
    if gain > tokens:
        raise NotExpressed(f"impossible: {gain} times as fast with {tokens} tokens a round")
    return tokens / gain


def _expressed(cells: Cells, bare: Drafted) -> Drafted:
    measured, acceptance = cells.number("measured_speedup"), cells.number("alpha_acceptance")
    if measured is None:
        raise NotExpressed("gain: none was measured")
    if acceptance is None:
        raise NotExpressed("acceptance: not stated" + (", only tokens a round" if cells.number(TOKENS) else ""))
    if acceptance > 1:
        raise NotExpressed(f"acceptance: {acceptance} is more than all")
    length, draft = cells.whole("gamma_or_K"), cells.number("cost_ratio_c")
    if length is None or draft is None:
        raise NotExpressed("cost of a draft or number of drafted tokens: not stated")
    if measured > length + 1:
        raise NotExpressed(f"impossible: {measured} times as fast with {length} drafted tokens")
    return replace(
        bare,
        acceptance=acceptance,
        length=length,
        draft=draft,
        measured=measured,
        published=cells.number("predicted_speedup"),
    )
