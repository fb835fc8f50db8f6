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
    *rows(
        "compress",
        "onnx_files",
        "bench/onnx_files.py",
        ("ONNX in float32 beside torch: scores, largest difference", "difference.floats", None, 1e-4, ""),
        ("... in 4 bits", "difference.4 bits", None, 1e-3, ""),
        ("... of an 8-bit product, static", "product_difference.static", None, 1e-3, ""),
        ("... of an 8-bit product, by token", "product_difference.token", None, 1e-3, ""),
        ("... MiniLM in 8 bits: of what its last digits change", "times_last_digits.static", None, 3, "x"),
        ("64 greedy tokens with the cache: rows that differ", "greedy_different", 0, 0, ""),
        ("MiniLM in static 8 bits in onnxruntime: mean cosine", "cosine.static", 0.985, None, ""),
        ("... faster than float32 there", "times_float.static", 1.25, None, "x"),
        ("... inputs by token: mean cosine", "cosine.token", None, None, ""),
        ("... faster than float32 there", "times_float.token", None, None, "x"),
        ("... inputs of both signs, as TensorRT has them", "times_float.static signed", None, None, "x"),
        (
            "SmolLM2 in 4 bits, written a second: onnxruntime's operators",
            "tokens_per_second.4 bits fused, 8-bit inputs",
            None,
            None,
            "",
        ),
        ("... in float32", "tokens_per_second.float fused", None, None, ""),
        ("... in float32, standard operators", "tokens_per_second.float portable", None, None, ""),
    ),
)
