"""Observe what one forward and backward of a network that is not ours really takes: what `trace.predict` predicts, counted."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from burnish.vision.operators import Sizes
from burnish.vision.trace import Taken


def _backward(grad: Any, images: Any, weight: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """FLOPs of a convolution's gradients, those that are wanted: each as many as forward. torch's own formula counts that of a
    weight in G groups G times over."""
    transposed, wanted = args[4], args[7]
    rows, _, *sides = images if transposed else grad
    return 2 * rows * prod(sides) * prod(weight) * sum(wanted[:2])


COUNTED = {torch.ops.aten.convolution_backward: _backward}


def observe(model: nn.Module, sizes: Sizes) -> Taken:
    """Run a float32 model in training on zeros of `sizes` [B, C, *spatial] and count; statistics of its norms move on."""
    device = next(model.parameters()).device
    kept: dict[int, Tensor] = {}  # held, so that no storage takes the place of another
    weights = {p.untyped_storage()._cdata for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    was = model.training
    model.train()
    try:
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with FlopCounterMode(display=False) as forward, hooks:
            scores = model(torch.zeros(sizes, device=device))
        with FlopCounterMode(display=False, custom_mapping=COUNTED) as backward:
            torch.autograd.grad(
                scores, [p for p in model.parameters() if p.requires_grad], torch.ones_like(scores), allow_unused=True
            )
    finally:
        model.train(was)
    saved = sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in weights)
    parameters = sum(p.numel() for p in model.parameters())
    return Taken(parameters, int(forward.get_total_flops()), int(backward.get_total_flops()), saved, scores.nbytes)
