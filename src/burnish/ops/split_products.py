"""Products and tables whose parameters are divided over ranks, as functions over plain tensors.

With divided tokens the input of a column product is gathered where it is used and kept as this rank's part; backward gathers
it once more for all products that read it (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2).

Shape letters: B rows, S positions, H hidden size, V words of the whole vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.ops.token_collectives import GatherTokens, Group, gather


class Kept:
    """The gathered input of several products: kept by them as a part, whole again while their backwards need it.

    It holds no part itself, which a layer that is run again in backward must not keep.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.readers = 0
        self._whole: Tensor | None = None

    def whole(self, part: Tensor) -> Tensor:
        """All tokens, gathered for the first reader and dropped after the last."""
        found = gather(part, self.group) if self._whole is None else self._whole
        self.readers -= 1
        self._whole = found if self.readers else None
        return found


def opened(x_BsH: Tensor, group: Group) -> Tensor:
    """All tokens of a divided input; products that read it with `column` keep only this rank's part."""
    whole = GatherTokens.apply(x_BsH, group)
    whole.part, whole.kept = x_BsH.detach(), Kept(group)
    return whole


def column(x_BSH: Tensor, weight: Tensor, bias: Tensor | None, product: Any = F.linear) -> Tensor:
    """This rank's output features of a product. Saved: of an `opened` input this rank's tokens, else the input.

    A layer's own `product` sees to that itself.
    """
    cast = None if bias is None else bias.to(x_BSH.dtype)
    if product is not F.linear:
        return product(x_BSH, weight, cast)
    kept, part = getattr(x_BSH, "kept", None), getattr(x_BSH, "part", None)
    if kept is None or not torch.is_grad_enabled():
        return F.linear(x_BSH, weight, cast)
    return _Column.apply(x_BSH, weight, cast, part, kept)


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, part: Tensor, kept: Kept) -> Tensor:
        learns = ctx.needs_input_grad[1]
        ctx.save_for_backward(part if learns else None, weight)
        ctx.kept, ctx.biased = kept, bias is not None
        kept.readers += learns
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        part, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        grad_weight = rows.t() @ ctx.kept.whole(part).flatten(0, -2) if ctx.needs_input_grad[1] else None
        grad_bias = rows.sum(0) if ctx.biased and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None, None


class VocabularyTable(torch.autograd.Function):
    """Rows of a table of which this rank holds those from `first` on; words of other ranks give zeros. Saved: the ids."""

    @staticmethod
    def forward(ctx: Any, ids_BS: Tensor, weight: Tensor, first: int) -> Tensor:
        ctx.save_for_backward(ids_BS)
        ctx.first, ctx.shape = first, weight.shape
        own = (ids_BS >= first) & (ids_BS < first + len(weight))
        if not len(weight):
            return weight.new_zeros((*ids_BS.shape, weight.shape[1]))
        rows = F.embedding((ids_BS - first).where(own, 0), weight)
        return rows.masked_fill_(~own.unsqueeze(-1), 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        (ids_BS,) = ctx.saved_tensors
        own = (ids_BS >= ctx.first) & (ids_BS < ctx.first + ctx.shape[0])
        made = grad.new_zeros(ctx.shape)
        made.index_add_(0, ids_BS[own] - ctx.first, grad[own])
        return None, made, None
