"""Replicas: plain data parallelism, whole states on every rank and one all-reduce of gradients for each group of parameters.

The all-reduce of a group starts as soon as the last backward has made its last gradient, so that it runs beside the rest
of backward (Li et al. 2020, "PyTorch Distributed", arXiv 2006.15704, section 3.2.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from burnish.errors import UserError
from burnish.groups import Groups


def parameter_groups(loss: Any) -> list[list[nn.Parameter]]:
    """Trainable parameters that travel together: each layer's, and all others; a shared one is in the first it is met."""
    seen: set[nn.Parameter] = set()
    groups = []
    for module in (*loss.model.layers, loss):
        own = [p for p in dict.fromkeys(module.parameters()) if p.requires_grad and p not in seen]
        seen.update(own)
        groups.append(own)
    return [group for group in groups if group]


def check_same_weights(loss: nn.Module, groups: Groups) -> None:
    """Raises UserError, on every rank, when ranks would start from different weights: nothing would make them equal."""
    named = [*loss.named_parameters(), *loss.named_buffers()]
    sums = torch.stack([tensor.detach().to(torch.float64).sum() for _, tensor in named])
    highest, lowest = sums.clone(), sums.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=groups.whole)
    dist.all_reduce(lowest, dist.ReduceOp.MIN, group=groups.whole)
    if differing := [name for (name, _), differs in zip(named, (highest != lowest).tolist(), strict=True) if differs]:
        raise UserError(
            f"ranks start from different weights ({differing[0]}); use one train.seed and the same files on all of them"
        )


class Sums:
    """The numbers of a step, summed over all ranks in one small all-reduce; float64 keeps counts and losses exact."""

    alone = False

    def __init__(self, groups: Groups, device: torch.device) -> None:
        self.groups = groups
        self.axes = groups.axes
        self.device = device

    def share(self, loss: float, labels: int, tokens: int, norm: float) -> tuple[float, int, int, float]:
        """Sums of loss, labels and tokens, and the norm of the whole gradient. `norm` is of what this rank holds."""
        squares = norm * norm if self.counts_norm() else 0.0
        sums = torch.tensor([loss, labels, tokens, squares], dtype=torch.float64, device=self.device)
        dist.all_reduce(sums, group=self.groups.whole)
        loss, all_labels, all_tokens, squares = sums.tolist()
        return loss, int(all_labels), int(all_tokens), squares**0.5

    def counts_norm(self) -> bool:
        """Whether the part of the gradient on this rank is counted here; a part held by several ranks counts once."""
        raise AssertionError("each way of holding gradients says which rank counts them")


class Replicas(Sums):
    """Ranks with whole gradients. `before` is called ahead of each micro batch, `reduced` after the last backward."""

    def __init__(self, loss: nn.Module, groups: Groups) -> None:
        super().__init__(groups, next(loss.parameters()).device)
        check_same_weights(loss, groups)
        self.parameters = parameter_groups(loss)
        self.missing: list[int] = []  # gradients each group still waits for; empty while micro batches add up
        self.started: list[tuple[Any, Tensor]] = []
        for number, group in enumerate(self.parameters):
            for parameter in group:
                parameter.register_post_accumulate_grad_hook(lambda _, number=number: self._arrived(number))

    def counts_norm(self) -> bool:
        """Every rank holds the whole gradient, the first one counts it."""
        return self.groups.rank == 0

    def before(self, index: int, count: int) -> None:
        """Reduce after the last micro batch only."""
        self.missing = [len(group) for group in self.parameters] if index == count - 1 else []

    def _arrived(self, number: int) -> None:
        if self.missing:
            self.missing[number] -= 1
            if self.missing[number] == 0:
                self._start(number)

    def _start(self, number: int) -> None:
        """Put the gradients of a group side by side in one buffer, of which they become views, and send it."""
        owners = [p for p in self.parameters[number] if p.grad is not None]
        if not owners:
            return
        buffer = torch.cat([p.grad.flatten() for p in owners if p.grad is not None])
        for owner, part in zip(owners, buffer.split([p.numel() for p in owners]), strict=True):
            owner.grad = part.view_as(owner)
        self.started.append((dist.all_reduce(buffer, group=self.groups.whole, async_op=True), buffer))

    def reduced(self) -> None:
        """Wait for all groups. A group with a parameter that no gradient reached has not started yet."""
        for number, missing in enumerate(self.missing):
            if missing:
                self._start(number)
        for work, _ in self.started:
            work.wait()
        self.started, self.missing = [], []

    def updated(self) -> None:
        """Parameters are whole and equal already."""

    def shards(self) -> Iterable[Tensor]:
        """None: the modules hold what is updated."""
        return ()

    def held_apart(self) -> Iterable[Tensor]:
        """None: every gradient is in `.grad`."""
        return ()
