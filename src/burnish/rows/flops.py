"""Published FLOPs: what one token of training costs by the formulas with which others turn seconds into TFLOPS."""

from __future__ import annotations

from burnish.architecture import Architecture
from burnish.parameters import causal_flops


def flops_per_token(model: Architecture, seq: int, formula: str = "model") -> float:
    """FLOPs a token, forward and backward.

    "hardware": Narayanan et al. 2021, appendix: 96 s l h^2 (1 + s/6h + V/16lh) a sequence, with one forward run again.
    "model": three forwards, attention over all pairs (Chowdhery et al. 2022, appendix B; NeMo). "causal": of the pairs
    only those a causal decoder needs (Llama 3).
    """
    if formula == "hardware":
        h, layers, vocab = int(model.hidden), int(model.layers), int(model.vocab)
        return 96.0 * layers * h * h * (1 + seq / (6 * h) + vocab / (16 * layers * h))
    causal = float(causal_flops(model, seq))
    return causal if formula == "causal" else 2 * causal - float(causal_flops(model, 1))
