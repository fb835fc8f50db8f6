"""Linear layers whose three products take 8-bit floats: the forward, the gradient of the input and that of the weight.

    y = x W^T  E4M3 x E4M3      dx = g W  g x E4M3      dW = g^T x  g x E4M3

x is kept for backward as it was cast, one byte an element, and shared by the layers that read it. The weight is cast again
in backward, from the same numbers with the same scale, which keeps nothing. Sums and what comes out are of the format they
would have without; the weight's gradient is float32. Without gradients, as when judging, the product is the plain one.

Shape letters: B rows, S positions, K inputs, N outputs, M = B S tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.ops.fp8_cast import E4M3, Cast, largest, rows, scale_of, whole
from burnish.ops.fp8_product import of_tokens, with_weight
from burnish.ops.fp8_scales import Kept, Scales
from burnish.ops.split_products import Kept as KeptTokens

Group = dist.ProcessGroup | None


@dataclass(frozen=True)
class Casting:
    """How a matrix's tensors are cast: `scaling` by current magnitude, delayed or in blocks; gradients in `form`; products
    are made `by` what. Ranks of `group` have other columns of the input (`rows_of`), or of the result's gradient."""

    scaling: str
    form: torch.dtype
    by: str
    group: Group = None
    input_apart: bool = False
    gradient_apart: bool = False

    def one_scale(self, x: Tensor, form: torch.dtype, apart: bool, scales: Scales, number: int) -> Cast:
        """A tensor cast with one scale, which ranks that have other columns of it agree on."""
        amax = largest(x)
        if self.scaling == "delayed":
            return whole(x, scales.delayed(number, amax), form)
        if apart and self.group is not None:
            own, amax = amax * 0.0, amax.nan_to_num(nan=torch.inf)
            dist.all_reduce(amax, dist.ReduceOp.MAX, group=self.group)
            amax = amax + own
        return whole(x, scale_of(amax, form), form)


class Input:
    """What reads one tensor shares: its cast by rows for forward, and the one that backward needs, kept as this rank's
    tokens where the tensor was gathered."""

    def __init__(self, forward: Cast, kept: Cast, x: Tensor) -> None:
        self.forward, self.inverse = forward, kept.inverse
        opened = getattr(x, "kept", None)
        self.values, self.tokens = kept.values, None
        if opened is not None:
            group = opened.group
            every = kept.values.view(torch.uint8).reshape(x.shape)
            self.values = every.chunk(group.size(), dim=1)[dist.get_rank(group)].contiguous()
            self.tokens = KeptTokens(group)


class Product:
    """What a linear layer calls in place of `F.linear`. `input` and `gradient` are the numbers of its tensors in `scales`."""

    def __init__(self, casting: Casting, scales: Scales, kept: Kept, tensors: tuple[int, int]) -> None:
        self.casting, self.scales, self.kept = casting, scales, kept
        self.input, self.gradient = tensors

    @torch.compiler.disable
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [.., K] with `weight` [N, K] -> [.., N]."""
        if not torch.is_grad_enabled():
            return F.linear(x, weight, bias)
        cast: Input | None = getattr(x, "cast", None)
        if cast is None:
            with torch.no_grad():
                cast = self._input(x)
            x.cast = cast  # type: ignore[attr-defined]
        if x.requires_grad or weight.requires_grad:
            y = _Product.apply(_Keep.apply(x, weight, cast.values, cast.inverse), weight, cast, self, x.requires_grad)
        else:
            y = with_weight(*cast.forward, weight, self.scale(weight), x.dtype, self.casting.by).view(*x.shape[:-1], -1)
        return y if bias is None else y + bias

    def _input(self, x: Tensor) -> Input:
        flat = x.flatten(0, -2)
        if self.casting.scaling == "block":
            along = rows(flat.t(), E4M3)
            return Input(rows(flat, E4M3), Cast(along.values.t(), along.inverse), x)
        cast = self.casting.one_scale(flat, E4M3, self.casting.input_apart, self.scales, self.input)
        return Input(cast, cast, x)

    def scale(self, weight: Tensor) -> Tensor:
        """Of the weight; empty where it is cast by squares. Outside a step it is found here."""
        if self.casting.scaling == "block":
            return weight.new_empty(0, dtype=torch.float32)
        every = self.scales.of_weights_W
        return scale_of(largest(weight), E4M3) if every is None else every[self.kept.number]

    def gradients(self, g: Tensor) -> tuple[Cast, Cast]:
        """The gradient [M, N] cast for the product over N, and as [N, M] for that over tokens."""
        casting = self.casting
        if casting.scaling == "block":
            return rows(g, casting.form), rows(g.t(), casting.form)
        cast = casting.one_scale(g, casting.form, casting.gradient_apart, self.scales, self.gradient)
        return cast, cast._replace(values=cast.values.t())


class _Keep(torch.autograd.Function):
    """Identity of x that keeps what the product behind it needs in backward. Kept by the product itself, it would be there
    only once the product is made, and a second forward, which stops at the last thing kept, would make it for nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, values: Tensor, inverse: Tensor) -> Tensor:
        learns = ctx.needs_input_grad[1]
        ctx.save_for_backward(values if learns else None, inverse if learns else None, weight)
        ctx.set_materialize_grads(False)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        return grad, None, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, cast: Input, product: Product, flows: bool) -> Tensor:
        ctx.keeper = x.grad_fn
        ctx.product, ctx.tokens, ctx.flows = product, cast.tokens, flows
        ctx.scale = product.scale(weight)
        if cast.tokens is not None:
            cast.tokens.readers += ctx.needs_input_grad[1]
        made = with_weight(*cast.forward, weight, ctx.scale, x.dtype, product.casting.by)
        return made.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        values, inverse, weight = ctx.keeper.saved_tensors
        by, grad_x, grad_weight = ctx.product.casting.by, None, None
        along, over = ctx.product.gradients(grad.flatten(0, -2))
        if ctx.flows:
            made = with_weight(*along, weight.t(), ctx.scale, grad.dtype, by)
            grad_x = made.view(*grad.shape[:-1], -1)
        if ctx.needs_input_grad[1]:
            if ctx.tokens is not None:
                values = ctx.tokens.whole(values).view(E4M3)
            grad_weight = of_tokens(*over, values.flatten(0, -2).t(), inverse, torch.float32, by)
        return grad_x, grad_weight, None, None, None


def with_role(casting: Casting, closes: bool) -> Casting:
    """The casting of a matrix whose input columns ranks divide (`closes` a pair), or its outputs."""
    return replace(casting, input_apart=closes, gradient_apart=not closes)
