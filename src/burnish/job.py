"""Job: what is to be trained, apart from how it is laid out."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.architecture import Architecture
from burnish.mesh import N

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp8-block", "mxfp8", "nvfp4")
# flash: the newest kernel the chip has; flash-1, flash-2: FlashAttention of 2022, 2023; unfused: scores are stored;
# fused-softmax: scores are stored, one kernel makes them probabilities.
ATTENTION = ("flash", "flash-1", "flash-2", "unfused", "fused-softmax")
TRAINED = ("all", "lora", "qlora")


@dataclass(frozen=True)
class Job:
    """One optimizer step: `global_batch` sequences of `seq` tokens through `model`.

    `filled`: share of the causal triangle that attention really computes (1 = whole rows; packed short texts: less).
    """

    model: Architecture
    seq: N
    global_batch: N
    precision: str = "bf16"
    attention: str = "flash"
    trained: str = "all"
    lora_rank: N = 0
    optimizer: str = "adamw"
    filled: float = 1.0
