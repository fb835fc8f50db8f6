"""Beside others: what was measured in one run with another tool, as rows of a table in the docs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Beside(NamedTuple):
    """A figure of ours in parts of a peer's: where it is recorded, and whether less is better."""

    what: str
    peer: str
    result: str
    key: str
    less: bool


MONAI = "MONAI 1.6.1, its tutorial loop"

ROWS = (
    Beside(
        "training 135 million parameters, peak memory",
        "transformers 5.24 Trainer",
        "train_vs_transformers",
        "memory_ratio",
        True,
    ),
    Beside("... tokens a second", "transformers 5.24 Trainer", "train_vs_transformers", "speed_ratio", False),
    Beside(
        "ZeRO stage 1, peak memory of a rank",
        "better of FSDP2 and DeepSpeed 0.19.8",
        "zero_memory",
        "stage1_ratio",
        True,
    ),
    Beside("ZeRO stage 2", "better of FSDP2 and DeepSpeed 0.19.8", "zero_memory", "stage2_ratio", True),
    Beside("ZeRO stage 3", "better of FSDP2 and DeepSpeed 0.19.8", "zero_memory", "stage3_ratio", True),
    Beside(
        "AWQ of SmolLM2, wall time of the search",
        "llm-compressor 0.14.0.1",
        "awq_vs_llmcompressor",
        "smollm2.ratio.seconds",
        True,
    ),
    Beside(
        "... memory above the loaded model",
        "llm-compressor 0.14.0.1",
        "awq_vs_llmcompressor",
        "smollm2.ratio.above_bytes",
        True,
    ),
    Beside("... perplexity", "llm-compressor 0.14.0.1", "awq_vs_llmcompressor", "smollm2.ratio.perplexity", True),
    Beside(
        "vectors of sentences, sentences a second",
        "transformers 5.24, padded batches",
        "encoders",
        "times_transformers",
        False,
    ),
    Beside(
        "32 requests of mixed lengths, new tokens a second (ours in 4-bit blocks)",
        "transformers 5.24 in float32, padded",
        "serve_batch",
        "transformers.ratio",
        False,
    ),
    Beside("... of the same model", "llama-cpp-python 0.3.36, parallel", "serve_batch", "llamacpp.ratio", False),
    Beside(
        "one request, prompt tokens a second", "llama-cpp-python 0.3.36", "decode_vs_llamacpp", "prefill.ratio", False
    ),
    Beside("... new tokens a second", "llama-cpp-python 0.3.36", "decode_vs_llamacpp", "decode.ratio", False),
    Beside("training a 2-D UNet, images a second", MONAI, "segmentation_vs_monai", "speed.ratio", False),
    Beside("... peak memory", MONAI, "segmentation_vs_monai", "memory.ratio", True),
    Beside("... Dice on another head, mean of 3 seeds", MONAI, "segmentation_vs_monai", "dice.ratio", False),
)


def table(made: Callable[[str], dict[str, Any]]) -> Iterator[str]:
    """The rows, each with the day and the processor it was measured on."""
    yield "| measured together | beside | ours, in parts of theirs | better is | measured |"
    yield "|---|---|---|---|---|"
    for row in ROWS:
        found = made(row.result)
        value = found["values"][row.key]
        when = f"{found['date'][:10]}, {found['machine']['cores']} cores of {found['machine']['processor']}"
        yield f"| {row.what} | {row.peer} | {value:.2f} x | {'less' if row.less else 'more'} | {when} |"
