"""Attention rows: published times of attention kernels, with a reason where a line cannot be read or cannot be right.

A forward that takes more than two thirds of what forward and backward together took at the same setting is refused: backward has
at least twice its products.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from burnish.errors import UserError
from burnish.hardware import Chip, chip_for
from burnish.rows.cells import Cells, NotExpressed, read_table
from burnish.serve_plan.attention_time import Kernel, implementations

NEEDED = ("implementation", "seq_len_q", "head_dim", "pass", "time_ms")
MOST = 2 / 3  # of both passes that a forward can take
PASSES = {"fwd": False, "fwd+bwd": True}


@dataclass(frozen=True)
class Timed:
    """A line; `why_not` where it is not judged."""

    id: str
    source: str
    why_not: str = ""
    kernel: Kernel | None = None
    chip: Chip | None = None
    seconds: float = 0.0


def read_attention(path: Path | str) -> list[Timed]:
    """Every line of a table of attention rows. Raises UserError where it is none."""
    columns, lines = read_table(path)
    if missing := [name for name in NEEDED if name not in columns]:
        raise UserError(f"{path}: no table of attention rows; it lacks the columns {', '.join(missing)}")
    return refuted([_timed(Cells(line)) for line in lines])


def refuted(rows: Sequence[Timed]) -> list[Timed]:
    """The rows, with a reason on those that cannot be right."""
    both = {row.kernel: row.seconds for row in rows if row.kernel and row.kernel.both}

    def judged(row: Timed) -> Timed:
        if row.kernel is None or row.kernel.both:
            return row
        whole = both.get(replace(row.kernel, both=True))
        wrong = whole is not None and row.seconds > MOST * whole
        return replace(row, why_not="impossible: forward alone takes most of both passes") if wrong else row

    return [judged(row) for row in rows]


def _timed(cells: Cells) -> Timed:
    name, source = cells.text("id"), cells.text("source")
    try:
        kernel, chip, milliseconds = _expressed(cells)
    except (NotExpressed, UserError) as error:
        return Timed(name, source, str(error))
    return Timed(name, source, "", kernel, chip, milliseconds / 1e3)


def _expressed(cells: Cells) -> tuple[Kernel, Chip, float]:
    if (time := cells.number("time_ms")) is None:
        raise NotExpressed("time_ms: blank")
    known = implementations()
    written = cells.text("implementation")
    kind = next((key for key, row in known.items() if re.search(row["match"], written)), "")
    if not kind:
        raise NotExpressed(f"implementation: {written[:40]} is not dense or not known")
    if cells.text("pass") not in PASSES:
        raise NotExpressed(f"pass: {cells.text('pass')[:20]}")
    names = ("batch", "heads", "head_dim", "seq_len_q", "seq_len_kv")
    sizes = [cells.whole(column) for column in names]
    if None in sizes:
        raise NotExpressed("sizes: blank")
    batch, heads, width, queries, keys = (size or 0 for size in sizes)
    kernel = Kernel(
        kind,
        batch,
        heads,
        width,
        queries,
        keys,
        causal=cells.text("causal") == "yes",
        masked=cells.text("padding_mask") == "yes",
        dropout=cells.text("dropout") not in ("", "0"),
        both=PASSES[cells.text("pass")],
    )
    return kernel, chip_for(cells.text("gpu"), cells.number("gpu_mem_gb")), time
