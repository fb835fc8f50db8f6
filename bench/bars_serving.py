"""Bars of planned serving: how far predictions are from published static batches and attention kernels."""

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
