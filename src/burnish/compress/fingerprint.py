"""Fingerprint of a model's weights: what a saved search result names, so that it is used for no other model."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


@torch.no_grad()
def model_fingerprint(model: nn.Module) -> str:
    """sha256 (hex) of every tensor's name, format, shape and bytes, in the order of names; a tied one counts by each name."""
    total = hashlib.sha256()
    known: dict[tuple[int, tuple[int, ...], tuple[int, ...]], bytes] = {}  # a tied matrix is read once
    for name, tensor in sorted(model.state_dict().items()):
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if place not in known or not tensor.numel():
            plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            known[place] = hashlib.sha256(plain).digest()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode() + known[place])
    return total.hexdigest()


@torch.no_grad()
def unsound(model: nn.Module) -> str | None:
    """The name of the first tensor with a value that is not finite; None when there is none."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return name
    return None
