"""Casts to 8-bit floats: scale, clamp, round; one scale for a tensor, or one for each block of it.

Formats and the reason for two of them: Micikevicius et al. 2022, "FP8 formats for deep learning" (arXiv 2209.05433): E4M3 has
3 bits of fraction and ends at 448, E5M2 has 2 and ends at 57,344. A cast to E5M2 overflows to infinity, so everything is
clamped first; what was not finite before it makes the scale NaN, so that a product with it is NaN and never a plain number.

Shape letters: M rows, K columns that are summed over, N rows of a weight.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SIDE = 128  # of a block: 1 x SIDE of activations and gradients, SIDE x SIDE of weights
LARGEST_SCALE = 2.0**126  # its inverse is a normal number still


class Cast(NamedTuple):
    """8-bit values with the float32 factors that bring them back: one (no dimension), or one a block of the last dimension,
    [M, K / SIDE] rounded up; of a weight one a square, [N / SIDE, K / SIDE]."""

    values: Tensor
    inverse: Tensor


def largest(x: Tensor) -> Tensor:
    """The largest magnitude as a float32 number; NaN where there is one, 0 of nothing."""
    return x.abs().amax().float() if x.numel() else x.new_zeros((), dtype=torch.float32)


def scale_of(amax: Tensor, form: torch.dtype) -> Tensor:
    """The factors that bring magnitudes up to `amax` to the end of `form`; 1 for 0, NaN for what is not finite."""
    return scale_to(amax.new_tensor(torch.finfo(form).max), amax)


def scale_to(end: Tensor, amax: Tensor) -> Tensor:
    """The factors that bring magnitudes up to `amax` to `end`, as `scale_of` says."""
    factor = (end / amax).clamp(max=LARGEST_SCALE)
    return torch.where(amax > 0, factor, 1.0) + amax * 0.0


def rounded(x: Tensor, scale: Tensor, form: torch.dtype) -> Tensor:
    """x times `scale` in `form`, clamped to its ends."""
    end = torch.finfo(form).max
    return (x * scale).clamp_(-end, end).to(form)


def whole(x: Tensor, scale: Tensor, form: torch.dtype) -> Cast:
    """A tensor with one scale."""
    return Cast(rounded(x.float(), scale, form), 1.0 / scale)


def rows(x_MK: Tensor, form: torch.dtype) -> Cast:
    """Every SIDE neighbours of a row with a scale of their own, a power of two; the last block may be shorter."""
    blocks = F.pad(x_MK.float(), (0, -x_MK.shape[1] % SIDE)).unflatten(1, (-1, SIDE))
    scale = _power(blocks.abs().amax(2), form)
    values = rounded(blocks, scale.unsqueeze(2), form).flatten(1)
    return Cast(values[:, : x_MK.shape[1]].contiguous(), 1.0 / scale)


def squares(w_NK: Tensor, form: torch.dtype) -> Cast:
    """Every SIDE x SIDE square of a weight with a scale of its own, a power of two; the last ones may be smaller."""
    n, k = w_NK.shape
    blocks = F.pad(w_NK.float(), (0, -k % SIDE, 0, -n % SIDE)).unflatten(1, (-1, SIDE)).unflatten(0, (-1, SIDE))
    scale = _power(blocks.abs().amax((1, 3)), form)
    values = rounded(blocks, scale[:, None, :, None], form).flatten(2).flatten(0, 1)
    return Cast(values[:n, :k], 1.0 / scale)


def _power(amax: Tensor, form: torch.dtype) -> Tensor:
    """The largest power of two within each scale, as block formats have them: their products need no rounding."""
    scale = scale_of(amax, form)
    power = torch.ldexp(torch.ones_like(scale), torch.frexp(scale).exponent - 1)
    return torch.where(scale.isnan(), scale, power)


def unscaled(values: Tensor) -> Tensor:
    """8-bit values as float32. NaN of E4M3 is not kept: its cast has a NaN scale."""
    if values.dtype != E4M3 or values.device.type != "cpu":
        return values.float()
    # On a CPU the cast back is the slowest part of an emulated product. E4M3 is the middle of a half: sign, exponent
    # and fraction moved to their places are the value over 2^8, below the normal numbers too.
    bits = values.contiguous().view(torch.int8).to(torch.int16)
    moved = bits.bitwise_and(0x7F).bitwise_left_shift_(7).bitwise_or_(bits.bitwise_and_(-0x8000))
    return moved.view(torch.float16).float().mul_(256.0)


def brought_back(cast: Cast) -> Tensor:
    """The float32 tensor that a cast stands for."""
    plain, factors = unscaled(cast.values), cast.inverse
    if factors.dim() == 0:
        return plain.mul_(factors)
    for dim, size in enumerate(plain.shape):
        if factors.shape[dim] != size:
            factors = factors.repeat_interleave(SIDE, dim)[(slice(None),) * dim + (slice(size),)]
    return plain.mul_(factors)
