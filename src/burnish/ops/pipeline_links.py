"""Links: how chunks of a pipeline hand hidden states on and gradients back.

Every direction has a process group of its own, in which two ranks only ever send one way: their messages then match in the
order in which both run their passes, on a backend that keeps one queue for two ranks (NCCL) as well. A send is started and
kept until it is done; a receive waits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from burnish.groups import Groups, pipeline_group
from burnish.work import BACKWARD, FORWARD

Shape = tuple[int, ...]


class Links:
    """The neighbours of one stage. `shape` gives the shape of hidden states for that of ids; `dtype` is theirs.

    Chunk c of stage s follows chunk c of stage s - 1, and on the first stage chunk c - 1 of the last.
    """

    def __init__(self, groups: Groups, chunks: int, shape: Callable[[Shape], Shape], dtype: torch.dtype) -> None:
        self.stage, self.stages = groups.places["pp"], groups.of["pp"].size()
        self.shape, self.dtype = shape, dtype
        self.pending: list[tuple[dist.Work, Tensor]] = []
        self.groups = {}
        # On two stages what leaves the last chunk's stage for the first one's would go against the rest: an own group again.
        around = self.stages == 2 and chunks > 1
        for phase in (FORWARD, BACKWARD):
            straight = pipeline_group(groups, self.stages, phase)
            self.groups[phase, False] = straight
            self.groups[phase, True] = pipeline_group(groups, self.stages, phase) if around else straight

    def send(self, phase: str, tensor: Tensor) -> None:
        """Hidden states to the chunk behind, or their gradient to the one before."""
        step = 1 if phase == FORWARD else -1
        to = (self.stage + step) % self.stages
        group = self.groups[phase, to != self.stage + step]
        whole = tensor.contiguous()
        work = dist.isend(whole, group=group, group_dst=to)
        assert work is not None
        self.pending = [(other, kept) for other, kept in self.pending if not other.is_completed()]
        self.pending.append((work, whole))

    def receive(self, phase: str, ids: Shape, device: torch.device) -> Tensor:
        """What the chunk before, or behind, has sent for a micro batch with ids of this shape."""
        step = -1 if phase == FORWARD else 1
        source = (self.stage + step) % self.stages
        group = self.groups[phase, source != self.stage + step]
        tensor = torch.empty(self.shape(ids), dtype=self.dtype, device=device)
        work = dist.irecv(tensor, group=group, group_src=source)
        assert work is not None
        work.wait()
        return tensor

    def finish(self) -> None:
        """Wait until everything sent has left."""
        for work, _ in self.pending:
            work.wait()
        self.pending = []
