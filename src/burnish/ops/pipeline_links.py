"""Links: how chunks of a pipeline hand hidden states on and gradients back.

Every direction has a process group of its own, in which two ranks only ever send one way: their messages then match in the
order in which both run their passes, on a backend that keeps one queue for two ranks (NCCL) as well. A send is started and
kept until it has left; a receive waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from burnish.groups import Groups, pipeline_group
from burnish.plan_schedule import BACKWARD, FORWARD, UNDERWAY

Shape = tuple[int, ...]


class Links:
    """The neighbours of one stage. `shape` gives the shape of hidden states for that of ids; `dtype` is theirs.

    Chunk c of stage s follows chunk c of stage s - 1, and on the first stage chunk c - 1 of the last.
    """

    def __init__(self, groups: Groups, chunks: int, shape: Callable[[Shape], Shape], dtype: torch.dtype) -> None:
        self.stage, self.stages = groups.places["pp"], groups.of["pp"].size()
        self.shape, self.dtype = shape, dtype
        self.sent: dict[str, deque[tuple[dist.Work, Tensor]]] = {FORWARD: deque(), BACKWARD: deque()}
        self.groups = {}
        # On two stages what leaves the last chunk's stage for the first one's would go against the rest: an own group again.
        around = self.stages == 2 and chunks > 1
        for phase in (FORWARD, BACKWARD):
            straight = pipeline_group(groups, self.stages, phase)
            self.groups[phase, False] = straight
            self.groups[phase, True] = pipeline_group(groups, self.stages, phase) if around else straight

    def send(self, phase: str, tensor: Tensor) -> None:
        """Hidden states to the chunk behind, or their gradient to the one before; waits for what was sent `UNDERWAY` sends ago."""
        step = 1 if phase == FORWARD else -1
        to = (self.stage + step) % self.stages
        whole = tensor.contiguous()
        work = dist.isend(whole, group=self.groups[phase, to != self.stage + step], group_dst=to)
        assert work is not None
        self.sent[phase].append((work, whole))
        if len(self.sent[phase]) > UNDERWAY:
            self.sent[phase].popleft()[0].wait()

    def receive(self, phase: str, ids: Shape, device: torch.device) -> Tensor:
        """What the chunk before, or behind, has sent for a micro batch with ids of this shape."""
        step = -1 if phase == FORWARD else 1
        source = (self.stage + step) % self.stages
        tensor = torch.empty(self.shape(ids), dtype=self.dtype, device=device)
        work = dist.irecv(tensor, group=self.groups[phase, source != self.stage + step], group_src=source)
        assert work is not None
        work.wait()
        return tensor

    def finish(self) -> None:
        """Wait until everything sent has left."""
        for sends in self.sent.values():
            while sends:
                sends.popleft()[0].wait()
