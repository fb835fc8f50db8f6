"""Mesh: how ranks are arranged, as plain numbers; process groups are made from it elsewhere.

Every field may be an int or an int64 array with one entry per candidate mapping, so that one description of cost serves
a single plan and a search over many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

N = float | np.ndarray  # an int counts as a float


def pick(condition: Any, yes: N, no: N) -> N:
    """`yes` where the condition holds, else `no`: one value for a plain condition, an array for an array of them."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


@dataclass(frozen=True)
class Mesh:
    """Degrees of parallelism and the size of a node.

    Data parallel ranks are neighbours; `shard` of them split the states and the other `replicate = dp / shard` groups
    hold copies (hybrid sharding). `shard` 0 means all of them. `rank` is whose share is described: shards of an odd size
    are not equal.
    """

    dp: N = 1
    shard: N = 0
    per_node: N = 8
    rank: N = 0
    tp: N = 1
    cp: N = 1
    pp: N = 1
    vpp: N = 1
    ep: N = 1
    etp: N = 1
    stage: N = 0
    tp_rank: N = 0  # of the ranks that divide a layer

    @property
    def shards(self) -> N:
        """Ranks that split one copy of the states."""
        return (
            np.where(self.shard == 0, self.dp, self.shard) if isinstance(self.dp, np.ndarray) else self.shard or self.dp
        )

    @property
    def replicas(self) -> N:
        """Groups of ranks that hold copies of the same shards."""
        return self.dp // self.shards

    @property
    def shard_index(self) -> N:
        """Which of the shards `rank` holds."""
        return self.rank % self.shards

    @property
    def world(self) -> N:
        """Number of ranks."""
        return self.dp * self.tp * self.cp * self.pp

    def nodes(self) -> int:
        """Whole nodes the ranks stand on (single mapping only)."""
        return -(-int(self.world) // int(self.per_node))


def rank_of(world_rank: int, mesh: Mesh) -> dict[str, int]:
    """Coordinates of a rank: which replica group, which shard in it, which node."""
    shards = int(mesh.shards)
    return {"replicate": world_rank // shards, "shard": world_rank % shards, "node": world_rank // int(mesh.per_node)}
