"""Published FLOPs: what one token of training costs by the formulas with which others turn seconds into TFLOPS."""

from __future__ import annotations

from burnish.architecture import Architecture
from burnish.describe import Shapes, describe
from burnish.stack import stacks


def flops_per_token(model: Architecture, seq: int, formula: str = "model") -> float:
    """FLOPs a token, forward and backward.

    "hardware": Narayanan et al. 2021, appendix: 96 s l h^2 (1 + s/6h + V/16lh) a sequence, with one forward run again.
    "model": three forwards, attention over all pairs (Chowdhery et al. 2022, appendix B; NeMo). "causal": of the pairs
    only those a causal decoder needs (Llama 3).
    """
    h, layers, vocab = int(model.hidden), int(model.layers), int(model.vocab)
    if formula == "hardware":
        return 96.0 * layers * h * h * (1 + seq / (6 * h) + vocab / (16 * layers * h))
    work = describe(model, Shapes(1, seq), stacks()["torch"])
    share = 0.5 if formula == "causal" else 1.0
    ops = [(block.layers, op) for block in work.blocks for op in block.ops]
    forward = sum(float(n) * float(op.flops) * (share if op.group == "attention" else 1.0) for n, op in ops)
    return 3 * forward / seq


def parameters(model: Architecture) -> float:
    """Number of parameters."""
    work = describe(model, Shapes(1, 1), stacks()["torch"])
    total = 0.0
    for copies, shape in work.shapes():
        elements = 1.0
        for size in shape:
            elements *= float(size)
        total += float(copies) * elements
    return total
