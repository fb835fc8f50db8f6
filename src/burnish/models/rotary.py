"""Rotary position embedding: pairs of elements turned by angles that grow with the position, and the ways to stretch them.

Shape letters: B rows, S positions, N heads, D size of one head.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Scaling(Protocol):
    """How trained frequencies are stretched to longer texts; `burnish.config.RopeScaling` has them."""

    @property
    def kind(self) -> str: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_max_positions(self) -> int: ...
    @property
    def low_freq_factor(self) -> float: ...
    @property
    def high_freq_factor(self) -> float: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...
    @property
    def truncate(self) -> bool: ...
    @property
    def magnitude(self) -> float: ...


class Rotary(NamedTuple):
    """Cosine and sine of every position's angles, each [B or 1, S, 1, D/2], shared by all layers."""

    cos: Tensor
    sin: Tensor


def rotary_angles(
    positions_BS: Tensor, head_dim: int, theta: float, dtype: torch.dtype, scaling: Scaling | None = None
) -> Rotary:
    """Angles position * theta^(-2i/D) (Su et al. 2021, equation 15), made in float32 and then cast to `dtype`.

    Computed at each forward, so that no buffer has to survive a meta-device build.
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_dim, 2, dtype=wide, device=positions_BS.device) / head_dim
    frequencies = theta**-exponent
    magnitude = 1.0
    if scaling is not None:
        frequencies, magnitude = _STRETCHED[scaling.kind](frequencies, theta, scaling), scaling.magnitude
    angles = positions_BS[:, :, None, None].to(wide) * frequencies
    cos, sin = angles.cos(), angles.sin()
    if magnitude != 1.0:
        cos, sin = cos * magnitude, sin * magnitude
    return Rotary(cos.to(dtype), sin.to(dtype))


def _linear(frequencies: Tensor, theta: float, scaling: Scaling) -> Tensor:
    """Position interpolation (Chen et al. 2023, arXiv 2306.15595, equation 4): every angle shrinks alike."""
    return frequencies / scaling.factor


def _llama3(frequencies: Tensor, theta: float, scaling: Scaling) -> Tensor:
    """Llama 3.1's: slow turns shrink, fast ones stay, those between are blended by how often they turn in the trained length
    (Meta's reference code, `apply_scaling`)."""
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies / scaling.factor * (1 - kept) + frequencies * kept


def _yarn(frequencies: Tensor, theta: float, scaling: Scaling) -> Tensor:
    """YaRN (Peng et al. 2023, arXiv 2309.00071, section 3.2): blended along the index of the frequency."""
    half = len(frequencies)

    def index(turns: float) -> float:
        """Where a frequency turns so often in the trained length."""
        return half * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / math.log(theta)

    low, high = index(scaling.beta_fast), index(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    span = high - low or 0.001  # the reference's own way around a range of no width
    steps = torch.arange(half, dtype=frequencies.dtype, device=frequencies.device)
    shrunk = ((steps - low) / span).clamp(0, 1)
    return frequencies / scaling.factor * shrunk + frequencies * (1 - shrunk)


_STRETCHED = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}


def _turn(x_BSND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x_BSND.chunk(2, dim=-1)
    halves = (first * cos).addcmul_(second, -sin), (second * cos).addcmul_(first, sin)
    return torch.cat(halves, dim=-1).to(x_BSND.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BSND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x_BSND, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, -sin), None, None


def rotate(x_BSND: Tensor, rotary: Rotary) -> Tensor:
    """Rotary embedding in Hugging Face's layout: element i turns with element i + D/2.

    Saved: nothing of its own. The angles are held once for all layers: D elements a token, or a position if rows share.
    """
    return _Rotate.apply(x_BSND, rotary.cos, rotary.sin)
