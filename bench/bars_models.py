"""Bars of models: read, written, and judged beside others."""

from __future__ import annotations

from bar import rows

MODELS = (
    *rows(
        "models",
        "models",
        "bench/models.py",
        ("every family against transformers: largest difference of scores", "max_difference", None, 1e-4, ""),
        ("... families whose 64 greedy tokens differ", "greedy_different", 0, 0, ""),
        ("folders to transformers and back: families changed", "folders_different", 0, 0, ""),
        ("GGUF in floats: tensors not bit for bit", "gguf_floats_different", 0, 0, ""),
        ("GGUF against gguf, transformers, llama.cpp: tests failed or skipped", "gguf_failed", 0, 0, ""),
        ("the law for every family and for encoders: tests failed", "law_different", 0, 0, ""),
        ("damaged and hostile files: tests failed", "hostile_missed", 0, 0, ""),
    ),
    *rows(
        "models",
        "real_models",
        "bench/real_models.py",
        ("SmolLM2: perplexity against transformers'", "off_percent", None, 0.1, "%"),
    ),
    *rows(
        "models",
        "encoders",
        "bench/encoders.py",
        ("MiniLM: least cosine with transformers' vectors", "least_cosine", 0.99999, None, ""),
        ("MiniLM: sentences a second against padded batches", "times_transformers", None, None, "x"),
    ),
)
