"""Bars of weights of 4 bits, alone and beside a peer."""

from __future__ import annotations

from bar import Bar, rows

AWQ: tuple[Bar, ...] = (
    *rows(
        "awq",
        "awq",
        "bench/awq.py",
        ("loud channels, g64: divergence against rounding", "loud.ratio", None, 0.25, "x"),
        ("trained model, g32: divergence against rounding", "trained.ratio", None, 0.9, "x"),
        ("trained model: gain of 8 rows against that of 128", "trained.gain_of_few", 0.9, None, "x"),
        ("largest error of a fold against rounding", "trained.worst_fold", None, 1, "x"),
        ("... of SmolLM2", "smollm2.worst_fold", None, 1, "x"),
        ("SmolLM2 (from 4-bit blocks), g64: rise of perplexity against rounding", "smollm2.rise_ratio", None, 0.5, "x"),
        ("bytes of its folder off the predicted ones", "smollm2.file_bytes_off", 0, 0, "B"),
        ("its search, memory above the loaded model", "smollm2.above_bytes", None, None, "B"),
        ("its search, processor time", "smollm2.cpu_seconds", None, None, "s"),
    ),
    *rows(
        "awq",
        "awq_vs_llmcompressor",
        "bench/awq_vs_llmcompressor.py",
        ("SmolLM2: perplexity against llm-compressor", "smollm2.ratio.perplexity", None, 1, "x"),
        ("... wall time", "smollm2.ratio.seconds", None, 0.5, "x"),
        ("... memory above the loaded model", "smollm2.ratio.above_bytes", None, 0.5, "x"),
        ("20M parameters: perplexity against llm-compressor", "young.ratio.perplexity", None, 1, "x"),
        ("... wall time", "young.ratio.seconds", None, 0.5, "x"),
        ("... memory above the loaded model", "young.ratio.above_bytes", None, 0.5, "x"),
        ("trained model: perplexity against llm-compressor", "trained.ratio.perplexity", None, 1, "x"),
        ("... wall time", "trained.ratio.seconds", None, 0.5, "x"),
        ("... memory above the loaded model", "trained.ratio.above_bytes", None, 0.5, "x"),
    ),
)
