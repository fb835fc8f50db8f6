"""Replicas: plain data parallelism, whole states on every rank and one all-reduce of gradients for each group of parameters.

The all-reduce of a group starts as soon as the last backward has made its last gradient, so that it runs beside the rest
of backward (Li et al. 2020, "PyTorch Distributed", arXiv 2006.15704, section 3.2.3).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from burnish.groups import Groups
from burnish.ops.together import Member


def parameter_groups(loss: Any) -> list[list[nn.Parameter]]:
    """Trainable parameters that travel together: each layer's, and all others; a shared one is in the first it is met."""
    seen: set[nn.Parameter] = set()
    groups = []
    for module in (*loss.model.layers, loss):
        own = [p for p in dict.fromkeys(module.parameters()) if p.requires_grad and p not in seen]
        seen.update(own)
        groups.append(own)
    return [group for group in groups if group]


def _tell(replicas: weakref.ref[Replicas], number: int) -> Callable[[Tensor], None]:
    """Says that a gradient of a group is made. Hooks that held the replicas would keep both, and their groups, for ever."""

    def arrived(parameter: Tensor) -> None:
        if (there := replicas()) is not None:
            there.arrived(number)

    return arrived


class Replicas(Member):
    """Ranks with whole gradients. `before` is called ahead of each micro batch, `reduced` after the last backward."""

    def __init__(self, loss: nn.Module, groups: Groups) -> None:
        self.groups, self.loss = groups, loss
        self.parameters = parameter_groups(loss)
        self.missing: list[int] = []  # gradients each group still waits for; empty while micro batches add up
        self.started: list[tuple[Any, Tensor]] = []
        for number, group in enumerate(self.parameters):
            for parameter in group:
                parameter.register_post_accumulate_grad_hook(_tell(weakref.ref(self), number))

    def counts(self, parameter: Tensor) -> bool:
        """Every rank holds the whole gradient, the first one counts it."""
        return self.groups.first_of_data

    def before(self, index: int, count: int, part: nn.Module | None = None) -> None:
        """Reduce after the last micro batch only."""
        if part not in (None, self.loss):
            return
        self.missing = [len(group) for group in self.parameters] if index == count - 1 else []

    def arrived(self, number: int) -> None:
        """One more gradient of a group is made; with the last of them the group is sent."""
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
        self.started.append((dist.all_reduce(buffer, group=self.groups.of["dp"], async_op=True), buffer))

    def reduced(self) -> None:
        """Wait for all groups. A group with a parameter that no gradient reached has not started yet."""
        for number, missing in enumerate(self.missing):
            if missing:
                self._start(number)
        for work, _ in self.started:
            work.wait()
        self.started, self.missing = [], []
