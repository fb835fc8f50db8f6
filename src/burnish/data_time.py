"""Data time: seconds of the traffic that keeps data-parallel ranks together, as far as it shows beside compute.

Stages 0 and 1 move gradients once a step, behind the last backward, stage 2 reduces them in every backward, stage 3 also
gathers parameters for every forward and backward, a layer ahead (Rajbhandari et al. 2020, section 7; Zhao et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish.links import Group, ring_seconds
from burnish.mapping import OFFLOAD, Mapping
from burnish.mesh import N, pick
from burnish.rates import Rates
from burnish.timing import longer, shorter

SHARDED = 3  # ZeRO stage that splits parameters
STATES = OFFLOAD.index("states")


@dataclass(frozen=True)
class Traffic:
    """Seconds that show: once a step, and in each micro batch."""

    once: N
    each: N


def shards(mapping: Mapping) -> N:
    """Ranks that split one copy of the states."""
    ranks = mapping.dp * mapping.cp
    return pick(np.asarray(mapping.shard) == 0, ranks, np.minimum(mapping.shard, ranks))


def expert_copies(mapping: Mapping) -> N:
    """Ranks that hold the same experts."""
    return np.maximum(mapping.dp * mapping.cp * mapping.tp // (mapping.ep * mapping.etp), 1)


def data_seconds(
    parameters: tuple[N, N], compute: dict[str, N], mapping: Mapping, micro: N, around: dict[str, Group], r: Rates
) -> Traffic:
    """Traffic of a rank with so many (dense, expert) parameters, beside a micro batch's `compute` seconds by phase."""
    dense, routed = parameters
    zero = np.asarray(mapping.zero)
    near = _neighbours(mapping, around["dp"], r)
    scatter = ring_seconds(near, dense * r.reduce, 1) + ring_seconds(around["expert"], routed * r.reduce, 1)
    gather = ring_seconds(near, dense * r.gather, 1) + ring_seconds(around["expert"], routed * r.gather, 1)
    copies = _copies(mapping, around["dp"], r)
    across = ring_seconds(copies, dense * r.reduce / np.maximum(shards(mapping), 1), 1, 2) * (copies.size > 1)
    summed = pick(zero == 0, 2 * scatter, pick(zero == 1, scatter * (1 + r.whole) + gather, gather))
    at_end = pick(zero == SHARDED, 0.0, summed) + across
    forward, backward = compute["forward"], compute["backward"] + compute["again"]
    once = at_end - shorter(at_end, r.dp_hidden * (forward + backward))
    sharded = _beside(forward, gather, r) + _beside(backward, gather + scatter, r)
    reduced = forward + _beside(backward, scatter, r)
    each = pick(zero == SHARDED, sharded, pick((zero == 2) & (np.asarray(micro) > 0), reduced, forward + backward))
    return Traffic(once, each - forward - backward + _fetched(parameters, mapping, r))


def _fetched(parameters: tuple[N, N], mapping: Mapping, r: Rates) -> N:
    """Seconds in which offloaded parameters come from host memory, for forward and again for backward.

    Of fully sharded parameters each rank brings its own share (Rajbhandari et al. 2021, arXiv 2104.07857, section 5).
    """
    split = np.asarray(mapping.zero) == SHARDED
    dense, routed = parameters
    own = dense / pick(split, shards(mapping), 1) + routed / pick(split, expert_copies(mapping), 1)
    return pick(np.asarray(mapping.offload) == STATES, 2 * own * r.gather / r.host_link, 0.0)


def _beside(compute: N, traffic: N, r: Rates) -> N:
    """Seconds of compute and traffic at once: a share of the traffic cannot hide."""
    hides = r.fsdp_hidden * traffic
    return longer(compute, hides) + traffic - hides


def _neighbours(mapping: Mapping, where: Group, r: Rates) -> Group:
    """The group that splits one copy of the states: neighbours among the data-parallel ranks."""
    size = shards(mapping)
    inside = np.minimum(where.inside, size)
    out = inside < size
    return Group(size, inside, np.where(out, where.bandwidth, r.link), np.where(out, r.network_latency, r.link_latency))


def _copies(mapping: Mapping, where: Group, r: Rates) -> Group:
    """The group of ranks that hold the same shard."""
    size = np.maximum(mapping.dp * mapping.cp // shards(mapping), 1)
    inside = np.maximum(where.inside // shards(mapping), 1)
    out = inside < size
    far = np.minimum(r.network * inside**r.rails, r.link)
    return Group(size, inside, np.where(out, far, r.link), np.where(out, r.network_latency, r.link_latency))
