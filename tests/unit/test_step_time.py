"""Step time: a whole step and its causes against closed forms, and arrays of mappings against mappings one by one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_setting import JOB, MODEL, NODES, STACK, machine, rates_of

from burnish.columns import columns
from burnish.data_time import data_seconds
from burnish.job import Job
from burnish.links import groups
from burnish.mapping import RECOMPUTE, SCHEDULE, Mapping
from burnish.parameters import parameters
from burnish.presets import preset
from burnish.price import layout, price, shapes_of
from burnish.rates import Rates, rates
from burnish.step_time import Step, bubble, mesh_of, step

FULL = RECOMPUTE.index("full")
ZERO_BUBBLE, GPIPE = SCHEDULE.index("zero-bubble"), SCHEDULE.index("gpipe")
# Its stages are equal but for the norm of the head and one token.
EQUAL = replace(MODEL, vocab=1, tied=0)


def stepped(mapping: Mapping, r: Rates, job: Job = JOB) -> Step:
    """A step of the job at rates that a test has set."""
    work, staged = layout(job.model, shapes_of(job, mapping, STACK), mapping, STACK)
    return step(work, staged, mapping, r, STACK)


@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (4, 1), (8, 1), (4, 2), (4, 8), (8, 4)])
def test_the_bubble_of_equal_stages(pp: int, vpp: int) -> None:
    """(pp - 1) / m of the other time of a step, and a chunk of it each when interleaved."""
    found = bubble(Mapping(pp=pp, vpp=vpp), np.float64(0.3), np.float64(0.3))
    assert found == pytest.approx((pp - 1) * 0.3 / vpp)
    mapping = Mapping(tp=8, pp=pp, dp=8 // pp, vpp=vpp, sp=1)
    made = stepped(
        mapping,
        rates_of(update=0.0, step=0.0, reduce=0.0, gather=0.0, network=1e30, link=1e30, link_latency=0.0, pp_shown=0.0),
        replace(JOB, model=EQUAL),
    )
    micro = 64 // mapping.dp
    busy = float(made.seconds) - float(made.parts["pipeline bubble"]) - float(made.parts["pipeline sends"])
    assert float(made.parts["pipeline bubble"]) / busy == pytest.approx((pp - 1) / micro / vpp, rel=0.025)


def test_bubbles_of_other_schedules() -> None:
    times = np.float64(0.3), np.float64(0.3)
    assert bubble(Mapping(pp=4, schedule=GPIPE), *times) == pytest.approx(0.9)
    assert bubble(Mapping(pp=4, schedule=ZERO_BUBBLE), *times) == pytest.approx(0.3)
    assert bubble(Mapping(pp=1), *times) == 0
    # stages that are faster than the slowest wait less: 4 x 0.25 - 0.3
    assert bubble(Mapping(pp=4), np.float64(0.3), np.float64(0.25)) == pytest.approx(0.7)


def test_sends_between_stages() -> None:
    """A layer's input each way, a chunk and micro batch; interleaving hides all but a share."""
    r = rates_of(network=2e10, network_latency=4e-5, pp_shown=0.25)
    size = 2 * 4096 * 4096 / 8
    one = stepped(Mapping(tp=8, pp=4, dp=2, sp=1), r).parts["pipeline sends"]
    assert float(one) == pytest.approx(2 * 32 * (size / 2e10 + 4e-5))
    chunks = stepped(Mapping(tp=8, pp=4, dp=2, vpp=8, sp=1), r).parts["pipeline sends"]
    assert float(chunks) == pytest.approx(0.25 * 8 * float(one))
    assert float(stepped(Mapping(tp=8, dp=8, sp=1), r).parts["pipeline sends"]) == 0


def test_the_optimizer_moves_the_states_a_rank_owns() -> None:
    r = rates_of(update=20.0, memory=2e12, step=0.01, tensor=0.0)
    count = int(parameters(MODEL))
    for zero, owned in ((0, count), (1, count / 64), (2, count / 64), (3, count / 64)):
        made = stepped(Mapping(dp=64, zero=zero), r)
        assert float(made.parts["optimizer"]) == pytest.approx(owned * 20 / 2e12 + 0.01, rel=1e-4)
    halves = stepped(Mapping(dp=64, zero=3, shard=8), r)
    assert float(halves.parts["optimizer"]) == pytest.approx(count / 8 * 20 / 2e12 + 0.01, rel=1e-4)


