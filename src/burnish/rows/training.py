"""Rows: published training runs as settings that can be priced, with what they measured and what had to be assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping as Record
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from burnish.cluster import Cluster
from burnish.errors import UserError
from burnish.job import Job
from burnish.mapping import RECOMPUTE, Mapping
from burnish.memory import peaks
from burnish.rows.cells import Cells, NotExpressed, read_table
from burnish.rows.cluster import cluster_of
from burnish.rows.mapping import degrees, mapping_of
from burnish.rows.measured import Measured, measured_of, outcome_of
from burnish.rows.model import NOTHING_BUT_LAYERS, model_of, parameters_of
from burnish.rows.rules import Facts, default, rule, stack_of, table, worded
from burnish.rows.trust import reason
from burnish.stack import Stack

NEEDED = ("model", "gpu", "n_gpus")


@dataclass(frozen=True)
class Setting:
    """One run to price: the job, its layout, the machine, and whose software ran (its name, and the profile used)."""

    job: Job
    mapping: Mapping
    cluster: Cluster
    stack_name: str
    stack: Stack


@dataclass(frozen=True)
class Row:
    """One line of a table. `setting` is None where it cannot be expressed, and then `why_not` says why.

    `fullest` is the setting whose memory was measured where that is another than the one timed. `second_hand` and
    `distrusted` say why its figures are kept apart; one that is not `complete` leaves out what decides its memory.
    `repeats` is the id it shares with an earlier row.
    """

    id: str
    source: str
    setting: Setting | None
    why_not: str = ""
    measured: Measured = field(default_factory=Measured)
    distrusted: str = ""
    second_hand: str = ""
    assumed: tuple[str, ...] = ()
    fullest: Setting | None = None
    complete: bool = True
    repeats: str = ""
    cells: Cells = field(default_factory=lambda: Cells({}))


def read_rows(path: Path | str) -> list[Row]:
    """The lines of a CSV file of training rows. Raises UserError where the file is none."""
    columns, lines = read_table(path)
    if missing := [name for name in NEEDED if name not in columns]:
        raise UserError(f"{path}: no column {', '.join(missing)}; training rows name at least {', '.join(NEEDED)}")
    return told_apart([row_of(line, number) for number, line in enumerate(lines, 2)])


def told_apart(rows: Sequence[Row]) -> list[Row]:
    """Rows whose ids differ: one that an earlier row has already gets the number of its line behind it."""
    seen: set[str] = set()
    made = []
    for number, row in enumerate(rows, 2):
        again = row.id in seen
        made.append(replace(row, id=f"{row.id} (line {number})", repeats=row.id) if again else row)
        seen |= {row.id, made[-1].id}
    return made


def row_of(line: Record[str, str], number: int = 0) -> Row:
    """One line as a row; what stops it from being expressed becomes its reason."""
    cells = Cells(line)
    row = Row(
        id=cells.text("id") or f"line {number}",
        source=cells.text("source") or "unnamed",
        setting=None,
        distrusted=reason("distrusted", cells),
        second_hand=reason("second_hand", cells),
        cells=cells,
    )
    try:
        if outcome_of(cells) == "error":
            raise NotExpressed(f"the run ended in an error that is not about memory: {_ending(cells)}")
        setting = setting_of(cells)
        measured = measured_of(cells, setting.job, setting.cluster, int(setting.mapping.gpus))
    except NotExpressed as stop:
        return replace(row, why_not=str(stop), assumed=tuple(cells.assumed))
    timed = _timed(cells, setting)
    return replace(
        row, setting=timed or setting, fullest=timed and setting, measured=measured, assumed=tuple(cells.assumed)
    )


def setting_of(cells: Cells) -> Setting:
    """What a line says was run. Raises NotExpressed with the reason where that is not enough."""
    gpus = cells.whole("n_gpus")
    if gpus is None:
        raise NotExpressed("n_gpus: blank")
    cluster = cluster_of(cells, gpus)
    stack_name, stack = stack_of(cells, cells.text("stack"))
    made = degrees(cells, gpus, stack.kind)
    workload = cells.text("workload").lower() or "pretrain"
    size = parameters_of(cells) or math.inf
    facts = Facts(stack, workload, cells.text("notes"), made["pp"], gpus, size)
    model = model_of(cells, facts, made["tp"])
    seq = cells.whole("seq_len")
    if seq is None:
        raise NotExpressed("seq_len: blank")
    mapping = mapping_of(cells, made, facts, cluster.per_node)
    trained = _trained(cells, workload)
    job = Job(
        model=model,
        seq=seq,
        global_batch=cells.whole("global_batch") or _global_batch(cells, facts, mapping, seq),
        precision=worded(cells, "precision", facts),
        attention=worded(cells, "attention", facts),
        trained=trained,
        lora_rank=_rank(cells, facts) if trained != "all" else 0,
        optimizer="none" if workload == NOTHING_BUT_LAYERS else cells.text("optimizer") or "adamw",
        filled=float(rule("filled", facts)["value"]),
    )
    return _spared(cells, facts, Setting(job, mapping, cluster, stack_name, stack))


def _spared(cells: Cells, facts: Facts, setting: Setting) -> Setting:
    """The setting without recompute where a line states none, its tool advises it only where memory is short, and it
    is not."""
    row = rule("recompute", facts)
    if not cells.blank("recompute") or cells.text("recompute").lower() == "none" or not row.get("unless_fits"):
        return setting
    without = replace(setting, mapping=replace(setting.mapping, recompute=RECOMPUTE.index("none")))
    made = peaks([without])
    if made.peak[0] > made.capacity[0]:
        return setting
    cells.assume(f"recompute none: it fits without; else {row['value']}: {row['why']}")
    return without


def _ending(cells: Cells) -> str:
    found = cells.found("notes", r"run ended: ([^;]*)")
    return found[1] if found else cells.text("outcome")[:40]


def _trained(cells: Cells, workload: str) -> str:
    """Which parameters a workload trains."""
    if not any(word in workload for word in ("lora", "adapter")):
        return "all"
    return "qlora" if "qlora" in workload or cells.found("precision", "nf4|4-bit|int4") else "lora"


def _rank(cells: Cells, facts: Facts) -> int:
    found = cells.found("notes", r"\br(?:ank)?\s?=\s?(\d+)")
    return int(found[1]) if found else int(default(cells, "lora_rank", facts))


def _global_batch(cells: Cells, facts: Facts, mapping: Mapping, seq: int) -> int:
    """Sequences of a step where a line gives none: one micro-batch a rank, or a step of the usual number of tokens."""
    one = int(mapping.dp * mapping.micro_batch)
    row = rule("global_batch", facts)
    if facts.workload == NOTHING_BUT_LAYERS or row["value"] == "ranks":
        cells.assume(f"global_batch {one}: one micro-batch a rank")
        return one
    made = max(1, int(row["tokens"]) // seq // one) * one
    cells.assume(f"global_batch {made}: {row['why']}")
    return made


def _timed(cells: Cells, setting: Setting) -> Setting | None:
    """The setting whose time was measured where a data set's longest sample is stated but most are shorter.

    A micro-batch is padded to its longest sample: of n exponential lengths that is the mean times 1 + 1/2 + ... + 1/n.
    """
    rules = table()["timed"]
    if not cells.found("notes", rules["longest"]):
        return None
    tokens = round(rules["tokens"] * sum(1 / k for k in range(1, int(setting.mapping.micro_batch) + 1)))
    if int(setting.job.seq) <= tokens:
        return None
    cells.assume(f"time of samples of {tokens} tokens: {rules['why']}")
    return replace(setting, job=replace(setting.job, seq=tokens))
