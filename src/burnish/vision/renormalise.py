"""Renormalise: measure the statistics of batch norms again, as after pruning, on batches and without gradients.

Channels that are gone change the mean and variance of all that read them; the stored ones then shift every output. Means over
batches, all of one weight (Li et al. 2020, "EagleEye", arXiv 2007.02491, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

Norm = nn.modules.batchnorm._NormBase


@torch.no_grad()
def reestimate(model: nn.Module, batches: Iterable[Tensor]) -> int:
    """Measure the means and variances of all norms that store them, on images [B, C, *spatial]; how many batches were read.

    Without a batch everything stays as it is. Only norms are put into training meanwhile, so nothing is dropped out.
    """
    norms = [m for m in model.modules() if isinstance(m, Norm) and m.track_running_stats]
    was = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    device, read = next(model.parameters()).device, 0
    model.eval()
    for norm in norms:
        norm.train()
        norm.momentum = None  # of all batches the plain mean
    try:
        for images in batches:
            if not read:
                for norm in norms:
                    norm.reset_running_stats()
            model(images.to(device))
            read += 1
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in was.items():
            module.training = training
    return read
