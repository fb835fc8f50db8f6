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
    ("... perplexity above that format's", "decode.perplexity.above", None, 0, ""),
    (
        "... times every format that predicts no better than what is compared: the least",
        "decode.least",
        None,
        None,
        "x",
    ),
)
ENGINE += rows(
    "engine",
    "serve_hard",
    "bench/serve_hard.py",
    ("clients that leave in the middle of 200 streams: pages and requests held", "leave.held", 0, 0, ""),
    ("10,000 requests at once: answered", "crowd.answered", 10_000, None, ""),
    ("10,000 requests at once: failed otherwise than by 429", "crowd.failed", 0, 0, ""),
    ("10,000 requests at once: pages and requests held", "crowd.held", 0, 0, ""),
    ("prompts and answers longer than the context: not refused with 400", "long.otherwise", 0, 0, ""),
    ("bodies made from its own description: answered otherwise than described", "fuzz.wrong", 0, 0, ""),
    ("bodies made from its own description: pages and requests held", "fuzz.held", 0, 0, ""),
    ("SIGTERM under 64 streams: streams cut off", "end.cut", 0, 0, ""),
    ("SIGTERM under 64 streams: exit code", "end.code", 0, 0, ""),
)
ENGINE += rows(
    "engine",
    "serve_batch",
    "bench/serve_batch.py",
    (
        "32 requests of mixed lengths, new tokens a second: times transformers' padded batch",
        "transformers.ratio",
        3,
        None,
        "x",
    ),
    ("the same: times llama.cpp's parallel decoding, its fastest format", "llamacpp.ratio", 1.5, None, "x"),
    ("the same with keys and values of 8 bits: times those of float32", "kv8.ratio", None, None, "x"),
    ("the same in exact mode: requests whose tokens are those they get alone", "exact.equal", 1, 1, ""),
)
ENGINE += rows(
    "engine",
    "serve_thousand",
    "bench/serve_thousand.py",
    ("1,000 requests of varying lengths: growth of pool and buffers", "pool.growth", 0, 0, "B"),
    ("growth of resident memory for what was planned", "resident.growth", None, 0.05, ""),
    ("memory of pool and steps for what was planned", "memory", 0.95, 1.05, ""),
    ("99th percentile of a step for the median", "step.p99", None, 1.5, "x"),
    ("a request that cannot fit is told what would", "refused", 1, 1, ""),
)
ENGINE += rows(
    "engine",
    "pool",
    "bench/pool.py",
    ("pool: allocations of keys and values a request", "pool.allocations", 0, 0, ""),
    ("pool: positions reserved for those used", "pool.reserved", None, 1.1, "x"),
    ("tensors that grow: allocations a request", "grown.allocations", None, None, ""),
    ("tensors of the longest length: positions reserved for those used", "padded.reserved", None, None, "x"),
)
