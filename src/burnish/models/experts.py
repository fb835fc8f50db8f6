"""A feed-forward part of which each token passes only a few of many experts, chosen for it by a router.

Shazeer et al. 2017 (arXiv 1701.06538), section 2.1; the softmax over all experts before the choice, as in Switch (Fedus et
al. 2022, arXiv 2101.03961, equation 1). No token is dropped, whatever an expert's share.

Shape letters: T tokens, H hidden size, F feed-forward size of one expert, E experts, K experts a token, R = T K routed
tokens, ordered by expert. "Saved:" in a docstring counts the elements a token kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from burnish.models.layers import Linear


class Shape(Protocol):
    """The sizes that `Experts` is built from."""

    @property
    def hidden(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def experts(self) -> int: ...
    @property
    def topk(self) -> int: ...
    @property
    def norm_topk(self) -> bool: ...


class Experts(nn.Module):
    """Sum over the chosen experts of weight * down(silu(gate(x)) * up(x)); `up` holds an expert's gate, then its up."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.count, self.topk, self.norm_topk = shape.experts, shape.topk, shape.norm_topk
        self.router = Linear(shape.hidden, shape.experts)
        self.up = GroupedLinear(shape.experts, shape.hidden, 2 * shape.ffn)
        self.down = GroupedLinear(shape.experts, shape.ffn, shape.hidden)

    def forward(self, x_BSH: Tensor) -> Tensor:
        x_TH = x_BSH.flatten(0, -2)
        weights_TK, choice_TK = choose(self.router(x_TH), self.topk, self.norm_topk)
        order_R = choice_TK.flatten().argsort(stable=True)
        counts = choice_TK.flatten().bincount(minlength=self.count).tolist()
        tokens_R = order_R // self.topk
        weights_R1 = weights_TK.flatten()[order_R].unsqueeze(-1).to(x_TH.dtype)
        wide_RF = self.up(x_TH[tokens_R], counts)
        product_RF = _WeightedGatedSilu.apply(wide_RF, weights_R1)
        out_RH = self.down(product_RF, counts)
        return _Gathered.apply(out_RH, tokens_R, len(x_TH)).view_as(x_BSH)


def choose(logits_TE: Tensor, topk: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """The `topk` likeliest experts of each token and their weights, [T, K] each: probabilities over all experts in float32
    at least, or with `normalise` over the chosen ones.

    Saved: E probabilities, K choices (int64) and, with `normalise`, K + 1 elements.
    """
    wide = torch.promote_types(logits_TE.dtype, torch.float32)
    weights_TK, choice_TK = logits_TE.softmax(-1, dtype=wide).topk(topk, dim=-1)
    if normalise:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return weights_TK, choice_TK


class GroupedLinear(nn.Module):
    """y = x W_e^T for rows ordered by expert e, `counts[e]` rows each; `weight` holds all W_e one below another.

    Saved: x, R rows, where the weight has a gradient.
    """

    def __init__(self, count: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count * out_features, in_features))

    def forward(self, x_RI: Tensor, counts: list[int]) -> Tensor:
        return _GroupedLinear.apply(x_RI, self.weight, counts)


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RI: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x_RI if ctx.needs_input_grad[1] else None, weight)
        ctx.counts = counts
        made = [torch.mm(x_RI[rows], own.t()) for rows, own in _parts(weight, counts)]
        return torch.cat(made) if made else x_RI.new_empty(0, len(weight) // len(counts))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RO: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_RI, weight = ctx.saved_tensors
        grad_x = grad_RO.new_empty(len(grad_RO), weight.shape[1]) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        gradients = weight if grad_weight is None else grad_weight
        parts = zip(_parts(weight, ctx.counts), _parts(gradients, ctx.counts), strict=True)
        for (rows, own), (_, grad_own) in parts:
            if grad_x is not None:
                grad_x[rows] = torch.mm(grad_RO[rows], own)
            if grad_weight is not None:
                grad_own.copy_(torch.mm(grad_RO[rows].t(), x_RI[rows]))
        return grad_x, grad_weight, None


def _parts(weight: Tensor, counts: list[int]) -> Iterator[tuple[slice, Tensor]]:
    """The rows and the matrix of each expert that has any."""
    start = 0
    for own, count in zip(weight.chunk(len(counts)), counts, strict=True):
        if count:
            yield slice(start, start + count), own
        start += count


class _Gathered(torch.autograd.Function):
    """Sum of the routed rows [R, H] of each of T tokens. Saved: the tokens' numbers; torch's own keeps the rows too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, tokens_R: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(tokens_R)
        return rows.new_zeros(count, rows.shape[1]).index_add_(0, tokens_R, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (tokens_R,) = ctx.saved_tensors
        return grad[tokens_R], None, None


class _WeightedGatedSilu(torch.autograd.Function):
    """weight * silu(gate) * up of [R, 2 F] and [R, 1]. Saved: 2 F + 1 elements a routed token; the rest is made again.

    Weighted here and not after the last product, whose result then nobody has to keep.
    """

    @staticmethod
    def forward(ctx: Any, wide: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(wide, weight)
        gate, up = wide.chunk(2, -1)
        return F.silu(gate).mul_(up).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        wide, weight = ctx.saved_tensors
        gate, up = wide.chunk(2, -1)
        active = F.silu(gate)
        grad_weight = (grad * active).mul_(up).sum(-1, keepdim=True)
        through = grad * weight
        grad_wide = torch.empty_like(wide)
        grad_gate, grad_up = grad_wide.chunk(2, -1)
        torch.mul(through, active, out=grad_up)
        grad_gate.copy_(torch.ops.aten.silu_backward(through * up, gate))
        return grad_wide, grad_weight
