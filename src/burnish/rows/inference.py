"""Inference rows: published times of static batches, read as a decoder that is served, with a reason where a line cannot be.

A line has full fields where it says the decoder's sizes (or names a preset), chip, degrees, both lengths and the batch, and one
static batch was timed. Rates over queued or arriving requests depend on a scheduler's order, which no line states.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from burnish.architecture import Architecture
from burnish.cluster import Cluster, cluster
from burnish.errors import UserError
from burnish.hardware import Chip, chip_for
from burnish.presets import lookup, preset
from burnish.rows.cells import Cells, NotExpressed, read_table
from burnish.rows.model import family
from burnish.serve_plan.passes import Serving
from burnish.serve_plan.sizes import tables

NEEDED = ("engine", "weight_precision", "input_len", "output_len", "batch_or_concurrency")
STATIC = re.compile(r"^(static|prefill latency)", re.IGNORECASE)
SIZES = ("layers", "hidden", "heads")
FORMATS = (
    (r"int4|awq|nf4", "int4"),
    (r"int8", "int8"),
    (r"fp8", "fp8"),
    (r"fp4", "fp4"),
    (r"fp16|bf16", "bf16"),
)
GATED = 8 / 3  # width of a gated feed-forward part, in widths of the model, where none is stated


@dataclass(frozen=True)
class Timed:
    """A line; `seconds` by what was timed: prefill, decode (one token of all sequences), total. `why_not` where it is not read."""

    id: str
    source: str
    why_not: str = ""
    serving: Serving | None = None
    batch: int = 0
    prompt: int = 0
    new: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


def read_inference(path: Path | str) -> list[Timed]:
    """Every line of a table of inference rows. Raises UserError where it is none."""
    columns, lines = read_table(path)
    if missing := [name for name in NEEDED if name not in columns]:
        raise UserError(f"{path}: no table of inference rows; it lacks the columns {', '.join(missing)}")
    return [_timed(Cells(line)) for line in lines]


def _timed(cells: Cells) -> Timed:
    name, source = cells.text("id"), cells.text("source")
    try:
        return _expressed(cells, name, source)
    except (NotExpressed, UserError) as error:
        return Timed(name, source, str(error))


def _expressed(cells: Cells, name: str, source: str) -> Timed:
    if not STATIC.match(cells.text("mode")):
        raise NotExpressed("mode: not one static batch")
    if cells.text("outcome").lower() not in ("", "ok"):
        raise NotExpressed(f"outcome: {cells.text('outcome')[:20]}")
    sizes = [cells.whole(column) for column in ("batch_or_concurrency", "input_len", "output_len", "n_gpus")]
    if None in sizes:
        raise NotExpressed("batch, lengths or number of chips: blank")
    batch, prompt, new, gpus = (value or 0 for value in sizes)
    tp, pp = (cells.whole(column) or 1 for column in ("tp", "pp"))
    if tp * pp != gpus:
        raise NotExpressed(f"{gpus} chips, but degrees of {tp} and {pp}")
    model = _model(cells)
    serving = Serving(model, _cluster(cells, gpus), _format(cells), 2, tp, pp, _engine(cells.text("engine")))
    if cells.found("kv_precision", "fp8|int8"):
        serving = Serving(model, serving.cluster, serving.weights, 1, tp, pp, serving.engine)
    return Timed(name, source, "", serving, batch, prompt, new, _seconds(cells, batch, prompt, new, gpus))


def _seconds(cells: Cells, batch: int, prompt: int, new: int, gpus: int) -> dict[str, float]:
    """What a line timed, in seconds."""
    found: dict[str, float] = {}
    if (value := cells.number("prefill_tok_s")) is not None:
        found["prefill"] = batch * prompt / value
    if (value := cells.number("decode_tok_s")) is not None:
        found["decode"] = batch / value
    if (value := cells.number("ttft_ms")) is not None:
        found["prefill"] = value / 1e3
    if (value := cells.number("total_latency_ms")) is not None:
        found["total"] = value / 1e3
    if cells.text("metric") == "output throughput per GPU" and (value := cells.number("value")) is not None:
        found["total"] = batch * new / (value * gpus)
    if not found:
        raise NotExpressed("nothing timed")
    return found


def _model(cells: Cells) -> Architecture:
    name = cells.text("model")
    if lookup(name) is not None:
        return preset(name)
    stated = {column: cells.whole(column) for column in SIZES}
    if None in stated.values():
        raise NotExpressed(f"model: {name[:40]} is no preset and its sizes are not stated")
    layers, hidden, heads = (value or 0 for value in stated.values())
    kin = family(name)
    vocab = kin.pop("vocab", 0)
    ffn = math.ceil(hidden * GATED / 256) * 256 if kin.get("gated", 1) else 4 * hidden
    kv = cells.whole("kv_heads") or heads
    return Architecture(name, cells.whole("vocab") or vocab, hidden, layers, heads, kv, hidden // heads, ffn, **kin)


def _cluster(cells: Cells, gpus: int) -> Cluster:
    gpu = re.sub(r"^\d+x\s+|\(.*\)", "", cells.text("gpu")).strip()
    chip: Chip = chip_for(gpu, cells.number("gpu_mem_gb"))
    return cluster(f"{chip.key}:{math.ceil(gpus / chip.per_node)}x{min(gpus, chip.per_node)}")


def _format(cells: Cells) -> str:
    text = cells.text("weight_precision").lower()
    if found := next((name for pattern, name in FORMATS if re.search(pattern, text)), ""):
        return found
    raise NotExpressed(f"weight_precision: {text[:20] or 'blank'}")


def _engine(written: str) -> str:
    for name, row in tables()["engines"].items():
        if re.search(row["match"], written, re.IGNORECASE):
            return str(name)
    raise NotExpressed(f"engine: {written[:30]} is of no known generation")
