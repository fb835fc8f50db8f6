"""Bars of the inference engine."""

from __future__ import annotations

from bar import rows

ENGINE = rows(
    "engine",
    "decode_vs_llamacpp",
    "bench/decode_vs_llamacpp.py",
    ("SmolLM2 in 4-bit blocks, decode: times llama.cpp's fastest format", "decode.ratio", 1.3, None, "x"),
    ("SmolLM2 in 4-bit blocks, prefill: times llama.cpp's fastest format", "prefill.ratio", 1.5, None, "x"),
    ("SmolLM2 in 4-bit blocks, decode: times transformers in float32", "decode.transformers", 6, None, "x"),
    ("perplexity above that of llama.cpp's fastest format", "perplexity.above", None, 0, ""),
)
