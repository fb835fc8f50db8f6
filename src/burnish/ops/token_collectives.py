"""Collectives of tensor parallelism as functions with a backward: what one does forward, its partner does backward.

    whole input      identity                all-reduce of gradients      (Shoeybi et al. 2019, arXiv 1909.08053, figure 3, f)
    sum              all-reduce              identity                     (the same, g)
    gather tokens    all-gather              reduce-scatter of gradients  (Korthikanti et al. 2022, arXiv 2205.05198, figure 5)
    scatter a sum    reduce-scatter          all-gather of gradients      (the same)

Tensors are [B rows, S positions, H]; tokens are divided along S, which the ranks divide evenly.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Group = dist.ProcessGroup


def gather(x_BsH: Tensor, group: Group) -> Tensor:
    """All ranks' tokens: [B, S/n, H] -> [B, S, H]."""
    parts = x_BsH.new_empty((group.size(), *x_BsH.shape))
    dist.all_gather_single(parts.flatten(0, 1), x_BsH.contiguous(), group=group)
    return parts.movedim(0, 1).flatten(1, 2)


def scatter_sum(x_BSH: Tensor, group: Group) -> Tensor:
    """This rank's tokens of the sum over ranks: [B, S, H] -> [B, S/n, H]."""
    rows, length, width = x_BSH.shape
    parts = x_BSH.view(rows, group.size(), length // group.size(), width).movedim(1, 0).contiguous()
    out = torch.empty_like(parts[0])
    dist.reduce_scatter_single(out, parts.flatten(0, 1), group=group)
    return out


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, in place where the memory is in one piece."""
    x = x.contiguous()
    dist.all_reduce(x, group=group)
    return x


class WholeInput(torch.autograd.Function):
    """Identity; the gradient is summed over ranks, each of which has made that of its own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return summed(grad, ctx.group), None


class Sum(torch.autograd.Function):
    """The sum over ranks of what each has made of its part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        # Not in place: whoever keeps the results of products for a second forward would find the sum there.
        out = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class GatherTokens(torch.autograd.Function):
    """All tokens where each rank has some."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return gather(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return scatter_sum(grad.contiguous(), ctx.group), None


class ScatterSum(torch.autograd.Function):
    """Some tokens of the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return scatter_sum(x.contiguous(), group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return gather(grad, ctx.group), None


class GatherScores(torch.autograd.Function):
    """All `count` features [.., F] in order of rank, where the last ranks may have fewer; the gradient is this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, count: int) -> Tensor:
        ctx.group, ctx.own, ctx.width = group, x.shape[-1], -(-count // group.size())
        padded = F.pad(x, (0, ctx.width - ctx.own)).contiguous()
        parts = x.new_empty((group.size(), *padded.shape))
        dist.all_gather_single(parts.flatten(0, 1), padded, group=group)
        return parts.movedim(0, -2).flatten(-2)[..., :count]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        first = dist.get_rank(ctx.group) * ctx.width
        return grad[..., first : first + ctx.own].contiguous(), None, None
