"""Reports: what users wrote of runs that fitted or ran out of memory, as lines of training rows."""

from __future__ import annotations

import re
from collections.abc import Mapping as Record
from dataclasses import replace
from pathlib import Path

from burnish.errors import UserError
from burnish.rows.cells import Cells, read_table
from burnish.rows.rules import table
from burnish.rows.training import Row, row_of, told_apart

OUTCOME = "outcome(oom|fits)"
LORA = "lora(yes/no)"
COMPLETE = "[complete]"


def read_reports(path: Path | str) -> list[Row]:
    """The lines of a CSV file of reports. Raises UserError where the file is none."""
    columns, lines = read_table(path)
    if OUTCOME not in columns:
        raise UserError(f"{path}: no column {OUTCOME}; reports have one")
    return told_apart([report_of(line, number) for number, line in enumerate(lines, 2)])


def report_of(line: Record[str, str], number: int = 0) -> Row:
    """One report as a row; what is not training of a language model has its reason."""
    cells = Cells(line)
    made = translated(cells)
    row = row_of(made, number)
    shaped = re.fullmatch(r"\d+x\d+(x\d+)?", cells.text("seq_len"))
    words = f"{cells.text('tool')} {cells.text('model')}"
    why = _first("others", words) or ("a network for images, not a language model" if shaped else "")
    if why:
        row = replace(row, setting=None, why_not=why)
    return replace(row, assumed=(*cells.assumed, *row.assumed), complete=COMPLETE in cells.text("notes"))


def translated(cells: Cells) -> dict[str, str]:
    """A report's cells under the columns of training rows."""
    found = re.match(r"\d+", cells.text("n_gpus"))
    gpus = int(found[0]) if found else 0
    notes, sharding = cells.text("notes"), cells.text("sharding")
    cp = re.search(r"\bCP (\d+)", notes)
    ep = re.search(r"\bEP\s?(\d+)", sharding)
    tp, pp = (_degree(cells, name) for name in ("tp", "pp"))
    dp = gpus // (tp * pp * (int(cp[1]) if cp else 1))
    micro, accumulated = _degree(cells, "micro_batch"), _degree(cells, "grad_accum")
    if pp > 1 and "split in micro batches" in notes:
        micro, accumulated = 1, micro * accumulated
    if "row-batch" in notes:  # its length is that of all rows of a micro batch together
        micro = 1
    lora = cells.text(LORA).lower()
    trained = "pretrain" if not lora.startswith("yes") else "finetune-qlora" if _quantized(cells) else "finetune-lora"
    made = {
        "id": cells.text("id"),
        "source": cells.text("repo"),
        "stack": _first("stacks", f"{cells.text('tool')} {sharding}"),
        "model": cells.text("model"),
        "params_b": cells.text("params_b"),
        "gpu": cells.text("gpu"),
        "stand_in": table("reports")["stand_in"],
        "gpu_mem_gb": cells.text("gpu_mem_gb"),
        "n_gpus": str(gpus or ""),
        "tp": str(tp),
        "pp": str(pp),
        "cp": cp[1] if cp else "1",
        "dp": str(max(dp, 1)),
        "ep": ep[1] if ep else "",
        "micro_batch": str(micro),
        "global_batch": str(max(dp, 1) * micro * accumulated),
        "precision": cells.text("precision"),
        "optimizer": _first("optimizers", cells.text("optimizer")),
        "attention": {"yes": "flash", "no": "unfused"}.get(cells.text("flash").split(" ")[0], cells.text("flash")),
        "workload": trained,
        "outcome": cells.text(OUTCOME),
        "peak_mem_gb": cells.text("observed_mem_gb") if cells.text(OUTCOME) == "fits" else "",
        "notes": f"{notes} {lora} {cells.text('thread number or url')}",
        "offload": cells.text("offload"),
        "sequence_parallel": "no" if "no sequence parallel" in notes else "",
    }
    return made | {name: cells.text(name) for name in ("seq_len", "sharding", "recompute")}


def _first(kind: str, text: str) -> str:
    """The value of the first pattern of a list that a text holds; empty where none is found."""
    return next((value for match, value in table("reports")[kind] if re.search(match, text, re.IGNORECASE)), "")


def _degree(cells: Cells, column: str) -> int:
    """A count that is one where a report leaves it out."""
    text = cells.text(column)
    if not text.isdigit() or int(text) < 1:
        cells.assume(f"{column} 1")
        return 1
    return int(text)


def _quantized(cells: Cells) -> bool:
    return bool(cells.found(LORA, "qlora") or cells.found("precision", "4-bit|nf4"))