@pytest.mark.parametrize(
    ("zero", "whole", "units"),
    [(0, 0, 2 * 4), (1, 0, 4 + 2), (1, 1, 2 * 4 + 2)],
)
def test_gradients_and_parameters_at_the_end_of_a_step(zero: int, whole: int, units: int) -> None:
    """Bytes a parameter: an all-reduce of four-byte gradients, or their halves and a gather of two-byte parameters."""
    r = rates_of(dp_hidden=0.0, reduce=4.0, gather=2.0, whole=float(whole), rails=0.5, network=5e10, link=4e11)
    made = stepped(Mapping(dp=64, zero=zero), replace(r, network_latency=0.0))
    size = int(parameters(MODEL)) * units
    assert float(made.parts["data"]) == pytest.approx(size * 63 / 64 / (5e10 * 8**0.5), rel=1e-4)


def test_gathers_hide_behind_compute_up_to_a_share() -> None:
    """Stage 3: a gather beside forward, a gather and a reduce-scatter beside backward, the smooth maximum of order five."""
    r = rates_of("h100-sxm:1x8", fsdp_hidden=0.75, reduce=4.0, gather=2.0, link=4e11, link_latency=0.0)
    mapping = Mapping(dp=8, zero=3)
    around = groups(mesh_of(mapping, 8), r)
    compute = {"forward": np.array(0.01), "backward": np.array(0.02), "again": np.array(0.0)}
    found = data_seconds((np.array(8e9), np.array(0.0)), compute, mapping, 4, around, r)
    gather, scatter = 16e9 * 7 / 8 / 4e11, 32e9 * 7 / 8 / 4e11

    def beside(compute: float, traffic: float) -> float:
        return (compute**5 + (0.75 * traffic) ** 5) ** 0.2 + 0.25 * traffic

    expected = beside(0.01, gather) + beside(0.02, gather + scatter) - 0.03
    assert float(found.each) == pytest.approx(expected)
    assert float(found.once) == 0


def test_hybrid_sharding_gathers_in_a_node_and_sums_across() -> None:
    r = rates_of(dp_hidden=0.0, fsdp_hidden=0.0, reduce=4.0, gather=2.0, network=5e10, network_latency=0.0)
    mapping = Mapping(dp=64, zero=3, shard=8)
    around = groups(mesh_of(mapping, 8), r)
    still = {name: np.array(0.0) for name in ("forward", "backward", "again")}
    found = data_seconds((np.array(8e9), np.array(0.0)), still, mapping, 4, around, r)
    inside = 7 / 8 / r.link * 8e9 * (2 + 2 + 4) + 3 * r.link_latency
    assert float(found.each) == pytest.approx(inside)
    assert float(found.once) == pytest.approx(2 * 8e9 * 4 / 8 * 7 / 8 / 5e10)


TOTAL = 128 * 8192 * 8192 * 2  # bytes of a step's tokens between layers of the 70B model
COUNT = 70_553_706_496  # its parameters


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        # ten rings of a layer's tokens, two at the embedding and two at the loss, cross eight borders
        (Mapping(tp=64, sp=1, zero=0), (80 * 10 + 4) * TOTAL * 63 / 64 * 8),
        # one ring of all parameters, four-byte gradients and two-byte parameters, crosses eight borders
        (Mapping(dp=64, zero=1), COUNT * (4 + 2) * 63 / 64 * 8),
        # eight rings of an eighth of them
        (Mapping(tp=8, dp=8, sp=1, zero=1), COUNT * (4 + 2) * 7 / 8 * 8),
        # seven borders between stages, there and back; five chunks a stage pass them 7 x 5 + 4 times
        (Mapping(tp=8, pp=8, sp=1), 2 * 7 * TOTAL),
        (Mapping(tp=8, pp=8, sp=1, vpp=5), 2 * (7 * 5 + 4) * TOTAL),
        # on each of four stages a ring over two nodes for its layers, and three borders between them
        (Mapping(tp=16, pp=4, sp=1), (80 * 10 + 4) * TOTAL * 15 / 16 * 2 + 2 * 3 * TOTAL),
    ],
)
def test_bytes_across_nodes_of_70_billion_parameters(mapping: Mapping, expected: float) -> None:
    job = Job(preset("llama-3-70b"), seq=8192, global_batch=128)
    assert float(price(job, mapping, machine(), STACK).cross_node_bytes) == pytest.approx(expected, rel=1e-3)
    assert float(price(job, mapping, machine("h100-sxm:1x64"), STACK).cross_node_bytes) == 0


