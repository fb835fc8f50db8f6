"""Links: which link a group of ranks uses, and how long a collective on it takes.

Ranks are numbered tensor-parallel first, then context, data and pipeline. A group of `size` ranks that stand `stride` apart
has as many of them in one domain of fast links as fit; beyond it a ring passes each domain once, on the network shares of
those ranks, which together are worth less than their sum. Times are those of rings: (n - 1)/n of the bytes, twice for an
all-reduce (Thakur et al. 2005).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish.mesh import Mesh, N
from burnish.rates import Rates


@dataclass(frozen=True)
class Group:
    """Ranks that talk: how many, how many of them share fast links, and what a rank gets of which link."""

    size: N
    inside: N
    bandwidth: N
    latency: N

    @property
    def crosses(self) -> N:
        """Whether the group leaves the domain of fast links."""
        return self.inside < self.size


def group(size: N, stride: N, rates: Rates) -> Group:
    """`size` ranks, `stride` apart."""
    inside = np.clip(rates.domain // np.maximum(stride, 1), 1, size)
    out = inside < size
    bandwidth = np.where(out, np.minimum(rates.link, rates.network * inside**rates.rails), rates.link)
    latency = np.where(out, rates.network_latency, rates.link_latency)
    return Group(size, inside, bandwidth, latency)


def groups(mesh: Mesh, rates: Rates) -> dict[str, Group]:
    """The groups of every axis. Experts lie over the ranks of a stage, neighbours first; `expert` holds copies of them."""
    ranks = mesh.tp * mesh.cp * mesh.dp
    spread = mesh.ep * mesh.etp
    return {
        "tp": group(mesh.tp, 1, rates),
        "cp": group(mesh.cp, mesh.tp, rates),
        "dp": group(mesh.dp * mesh.cp, mesh.tp, rates),
        "ep": group(spread, 1, rates),
        "expert": group(np.maximum(ranks // spread, 1), spread, rates),
        "pp": group(mesh.pp, ranks, rates),
    }


def ring_seconds(group: Group, size: N, calls: N, rounds: int = 1) -> N:
    """Seconds of `calls` all-gathers or reduce-scatters (`rounds` 1) or all-reduces (2) of `size` bytes in all."""
    share = (group.size - 1) / np.maximum(group.size, 1)
    return rounds * (size * share / group.bandwidth) + np.where(group.size > 1, calls * group.latency, 0.0)


def all_to_all_seconds(group: Group, size: N, calls: N, rates: Rates) -> N:
    """Seconds of all-to-alls in which a rank sends `size` bytes: what stays in its domain on the fast link, the rest on its
    own share of the network."""
    n = np.maximum(group.size, 1)
    near, far = (group.inside - 1) / n, (n - group.inside) / n
    return size * np.maximum(near / rates.link, far / rates.network) + np.where(n > 1, calls * group.latency, 0.0)
