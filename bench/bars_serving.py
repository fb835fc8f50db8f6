"""Bars of planned serving: how far predictions are from published static batches, attention kernels and gains of drafting."""

from __future__ import annotations

from bar import rows

SERVING = rows(
    "serving plan",
    "score_serving",
    "bench/score_serving.py",
    ("published prefill rows, mean error", "table.prefill_percent", None, 15, "%"),
    ("published decode rows, mean error", "table.decode_percent", None, 15, "%"),
    ("published whole batches, mean error", "table.total_percent", None, 15, "%"),
    ("the same, constants fitted without the row's model: prefill", "held_out.prefill_percent", None, 15, "%"),
    ("fitted without the row's model: decode", "held_out.decode_percent", None, 15, "%"),
    ("fitted without the row's model: whole batches", "held_out.total_percent", None, 15, "%"),
)
ATTENTION = rows(
    "attention rows",
    "score_attention",
    "bench/score_attention.py",
    ("published attention kernels, mean error", "table_percent", None, 15, "%"),
    ("fitted without the row's mask and dropout", "held_out_percent", None, 15, "%"),
)
DRAFTING = rows(
    "drafting rows",
    "score_specdec",
    "bench/score_specdec.py",
    ("the formula of drafting: from what its paper printed, largest difference", "from_published", None, 0.1, "x"),
    ("published gains of drafting, verified for free: mean error", "table_percent", None, None, "%"),
    ("the same, two constants fitted on the other task", "held_out_percent", None, None, "%"),
    ("published rounds: plain steps that one took, median", "round_cost.median", None, None, ""),
)
