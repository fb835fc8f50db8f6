"""Engine: runs the chunks of one pipeline stage, forward and backward of every micro batch in the order of its schedule.

The order is that of `plan_schedule.order`, which plans show too. Of a forward pass only the place of its result in the graph
is kept until its backward: the result itself is sent and dropped, so that a stage holds what backward reads and no more.
Receive buffers are made when they are needed; made ahead for all micro batches, as torch.distributed.pipelining does, they
would take from 1F1B what it saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from burnish.ops.pipeline_links import Links
from burnish.plan_schedule import BACKWARD, FORWARD, Pipeline, order

Tensors = tuple[Any, ...]  # ids, labels, positions or None, pieces or None


class Ranks(Protocol):
    """What a step does around backward; see `train.step.Ranks`."""

    def before(self, index: int, count: int, part: nn.Module | None = None) -> None: ...

    def reduced(self) -> None: ...


class Engine(nn.Module):
    """One stage's chunks, first to last. As a module it gives the summed loss of a batch, without gradients."""

    def __init__(self, parts: Iterable[nn.Module], links: Links, group: dist.ProcessGroup, schedule: str) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.links, self.group, self.schedule = links, group, schedule
        self.kept: dict[tuple[int, int], tuple[Tensor | None, Tensor | GradientEdge]] = {}
        self.most_kept = 0  # passes whose saved tensors stood at once, in the last step

    def is_first(self, chunk: int) -> bool:
        """Whether a micro batch begins at this chunk."""
        return self.links.stage == 0 and chunk == 0

    def is_last(self, chunk: int) -> bool:
        """Whether this chunk gives the loss."""
        return self.links.stage == self.links.stages - 1 and chunk == len(self.parts) - 1

    def run(self, micros: Sequence[Tensors], ranks: Ranks) -> float:
        """Add the gradients of the summed loss of all micro batches; returns that sum in nats on the last stage, else 0."""
        pipeline = Pipeline(self.links.stages, len(self.parts), len(micros), 1.0, 1.0, self.schedule)
        total = torch.zeros((), dtype=torch.float64, device=micros[0][0].device)
        done = [0] * len(self.parts)
        self.kept.clear()
        self.most_kept = 0
        for kind, chunk, micro in order(pipeline, self.links.stage):
            if kind == FORWARD:
                self._forward(chunk, micro, micros[micro], total)
                self.most_kept = max(self.most_kept, len(self.kept))
            else:
                ranks.before(done[chunk], len(micros), self.parts[chunk])
                done[chunk] += 1
                self._backward(chunk, micro, micros[micro])
        self.links.finish()
        ranks.reduced()
        return total.item()

    def _forward(self, chunk: int, micro: int, tensors: Tensors, total: Tensor) -> None:
        x = None if self.is_first(chunk) else self._received(FORWARD, tensors).requires_grad_()
        out = self.parts[chunk](x, *tensors)
        if self.is_last(chunk):
            total += out.detach()
            self.kept[chunk, micro] = x, out
        else:
            self.kept[chunk, micro] = x, get_gradient_edge(out)
            self.links.send(FORWARD, out.detach())

    def _backward(self, chunk: int, micro: int, tensors: Tensors) -> None:
        x, out = self.kept.pop((chunk, micro))
        gradient = None if self.is_last(chunk) else self._received(BACKWARD, tensors)
        torch.autograd.backward(out, gradient)
        if x is not None:
            assert x.grad is not None
            self.links.send(BACKWARD, x.grad)

    def _received(self, phase: str, tensors: Tensors) -> Tensor:
        return self.links.receive(phase, tuple(tensors[0].shape), tensors[0].device)

    @torch.no_grad()
    def forward(self, *tensors: Any) -> Tensor:
        """The summed loss of one batch on every stage, in nats: chunk after chunk, then from the last stage to all."""
        loss = torch.zeros((), dtype=torch.float32, device=tensors[0].device)
        for chunk, part in enumerate(self.parts):
            x = None if self.is_first(chunk) else self._received(FORWARD, tensors)
            out = part(x, *tensors)
            if self.is_last(chunk):
                loss += out
            else:
                self.links.send(FORWARD, out)
        self.links.finish()
        dist.broadcast(loss, group=self.group, group_src=self.links.stages - 1)
        return loss
