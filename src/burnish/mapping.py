"""Mapping: how a job is laid on its accelerators, as plain numbers; each may be an array with one entry per candidate."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.mesh import N

# What backward runs again. "attention": scores only (Korthikanti et al. 2022, selective). "products": all but matrix
# products, of which every second is kept (per-operation selection). "full": each layer keeps its input only.
RECOMPUTE = ("none", "attention", "products", "full")
# Order of forward and backward passes of a pipeline; interleaving is 1f1b with vpp > 1.
SCHEDULE = ("gpipe", "1f1b", "zero-bubble")
# Where stages are cut: between whole layers; so that they take equally long; so that they have equally many parameters.
CUT = ("layers", "time", "parameters")
OFFLOAD = ("none", "optimizer", "states")


@dataclass(frozen=True)
class Mapping:
    """Degrees of parallelism and what goes with them; ranks are numbered tp first, then cp, dp and pp.

    `shard` ranks of the dp * cp ones split one copy of the states (0 = all of them). `ep` and `etp` lay experts over the
    dp * cp * tp ranks of a stage.
    """

    tp: N = 1
    pp: N = 1
    dp: N = 1
    cp: N = 1
    ep: N = 1
    etp: N = 1
    vpp: N = 1  # chunks of layers a pipeline stage holds
    zero: N = 0
    shard: N = 0
    sp: N = 0  # sequence parallel: what tensor parallelism would repeat is split by tokens
    micro_batch: N = 1  # sequences
    recompute: N = 0  # index into RECOMPUTE
    schedule: N = 1  # index into SCHEDULE
    offload: N = 0  # index into OFFLOAD

    @property
    def gpus(self) -> N:
        """Accelerators in use."""
        return self.tp * self.pp * self.dp * self.cp