def test_full_recompute_adds_about_a_third_to_compute() -> None:
    plain, again = (price(JOB, Mapping(tp=8, dp=8, sp=1, recompute=k), machine(), STACK) for k in (0, FULL))
    assert float(plain.parts["recompute"]) == 0
    share = float(again.parts["recompute"]) / float(plain.parts["compute"])
    assert 0.17 < share < 1 / 3
    assert float(again.seconds) > float(plain.seconds)


@st.composite
def mappings(draw: Any) -> Mapping:
    """A mapping of 64 ranks."""
    tp = draw(st.sampled_from([1, 2, 4, 8, 16]))
    pp = draw(st.sampled_from([1, 2, 4]))
    cp = draw(st.sampled_from([1, 2]) if 64 // tp // pp > 1 else st.just(1))
    dp = 64 // tp // pp // cp
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    return Mapping(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        vpp=draw(st.sampled_from([1, 2, 4]) if pp > 1 else st.just(1)),
        zero=zero,
        shard=draw(st.sampled_from([0, *(n for n in (2, 8) if dp * cp % n == 0)])) if zero else 0,
        sp=draw(st.sampled_from([0, 1])),
        micro_batch=draw(st.sampled_from([m for m in (1, 2, 4) if 64 % (dp * m) == 0] or [1])),
        recompute=draw(st.sampled_from(range(len(RECOMPUTE)))),
        schedule=draw(st.sampled_from(range(len(SCHEDULE)))),
    )


JOBS = (
    JOB,
    replace(JOB, attention="unfused"),
    Job(preset("mixtral-8x7b"), seq=4096, global_batch=64, precision="fp8"),
    Job(preset("deepseek-v3"), seq=4096, global_batch=64),
)


@settings(max_examples=60, deadline=None)
@given(mappings(), st.sampled_from(JOBS), st.sampled_from([NODES, "h100-sxm:1x64", "h100-sxm:16x4"]))
def test_causes_add_up_to_the_seconds_and_none_is_negative(mapping: Mapping, job: Job, where: str) -> None:
    made = stepped(mapping, rates(job, machine(where), STACK), job)
    assert float(made.seconds) == pytest.approx(sum(map(float, made.parts.values())))
    assert all(float(seconds) >= -1e-9 for seconds in made.parts.values()), made.parts


@settings(max_examples=25, deadline=None)
@given(st.lists(mappings(), min_size=1, max_size=12), st.sampled_from(JOBS))
def test_an_array_of_candidates_is_candidates_one_by_one(candidates: list[Mapping], job: Job) -> None:
    many = price(job, columns(candidates), machine(), STACK)
    for k, mapping in enumerate(candidates):
        one = price(job, mapping, machine(), STACK)
        assert many.seconds[k] == pytest.approx(float(one.seconds))
        assert np.broadcast_to(many.cross_node_bytes, len(candidates))[k] == pytest.approx(float(one.cross_node_bytes))
        for cause, seconds in one.parts.items():
            own = np.broadcast_to(many.parts[cause], len(candidates))[k]
            assert own == pytest.approx(float(seconds), abs=1e-9), cause


@settings(max_examples=60, deadline=None)
@given(mappings(), st.sampled_from(JOBS), st.sampled_from(["link", "network", "chip"]), st.floats(1, 16))
def test_more_bandwidth_is_never_slower(mapping: Mapping, job: Job, part: str, faster: float) -> None:
    here = machine()
    own = getattr(here, part)
    there = replace(here, **{part: replace(own, bandwidth=own.bandwidth * faster)})
    slow, fast = (float(stepped(mapping, rates(job, where, STACK), job).seconds) for where in (here, there))
    # sums over copies of shards hide behind compute, which is less then, also where it is hidden itself behind gathers
    assert fast <= slow * 1.002


def test_no_rate_is_negative() -> None:
    own = rates_of()
    assert all(getattr(own, field.name) >= 0 for field in fields(own))
