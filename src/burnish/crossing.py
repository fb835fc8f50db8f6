"""Crossing: bytes that all ranks together send beyond their domains of fast links in one step.

A ring passes the border of each domain once, with (n - 1)/n of the bytes of a collective.
"""

from __future__ import annotations

import numpy as np

from burnish.links import Group
from burnish.mapping import Mapping
from burnish.mesh import N, pick
from burnish.rates import Rates
from burnish.work import Work


def crossing_bytes(
    staged: Work, parameters: tuple[N, N], mapping: Mapping, around: dict[str, Group], width: N, r: Rates
) -> N:
    """Bytes across domains of the work of three stages, the middle one standing for all between."""
    pp = np.asarray(mapping.pp)
    ranks = mapping.tp * mapping.cp * mapping.dp
    times = np.stack([1 + 0 * ranks, np.maximum(pp - 2, 0), (pp > 1) * 1])
    total: N = 0.0
    for block in staged.blocks:
        layers = (times * block.layers).sum(axis=0)
        for comm in (comm for op in block.ops for comm in op.comms):
            size = layers * comm.bytes * staged.micro
            where = around[comm.axis]
            if comm.kind in ("all_to_all", "p2p"):
                total = total + size * ranks * (where.size - where.inside) / np.maximum(where.size, 1)
            else:
                total = total + _ring(where, size, ranks) * (2 if comm.kind == "all_reduce" else 1)
    zero = np.asarray(mapping.zero)
    sums = pick(zero == 0, 2, pick(zero >= 2, staged.micro, 1 + (zero == 1) * r.whole))
    gathers = pick(zero == 3, 2 * staged.micro, pick(zero == 0, 0, 1))
    for size, where in zip(parameters, (around["dp"], around["expert"]), strict=True):
        moved = (times * size).sum(axis=0) * (r.reduce * sums + r.gather * gathers)
        total = total + _ring(where, moved, ranks)
    sent = staged.bytes.activation * staged.tokens * width / mapping.tp
    return total + 2 * sent * staged.micro * ranks * borders(mapping, ranks, r)


def _ring(where: Group, size: N, ranks: N) -> N:
    n = np.maximum(where.size, 1)
    domains = np.where(where.crosses, where.size / where.inside, 0)
    return size * (n - 1) / n * domains * ranks / n


def borders(mapping: Mapping, ranks: N, r: Rates) -> N:
    """Borders between chunks of a pipeline that lie between domains: where stages share a domain most do not."""
    together = np.maximum(np.asarray(r.domain) // np.maximum(ranks, 1), 1)
    between = -(-np.asarray(mapping.pp) // together) - 1
    return mapping.vpp * between + (mapping.vpp - 1) * (between > 0)
