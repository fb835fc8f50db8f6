"""Products of 8-bit floats, as two operations that whoever counts or keeps products can see.

An accelerator with units for them takes torch's `_scaled_mm`. Elsewhere the same number is made from the values brought back
to float32: they are exact there, the sum is float32's on either side, and the scales are multiplied in behind it. On a CPU
`_scaled_mm` gives the same and takes longer.

The units want what is summed over, and the columns of the result, in multiples of `TILE`. Tokens that are summed over are
padded with zeros here, which adds nothing; sizes of the model are for whoever plans to refuse.

Shape letters: M rows, K columns that are summed over, N columns of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from burnish.ops.fp8_cast import E4M3, E5M2, Cast, brought_back, largest, scale_of, squares, unscaled, whole

TILE = 16
EMULATED, UNITS = "emulated", "scaled_mm"
FIRST_UNITS = (8, 9)  # compute capability


@torch.library.custom_op("burnish::fp8_with_weight", mutates_args=())
def with_weight(a_MK: Tensor, inverse: Tensor, w_NK: Tensor, scale: Tensor, dtype: torch.dtype, by: str) -> Tensor:
    """a W^T in `dtype` [M, N] with a weight that is cast to E4M3 here: with `scale`, or by squares where that is empty."""
    cast = squares(w_NK, E4M3) if not scale.numel() else whole(w_NK, scale, E4M3)
    return _multiplied(Cast(a_MK, inverse), cast, dtype, by)


@torch.library.custom_op("burnish::fp8_of_tokens", mutates_args=())
def of_tokens(a_MK: Tensor, a_inverse: Tensor, b_NK: Tensor, b_inverse: Tensor, dtype: torch.dtype, by: str) -> Tensor:
    """a b^T in `dtype` [M, N], summed over K tokens, of which there may be any number."""
    return _multiplied(Cast(a_MK, a_inverse), Cast(b_NK, b_inverse), dtype, by)


FORWARD_PRODUCT = torch.ops.burnish.fp8_with_weight.default  # as a dispatcher sees it


@with_weight.register_fake
@of_tokens.register_fake
def _like(a: Tensor, a_factor: Tensor, b: Tensor, b_factor: Tensor, dtype: torch.dtype, by: str) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)


@register_flop_formula([torch.ops.burnish.fp8_with_weight, torch.ops.burnish.fp8_of_tokens])
def _flops(a: Sequence[int], a_factor: Any, b: Sequence[int], *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """A multiply-add is two; the zeros that pad tokens do not count."""
    return 2 * a[0] * a[1] * b[0]


def _multiplied(a: Cast, b: Cast, dtype: torch.dtype, by: str) -> Tensor:
    if by == UNITS:
        return _by_units(a, b, dtype)
    if a.inverse.dim():
        return (brought_back(a) @ brought_back(b).t()).to(dtype)
    return (unscaled(a.values) @ unscaled(b.values).t()).mul_(a.inverse * b.inverse).to(dtype)


def _by_units(a: Cast, b: Cast, dtype: torch.dtype) -> Tensor:
    """One scale a tensor. The first operand lies by rows, the second by columns."""
    short = -a.values.shape[1] % TILE
    first, second = (_padded(cast.values, short).contiguous() for cast in (a, b))
    return torch._scaled_mm(first, second.t(), scale_a=a.inverse, scale_b=b.inverse, out_dtype=dtype)


def _padded(values: Tensor, short: int) -> Tensor:
    return F.pad(values.view(torch.uint8), (0, short)).view(values.dtype) if short else values


def way(asked: str, device: torch.device, blocks: bool) -> str:
    """How products are made on `device`: with its units, if it has them and they give the right numbers.

    Raises RuntimeError where they do not: an operation that answers wrongly must stop a run at its start.
    """
    has_units = device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_UNITS
    if blocks or asked == EMULATED or (asked == "auto" and not has_units):
        return EMULATED
    check_units(device)
    return UNITS


def check_units(device: torch.device) -> float:
    """Compare the products of this device's units with emulated ones, all pairs of formats; the largest difference, relative.

    Raises RuntimeError when it exceeds what another order of summing explains.
    """
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=draw).to(device) for shape in ((33, 48), (64, 48)))
    worst = 0.0
    for forms in ((E4M3, E4M3), (E5M2, E4M3)):
        first, second = (whole(x, scale_of(largest(x), form), form) for x, form in zip((a, b), forms, strict=True))
        found, wanted = (_multiplied(first, second, torch.float32, by) for by in (UNITS, EMULATED))
        worst = max(worst, ((found - wanted).abs().max() / wanted.abs().max()).item())
    if not worst <= 1e-3:  # a NaN must fail too; units of some generations keep 14 bits of a sum
        raise RuntimeError(f"8-bit products on {device} are wrong: off by {worst:.3g} from emulated ones")
    return worst
