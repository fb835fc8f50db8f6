"""Links: which link a group of ranks uses, and rings and all-to-alls on it in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timed_setting import rates_of

from burnish.links import all_to_all_seconds, group, groups, ring_seconds
from burnish.mesh import Mesh

LINK, NETWORK, NEAR, FAR = 400e9, 25e9, 1e-5, 3e-5
R = rates_of(link=LINK, network=NETWORK, link_latency=NEAR, network_latency=FAR, rails=0.5, domain=8)
SIZE = 3e9


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("calls", [1, 5])
def test_rings_inside_a_domain(n: int, calls: int) -> None:
    ranks = group(n, 1, R)
    assert ring_seconds(ranks, SIZE, calls) == pytest.approx((n - 1) / n * SIZE / LINK + calls * NEAR)
    assert ring_seconds(ranks, SIZE, calls, 2) == pytest.approx(2 * (n - 1) / n * SIZE / LINK + calls * NEAR)


def test_one_rank_sends_nothing_and_waits_for_nobody() -> None:
    assert ring_seconds(group(1, 1, R), SIZE, 7, 2) == 0
    assert all_to_all_seconds(group(1, 1, R), SIZE, 7, R) == 0


@pytest.mark.parametrize(
    ("size", "stride", "inside", "bandwidth"),
    [
        (8, 1, 8, LINK),
        (4, 2, 4, LINK),
        (8, 2, 4, NETWORK * 2),  # four neighbours of each domain share their ports: 4 ** 0.5
        (16, 1, 8, NETWORK * 8**0.5),
        (8, 8, 1, NETWORK),
        (8, 64, 1, NETWORK),
        (6, 3, 2, NETWORK * 2**0.5),
    ],
)
def test_the_link_a_group_gets(size: int, stride: int, inside: int, bandwidth: float) -> None:
    ranks = group(size, stride, R)
    assert (ranks.size, ranks.inside) == (size, inside)
    assert ranks.bandwidth == pytest.approx(bandwidth)
    assert ranks.crosses == (inside < size)
    assert ranks.latency == (FAR if inside < size else NEAR)


def test_many_ports_are_no_faster_than_the_fast_link() -> None:
    wide = rates_of(link=LINK, network=LINK / 2, rails=1.0, domain=8)
    assert group(64, 1, wide).bandwidth == LINK


def test_a_rack_of_one_domain_keeps_its_groups_inside() -> None:
    rack = rates_of("gb200:72", link=LINK, network=NETWORK)
    assert not group(64, 1, rack).crosses
    assert not group(9, 8, rack).crosses
    assert group(10, 8, rack).crosses


def test_all_to_all_sends_most_of_it_through_a_ranks_own_port() -> None:
    """16 ranks, 8 of them near: 7/16 on the fast link beside 8/16 on the network, whichever is longer."""
    assert all_to_all_seconds(group(16, 1, R), SIZE, 2, R) == pytest.approx(SIZE / 2 / NETWORK + 2 * FAR)
    assert all_to_all_seconds(group(8, 1, R), SIZE, 2, R) == pytest.approx(SIZE * 7 / 8 / LINK + 2 * NEAR)


def test_groups_of_all_axes() -> None:
    """Numbered tp first, then cp, dp and pp; experts over neighbours of a stage, their copies as far apart as they reach."""
    found = groups(Mesh(tp=4, cp=2, dp=8, pp=3, ep=16, etp=1), R)
    sizes = {axis: (int(g.size), int(g.inside)) for axis, g in found.items()}
    assert sizes == {"tp": (4, 4), "cp": (2, 2), "dp": (16, 2), "ep": (16, 8), "expert": (4, 1), "pp": (3, 1)}


@given(
    size=st.integers(1, 256),
    stride=st.integers(1, 128),
    link=st.floats(1e9, 1e12),
    network=st.floats(1e8, 1e12),
    faster=st.floats(1, 10),
    rails=st.floats(0, 1),
)
def test_more_bandwidth_is_never_slower(
    size: int, stride: int, link: float, network: float, faster: float, rails: float
) -> None:
    slow = rates_of(link=link, network=network, rails=rails)
    for change in ({"link": link * faster}, {"network": network * faster}):
        fast = rates_of(**{"link": link, "network": network, "rails": rails, **change})
        for time in (
            lambda r: ring_seconds(group(size, stride, r), SIZE, 1, 2),
            lambda r: all_to_all_seconds(group(size, stride, r), SIZE, 1, r),
        ):
            assert time(fast) <= time(slow) * (1 + 1e-12)


@given(st.lists(st.tuples(st.integers(1, 512), st.integers(1, 512)), min_size=1, max_size=20))
def test_arrays_of_groups_are_groups_one_by_one(pairs: list[tuple[int, int]]) -> None:
    sizes, strides = (np.array(column) for column in zip(*pairs, strict=True))
    many = group(sizes, strides, R)
    rings, spread = ring_seconds(many, SIZE, 3, 2), all_to_all_seconds(many, SIZE, 3, R)
    for k, (size, stride) in enumerate(pairs):
        one = group(size, stride, R)
        assert rings[k] == pytest.approx(ring_seconds(one, SIZE, 3, 2))
        assert spread[k] == pytest.approx(all_to_all_seconds(one, SIZE, 3, R))
