"""Row measured: what a published row says happened, as seconds a step and bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from burnish.cluster import Cluster
from burnish.hardware import GIB
from burnish.job import Job
from burnish.rows.cells import Cells
from burnish.rows.flops import flops_per_token
from burnish.rows.rules import table

GB = 1e9
ENDINGS = (("oom|out.of.memory", "oom"), ("^(ok|fits?|success|completed|)$", "ok"))
LARGEST_FRACTION = 1.5  # utilisation above it is in percent


@dataclass(frozen=True)
class Measured:
    """`seconds` a step, `memory` bytes at the peak, `outcome` "ok", "oom" or "error"; `quantity` the column used.

    `meter` says what `memory` counts: "allocated" tensors, what an allocator has "reserved", or all of the "process".
    """

    seconds: float | None = None
    memory: float | None = None
    outcome: str = "ok"
    quantity: str = ""
    value: float | None = None
    meter: str = "process"


def outcome_of(cells: Cells) -> str:
    """What became of a run: "ok", "oom", or "error" for any other ending."""
    return next((name for match, name in ENDINGS if cells.found("outcome", match)), "error")


def measured_of(cells: Cells, job: Job, cluster: Cluster, gpus: int) -> Measured:
    """What a line reports of a job on so many chips.

    Seconds a step are taken from the time, else from the tokens a second, else from TFLOPS by the formula of its
    source, else from the utilisation of the chip's peak.
    """
    outcome = outcome_of(cells)
    memory = _memory(cells)
    meter = next((row["value"] for row in table()["meter"] if cells.found(row["column"], row["match"])), "process")
    made = _timed(cells, job, cluster, gpus) if outcome == "ok" else Measured()
    return replace(made, memory=memory, outcome=outcome, meter=str(meter))


def _timed(cells: Cells, job: Job, cluster: Cluster, gpus: int) -> Measured:
    """The seconds of a run that ended well."""
    tokens = int(job.seq) * int(job.global_batch) / gpus
    if (seconds := cells.number("iter_time_s")) is not None:
        return Measured(seconds, quantity="iter_time_s", value=seconds)
    if (rate := cells.number("tokens_per_s_per_gpu")) is not None:
        return Measured(tokens / rate, quantity="tokens_per_s_per_gpu", value=rate)
    if (rate := cells.number("tflops_per_gpu")) is not None:
        flops = flops_per_token(job.model, int(job.seq), formula_of(cells))
        return Measured(tokens * flops / (rate * 1e12), quantity="tflops_per_gpu", value=rate)
    peak = cluster.chip.flops.get(job.precision) or cluster.chip.flops.get("bf16", 0.0)
    if (share := utilisation(cells)) is not None and peak:
        flops = flops_per_token(job.model, int(job.seq), formula_of(cells))
        cells.assume(f"seconds from the utilisation of {peak / 1e12:.0f} TFLOPS")
        return Measured(tokens * flops / (share * peak), quantity="mfu", value=share)
    return Measured()


def formula_of(cells: Cells) -> str:
    """The formula by which a line's TFLOPS were counted."""
    text = f"{cells.text('source')} {cells.text('notes')}"
    rules = table()["flops"]
    return next((name for match, name in rules["formulas"] if re.search(match, text, re.IGNORECASE)), rules["default"])


def utilisation(cells: Cells) -> float | None:
    """Model FLOPs utilisation as a fraction."""
    value = cells.number("mfu")
    return value / 100 if value is not None and value > LARGEST_FRACTION else value


def flops_implied(cells: Cells) -> float | None:
    """FLOPs a token that a line's own TFLOPS and tokens a second imply."""
    flops, rate = cells.number("tflops_per_gpu"), cells.number("tokens_per_s_per_gpu")
    return flops * 1e12 / rate if flops and rate else None


def _memory(cells: Cells) -> float | None:
    value = cells.number("peak_mem_gb")
    if value is None:
        return None
    # "GiB except the 405B row" is a note on each line of a table.
    other = cells.found("notes", r"GiB except the (\S+) row")
    binary = cells.found("notes", r"\bGiB\b") and not (other and other[1].lower() in cells.text("model").lower())
    return value * (GIB if binary else GB)
