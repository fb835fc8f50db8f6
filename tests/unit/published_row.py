"""A published row for tests to change, and CSV files of such rows."""

from __future__ import annotations

import csv
from pathlib import Path

BASE = {
    "id": "row-1",
    "source": "a page",
    "gpu": "H100 SXM",
    "gpu_mem_gb": "80",
    "n_gpus": "16",
    "gpus_per_node": "8",
    "interconnect": "",
    "model": "Some-7B",
    "n_params": "",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn_hidden": "11008",
    "vocab": "32000",
    "seq_len": "4096",
    "global_batch": "64",
    "micro_batch": "2",
    "tp": "2",
    "pp": "2",
    "vpp": "",
    "cp": "1",
    "ep": "",
    "dp": "4",
    "sharding": "",
    "sequence_parallel": "",
    "recompute": "",
    "precision": "",
    "attention": "",
    "iter_time_s": "2.5",
    "tflops_per_gpu": "",
    "mfu": "",
    "tokens_per_s_per_gpu": "",
    "peak_mem_gb": "",
    "notes": "",
    "outcome": "ok",
    "workload": "pretrain",
    "stack": "nemo-25.02",
}


def published(**changes: object) -> dict[str, str]:
    """The base row with other cells."""
    return {**BASE, **{name: str(value) for name, value in changes.items()}}


def write(path: Path, *rows: dict[str, str]) -> Path:
    """A CSV file of rows."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
