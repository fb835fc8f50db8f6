"""A tied head on another stage than its embedding: two copies of one matrix, which a shared gradient keeps the same.

The first stage has the matrix as its embedding, the last one as its head. Both start alike, sum their gradients once a step,
after those of data-parallel ranks, and take the same update (Narayanan et al. 2021, arXiv 2104.04473, does so in Megatron-LM).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from burnish.groups import local
from burnish.ops.together import Member


class TiedCopy(Member):
    """The matrix on this stage, and the group of the two that have it; `repeated`: this one is not counted in the norm."""

    def __init__(self, parameter: Tensor, group: dist.ProcessGroup, repeated: bool) -> None:
        self.parameter, self.group, self.repeated = parameter, group, repeated

    def reduced(self) -> None:
        """Sum the gradient with the other stage's; of a shard, with the same shard's there."""
        if self.parameter.grad is not None:
            dist.all_reduce(local(self.parameter.grad), group=self.group)

    def counts(self, parameter: Tensor) -> bool:
        return not (self.repeated and parameter is self.parameter)

    def replaced(self, by: Mapping[Tensor, Tensor]) -> None:
        self.parameter = by.get(self.parameter, self.parameter)
