"""Score lines: predictions of rows beside what was measured, one line a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from burnish.mapping import RECOMPUTE
from burnish.rows.training import Row, Setting
from burnish.score.prices import Prices

FIRST_HAND, SECOND_HAND, DISTRUSTED, INCOMPLETE = "overall", "second_hand", "distrusted", "incomplete"


@dataclass(frozen=True)
class Line:
    """One row: which block it belongs to, and each measured quantity beside its prediction (None = not there).

    Times are in seconds, memory in bytes; `allocated` is memory at the end of a step.
    """

    id: str
    source: str
    part: str = FIRST_HAND
    apart: str = ""  # why it is not in the score proper
    why_not: str = ""  # why it cannot be expressed
    job: tuple[Any, ...] = ()  # rows that compete: one job, other mappings
    labels: tuple[tuple[str, str], ...] = ()
    experts: bool = False
    seconds: tuple[float, float] | None = None  # predicted, measured
    peak: tuple[float, float] | None = None
    allocated: tuple[float, float] | None = None
    fits: tuple[bool, bool] | None = None
    assumed: tuple[str, ...] = ()
    stack: str = ""

    @property
    def expressed(self) -> bool:
        """Whether there is a prediction."""
        return not self.why_not


def lines_of(
    rows: Sequence[Row], price: Callable[[Sequence[Setting]], Prices], refuted: Mapping[str, str]
) -> list[Line]:
    """A line for each row; `price` gives `Prices` of a list of settings, `refuted` why rows cannot be, by id."""
    lines = [_bare(row, refuted.get(row.id, "")) for row in rows]
    told = [(k, row.setting) for k, row in enumerate(rows) if row.setting is not None]
    fuller = [(k, row.fullest) for k, row in enumerate(rows) if row.fullest is not None]
    if not told:
        return lines
    largest = dict((*told, *fuller))
    open_rows = [k for k in largest if _unstated(rows[k])]
    either = [_recomputing(largest[k], kept) for k in open_rows for kept in ("none", "full")]
    made = price([*(setting for _, setting in (*told, *fuller)), *either])
    memory = {k: n for n, (k, _) in enumerate((*told, *fuller))}
    fits = made.peak <= made.capacity
    pairs = fits[len(told) + len(fuller) :].reshape(-1, 2)
    undecided = {k for k, (none, full) in zip(open_rows, pairs, strict=True) if none != full}
    for n, (k, setting) in enumerate(told):
        at = memory[k]
        verdict = None if k in undecided else bool(fits[at])
        lines[k] = _filled(
            lines[k], rows[k], setting, (float(made.seconds[n]), made.metered(rows[k].measured.meter, at)), verdict
        )
    return lines


def _unstated(row: Row) -> bool:
    """Whether a row leaves open what it recomputes."""
    return any(assumption.startswith("recompute ") for assumption in row.assumed)


def _recomputing(setting: Setting, what: str) -> Setting:
    return replace(setting, mapping=replace(setting.mapping, recompute=RECOMPUTE.index(what)))


def _bare(row: Row, refuted: str) -> Line:
    """What a line says before anything is predicted."""
    text = row.cells.text
    part, apart = FIRST_HAND, ""
    if row.second_hand:
        part, apart = SECOND_HAND, row.second_hand
    elif row.distrusted or refuted:
        part, apart = DISTRUSTED, row.distrusted or refuted
    elif not row.complete:
        part, apart = INCOMPLETE, "what decides its memory is not all stated"
    columns = ("model", "seq_len", "global_batch", "n_gpus", "source")
    return Line(
        id=row.id,
        source=row.source,
        part=part,
        apart=apart,
        why_not=row.why_not,
        job=tuple(text(column) for column in columns),
        labels=tuple((column, text(column)) for column in ("source", "workload", "model", "stack")),
        assumed=row.assumed,
    )


def _filled(line: Line, row: Row, setting: Setting, made: tuple[float, float], fits: bool | None) -> Line:
    """A line with its predictions; a prediction that is no number counts as not expressed.

    `fits` is None where the answer hangs on a recompute that the row does not state.
    """
    seconds, peak = made
    if not (np.isfinite(seconds) and np.isfinite(peak)):
        return replace(line, why_not="the model gives no finite time or memory for it")
    measured = row.measured
    return replace(
        line,
        experts=bool(setting.job.model.experts),
        seconds=(seconds, measured.seconds) if measured.seconds else None,
        peak=(peak, measured.memory) if measured.memory and measured.outcome == "ok" else None,
        fits=None if fits is None else (fits, measured.outcome == "ok"),
        stack=setting.stack.name,
    )
