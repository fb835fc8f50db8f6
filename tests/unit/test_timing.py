"""Timing: seconds of one layer against closed forms written out here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timed_setting import JOB, MODEL, STACK, machine, rates_of

from burnish.links import groups
from burnish.mapping import RECOMPUTE, Mapping
from burnish.price import layout, shapes_of
from burnish.rates import Rates, rates
from burnish.stack import Stack
from burnish.step_time import mesh_of
from burnish.timing import Layer, layer_seconds, longer, narrow, product_seconds
from burnish.work import Block

FULL = RECOMPUTE.index("full")
# norm, q, k, v, rotation, attention, o, sum; norm, gate, up, activation, down, sum
KERNELS = 14
FREE = {"launch": 0.0, "gap": 0.0}
TOKENS, ELEMENT = JOB.seq, 2


def layer(mapping: Mapping, rates: Rates, stack: Stack = STACK, sharded: int = 0) -> Layer:
    """The seconds of a layer of the job under a mapping."""
    return layer_seconds(block(mapping, stack), ELEMENT, sharded, rates, groups(mesh_of(mapping, 8), rates))


def block(mapping: Mapping, stack: Stack = STACK) -> Block:
    """The layer itself."""
    work, _ = layout(MODEL, shapes_of(JOB, mapping, stack), mapping, stack)
    return next(block for block in work.blocks if block.name == "layer")


def test_a_chip_of_an_unknown_generation_is_refused_by_name() -> None:
    made = machine()
    other = replace(made, chip=replace(made.chip, architecture="unheard-of"))
    with pytest.raises(ValueError, match=r"'unheard-of'.*hopper"):
        rates(JOB, other, STACK)


def test_the_smooth_maximum_at_its_limits() -> None:
    assert longer(3.0, 0.0) == pytest.approx(3.0)
    assert longer(0.0, 2.0) == pytest.approx(2.0)
    assert longer(10.0, 1.0) == pytest.approx(10.0, rel=1e-5)
    assert longer(1.0, 1.0) == pytest.approx(1.1487, rel=1e-4)


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_the_smooth_maximum_lies_between_the_longer_and_a_seventh_more(a: float, b: float) -> None:
    assert max(a, b) * (1 - 1e-12) <= longer(a, b) <= max(a, b) * 1.1488
    assert longer(a, b) == pytest.approx(longer(b, a))


def test_products_reach_their_rate_as_they_grow() -> None:
    rates = rates_of(half=100.0)
    assert product_seconds(2e15, 1, 1e15, rates) == pytest.approx(2 * (1 + 100 / 1e5))
    assert product_seconds(2 * 100**3, 1, 1e9, rates) == pytest.approx(2 * 2 * 100**3 / 1e9)
    # eight products of an eighth: a side half as long for the same work
    once, parts = (product_seconds(2 * 1000**3, n, 1e9, rates) for n in (1, 8))
    assert (once, parts) == (pytest.approx(2 * 1.1), pytest.approx(2 * 1.2))


def test_narrow_heads_take_longer() -> None:
    rates = rates_of(head_half=16.0)
    assert narrow(128, rates) == pytest.approx(1.0)
    assert narrow(64, rates) == pytest.approx((1 + 16 / 64) / (1 + 16 / 128))
    assert narrow(256, rates) < 1


def test_a_device_without_limits_waits_for_its_launches() -> None:
    endless = dict.fromkeys(("matmul", "attention", "head", "memory", "link", "network"), 1e30)
    rates = rates_of(**endless, launch=2e-5, launch_backward=1.5, gap=0.0)
    made = layer(Mapping(dp=64), rates)
    assert made.forward == pytest.approx(KERNELS * 2e-5)
    assert made.backward == pytest.approx(1.5 * KERNELS * 2e-5)
    assert made.waits == pytest.approx(2.5 * KERNELS * 2e-5)
    again = layer(Mapping(dp=64, recompute=FULL), rates)
    assert again.again == pytest.approx(KERNELS * 2e-5)
    unfused = replace(JOB, attention="unfused")
    work, _ = layout(MODEL, shapes_of(unfused, Mapping(dp=64), STACK), Mapping(dp=64), STACK)
    stored = layer_seconds(work.blocks[1], ELEMENT, 0, rates, groups(mesh_of(Mapping(dp=64), 8), rates))
    assert stored.forward == pytest.approx((KERNELS + 4) * 2e-5)


def test_products_and_attention_without_anything_else() -> None:
    """Six linear layers at one rate, causal attention at another, and backward twice the products and 2.5 times attention."""
    rates = rates_of(
        **FREE, memory=1e30, half=0.0, matmul=4e14, attention=2e14, matmul_backward=0.5, attention_backward=0.8
    )
    made = layer(Mapping(dp=64), rates)
    hidden, keys, ffn = 4096, 8 * 128, 14336
    products = 2 * TOKENS * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * ffn) / 4e14
    attention = 4 * TOKENS * TOKENS * hidden / 2 / 2e14
    assert made.forward == pytest.approx(products + attention)
    assert made.backward == pytest.approx(2 * products / 0.5 + 2.5 * attention / 0.8)
    assert made.waits == pytest.approx(0, abs=1e-12)
    frozen = layer(Mapping(dp=64), replace(rates, trained=0.0))
    assert frozen.backward == pytest.approx(products / 0.5 + 2.5 * attention / 0.8)


def test_bytes_of_a_layer_at_the_speed_of_memory() -> None:
    """Norms read and write, sums read two and write one, rotation and activation as wide as they are."""
    endless = dict.fromkeys(("matmul", "attention", "head", "link", "network"), 1e30)
    plain = {"half": 0.0, "traffic": 1.0, "traffic_backward": 2.0, "norm": 0.0, "cast": 0.0, "accumulate": 0.0}
    rates = rates_of(**FREE, **endless, **plain, memory=1e12)
    moved = 2 * TOKENS * (2 * 2 * 4096 + 2 * 3 * 4096 + 2 * (32 + 8) * 128 + 3 * 14336)
    made = layer(Mapping(dp=64), rates)
    assert made.forward == pytest.approx(moved / 1e12)
    assert made.backward == pytest.approx(2 * moved / 1e12)
    unfused = layer(Mapping(dp=64), replace(rates, norm=100.0))
    assert unfused.forward - made.forward == pytest.approx(100 * 2 * TOKENS * 4096 / 1e12)
    summed = layer(Mapping(dp=64), replace(rates, accumulate=5.0))
    parameters = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert summed.backward - made.backward == pytest.approx(5 * parameters / 1e12)
    assert summed.forward == made.forward


def test_full_recompute_runs_about_one_forward_more() -> None:
    rates = rates_of(**FREE)
    plain, again = layer(Mapping(tp=8, dp=8, sp=1), rates), layer(Mapping(tp=8, dp=8, sp=1, recompute=FULL), rates)
    assert plain.again == pytest.approx(0)
    assert again.again == pytest.approx(plain.forward)
    assert (again.forward, again.backward) == (pytest.approx(plain.forward), pytest.approx(plain.backward))
    scores = layer(Mapping(tp=8, dp=8, sp=1, recompute=RECOMPUTE.index("attention")), rates)
    assert 0 < scores.recompute < 0.3 * again.recompute


@pytest.mark.parametrize("sequence", [0, 1])
def test_tensor_parallel_traffic_hides_inside_a_domain_only(sequence: int) -> None:
    """Four all-reduces of a layer's input, or eight halves of one: the same bytes, twice the calls.

    Inputs kept in parts are gathered twice more, beside products that do not wait for them.
    """
    # products so slow that all hides behind them that may
    slow = {"matmul": 1e11, "head": 1e11}
    rates = rates_of(tp_shown=0.2, link=4e11, network=5e10, rails=0.5, link_latency=1e-5, network_latency=3e-5, **slow)
    size = 2 * TOKENS * 4096
    calls = 8 if sequence else 4
    inside = layer(Mapping(tp=8, dp=8, sp=sequence), rates)
    assert inside.tensor == pytest.approx(0.2 * (8 * size * 7 / 8 / 4e11 + calls * 1e-5))
    across = layer(Mapping(tp=16, dp=4, sp=sequence), rates)
    assert across.tensor == pytest.approx(8 * size * 15 / 16 / (5e10 * 8**0.5) + calls * 3e-5)
    assert layer(Mapping(tp=1, dp=64, sp=0), rates).tensor == 0


def test_context_parallel_ranks_pass_keys_and_values_round() -> None:
    """Keys and values of three other ranks in forward, twice as much in backward; only what does not hide counts."""
    rates = rates_of(cp_shown=0.25, link=4e11, link_latency=1e-5, attention=1e11)
    made = layer(Mapping(cp=4, dp=16), rates)
    kept = 2 * TOKENS // 4 * 8 * 2 * 128
    assert made.context == pytest.approx(0.25 * (3 * 3 * kept / 4e11 + 2 * 3 * 1e-5))


@given(
    tp=st.sampled_from([1, 2, 4, 8, 16]),
    cp=st.sampled_from([1, 2]),
    recompute=st.sampled_from(range(len(RECOMPUTE))),
    name=st.sampled_from(["matmul", "attention", "head", "memory", "link", "network"]),
    faster=st.floats(1, 20),
)
def test_nothing_faster_makes_a_layer_slower(tp: int, cp: int, recompute: int, name: str, faster: float) -> None:
    mapping, rates = Mapping(tp=tp, cp=cp, dp=64 // tp // cp, sp=1, recompute=recompute), rates_of()
    fast = layer(mapping, replace(rates, **{name: getattr(rates, name) * faster}))
    slow = layer(mapping, rates)
    for phase in ("forward", "backward", "again"):
        assert np.all(getattr(fast, phase) <= getattr(slow, phase) * (1 + 1e-12))


def test_experts_get_their_tokens_by_four_all_to_alls() -> None:
    """Two of eight experts a token; there and back, forward and backward; products of experts at a share of the rate."""
    model = replace(MODEL, ffn=0, experts=8, topk=2, expert_ffn=2048, expert_layers=32)
    job, mapping = replace(JOB, model=model), Mapping(dp=64, ep=8)
    rates = rates_of(**FREE, ep_shown=0.5, link=4e11, link_latency=1e-5, memory=1e30, half=0.0, attention=1e30)
    rates = replace(rates, matmul=4e14, head=4e14, grouped=0.5, matmul_backward=1.0)
    work, _ = layout(model, shapes_of(job, mapping, STACK), mapping, STACK)
    made = layer_seconds(work.blocks[-2], ELEMENT, 0, rates, groups(mesh_of(mapping, 8), rates))
    sent = 2 * 2 * TOKENS * 4096
    assert made.expert == pytest.approx(0.5 * 4 * (sent * 7 / 8 / 4e11 + 1e-5))
    attending = 2 * TOKENS * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8) / 4e14
    experts = 2 * 2 * TOKENS * 3 * 4096 * 2048 / 2e14
    assert made.forward == pytest.approx(attending + experts + made.expert / 2)
