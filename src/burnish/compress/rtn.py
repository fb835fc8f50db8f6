"""Round to nearest: a matrix as integers of 4 bits with a scale, and perhaps a zero point, for each group of inputs.

Symmetric: scale = max |w| / 7.5, as compressed-tensors has it, and q = round(w / scale) in -8 .. 7. Asymmetric: the range
runs from min(w, 0) to max(w, 0), so that a group of one sign keeps its zero and a zero point exists that fits 4 bits; scale
= range / 15. Both: `ratios` shrink a group's range before the scale is made, and what lies outside is clamped.

Shape letters: O outputs, I inputs, G groups an output, g inputs a group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.ops.int4_linear import HIGHEST, LOWEST, Integers
from burnish.weight_format import IntWeights

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Steps(NamedTuple):
    """The grid of each group: w is about (q - zero) * scale; [O, G, 1] float32, the scale a value of the file's format."""

    scale: Tensor
    zero: Tensor | None


def grouped(weight_OI: Tensor, scheme: IntWeights) -> Tensor:
    """[O, I] as [O, G, g]; a view."""
    return weight_OI.view(len(weight_OI), scheme.groups(weight_OI.shape[1]), -1)


def steps(weight_OGg: Tensor, scheme: IntWeights, ratios_OG: Tensor | float = 1.0) -> Steps:
    """The grid of every group, its range shrunk to `ratios_OG` of what it holds."""
    low, high = (edge.unsqueeze(-1) for edge in weight_OGg.aminmax(dim=-1))
    ratio = ratios_OG.unsqueeze(-1) if isinstance(ratios_OG, Tensor) else ratios_OG
    return grid(low, high, scheme, ratio)


def grid(low: Tensor, high: Tensor, scheme: IntWeights, ratio: Tensor | float) -> Steps:
    """The grid of groups with these extremes [O, G, 1]."""
    levels = HIGHEST - LOWEST
    if scheme.symmetric:
        scale = _storable(torch.maximum(-low, high) * (ratio * 2 / levels), scheme)
        return Steps(scale, None)
    low, high = low.clamp(max=0) * ratio, high.clamp(min=0) * ratio
    scale = _storable((high - low) / levels, scheme)
    return Steps(scale, (LOWEST - low / scale).round_().clamp_(LOWEST, HIGHEST))


def _storable(scale: Tensor, scheme: IntWeights) -> Tensor:
    """Scales as a file holds them; of a group of zeros any does, and one that would vanish is the smallest there is."""
    dtype = DTYPES[scheme.dtype]
    least = torch.finfo(dtype).smallest_normal
    return torch.where(scale > 0, scale.clamp(min=least), 1.0).to(dtype).float()


def rounded(weight_OGg: Tensor, own: Steps) -> Tensor:
    """q of every weight, float32 [O, G, g], in LOWEST .. HIGHEST."""
    values = weight_OGg / own.scale
    values.round_()
    if own.zero is not None:
        values += own.zero
    return values.clamp_(LOWEST, HIGHEST)


def restored(weight_OGg: Tensor, own: Steps) -> Tensor:
    """What the integers of every weight stand for, [O, G, g], before it is rounded to the file's format."""
    values = rounded(weight_OGg, own)
    if own.zero is not None:
        values -= own.zero
    return values.mul_(own.scale)


def integers(weight_OI: Tensor, scheme: IntWeights, ratios_OG: Tensor | float = 1.0, where: str = "weight") -> Integers:
    """The matrix in integers. Raises UserError where a scale is beyond what the file's format holds; `where` names it."""
    parts = grouped(weight_OI.float(), scheme)
    own = steps(parts, scheme, ratios_OG)
    if not bool(torch.isfinite(own.scale).all()):
        raise UserError(f"{where}: a scale is beyond what {scheme.dtype} holds; dtype bfloat16 and float32 hold it")
    values = rounded(parts, own).to(torch.int8).view(weight_OI.shape)
    zero = None if own.zero is None else own.zero.squeeze(-1).to(torch.int8)
    return Integers(values, own.scale.squeeze(-1).to(DTYPES[scheme.dtype]), zero)
