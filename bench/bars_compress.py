"""Bars of compression: what a smaller model may lose, and what it must gain."""

from __future__ import annotations

from bar import Bar, rows

COMPRESSION: tuple[Bar, ...] = (
    *rows(
        "compress",
        "compress",
        "bench/compress.py",
        ("budget too tight: exit code", "exit_code", 3, 3, ""),
        ("... parts told of ten", "parts_told", 10, 10, ""),
        ("... files left", "files_left", 0, 0, ""),
        ("mixed model: its loss beside a budget of half of what rounding loses", "mixed_over_budget", None, 1, "x"),
        ("... parts kept as they were", "kept_share", None, 0.5, "x"),
        ("... bytes of the file off the prediction", "file_bytes_off", 0, 0, ""),
    ),
    *rows(
        "compress",
        "prune",
        "bench/prune.py",
        ("pruned 30 % and trained on: loss above the equal-budget control's", "above_control_percent", None, 3, "%"),
        ("... parameters beside the whole model's", "parameters_share", None, 0.85, "x"),
        ("... forward faster", "forward_speedup", 1.05, None, "x"),
        ("... bytes of the file off the prediction", "file_bytes_off", 0, 0, ""),
        ("... transformers' logits: largest difference", "transformers_difference", None, 1e-4, ""),
    ),
)
