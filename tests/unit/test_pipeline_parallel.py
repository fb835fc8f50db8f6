"""Pipeline parallelism as predicted: whole layers of every stage, sends, micro batches in flight, arrays like ints."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_work import (
    ELEMENT,
    MICRO,
    SEQ,
    SIZES,
    TOKENS,
    check_arrays,
    described,
    figures,
    layer,
    model,
    parameters,
    sent,
    split,
)

from burnish import stage_cut
from burnish.describe import describe
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.presets import architecture_of
from burnish.shapes import Shapes
from burnish.techniques import pipeline
from burnish.work import flops, saved_bytes, state_bytes, transient_bytes

INPUT = TOKENS * SIZES["hidden"] * ELEMENT


def stages(config, pp: int, vpp: int = 1, **mesh) -> list:
    return [split(described(config, 4 * pp), Mesh(pp=pp, vpp=vpp, stage=s, **mesh)) for s in range(pp)]


def layers(count: int, pp: int, vpp: int = 1) -> list[int]:
    return [layer(work).layers for work in stages(model(layers=count), pp, vpp)]


@pytest.mark.parametrize(
    ("count", "pp", "vpp", "expected"),
    [
        (8, 4, 1, [2, 2, 2, 2]),
        (9, 4, 1, [2, 2, 3, 2]),
        (11, 4, 1, [3, 3, 3, 2]),
        (9, 2, 2, [5, 4]),
        (11, 2, 4, [6, 5]),
        # Llama 3 405B (arXiv 2407.21783, section 3.3.2): 126 layers on 16 stages, one fewer on the first and the last
        (126, 16, 1, [7, *[8] * 14, 7]),
    ],
)
def test_stages_have_whole_layers(count, pp, vpp, expected):
    assert layers(count, pp, vpp) == expected


def longest(count: int, pp: int, vpp: int, head: float) -> tuple[list[int], float]:
    """Layers of every chunk in order, and what the longest takes, in layers."""
    cuts = sorted(cut for s in range(pp) for cut in stage_cut.chunks(count, Mesh(pp=pp, vpp=vpp, stage=s), head))
    assert [start for start, _ in cuts[1:]] == [end for _, end in cuts[:-1]]
    assert (cuts[0][0], cuts[-1][1]) == (0, count)
    sizes = [end - start for start, end in cuts]
    return sizes, max(max(sizes[:-1], default=0), sizes[-1] + head)


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 4), st.floats(0, 12))
@settings(max_examples=200, deadline=None)
def test_no_cut_between_whole_layers_makes_the_longest_chunk_shorter(extra, pp, vpp, head):
    vpp = vpp if pp > 1 else 1
    count, others = pp * vpp + extra, pp * vpp - 1
    sizes, found = longest(count, pp, vpp, head)
    best = min(max(-(-(count - last) // max(others, 1)), last + head) for last in range(1, count - others + 1))
    assert min(sizes) >= 1
    assert found == pytest.approx(best if others else count + head)


@pytest.mark.parametrize(
    ("preset", "pp", "expected"),
    [("llama-3.1-8b", 4, [8, 8, 9, 7]), ("llama-3.1-405b", 16, [7, *[8] * 14, 7])],
)
def test_the_head_counts_as_what_its_products_take(preset, pp, expected):
    work = describe(architecture_of(preset), Shapes(rows=1, seq=8192, micro=pp))
    assert longest(sum(expected), pp, 1, work.head_layers)[0] == expected


def check_all_layers(count: int, pp: int, vpp: int) -> None:
    found = layers(count, pp, vpp)
    assert sum(found) == count
    assert max(found) - min(found) <= max(vpp, 2)


@given(st.integers(1, 60), st.integers(2, 6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_layer_stands_on_one_stage(extra, pp, vpp):
    check_all_layers(pp * vpp + extra, pp, vpp)


def check_whole(tied: bool) -> None:
    """Parameters, products and what is saved add up; a tied head is a second table, on the last stage, and the angles of
    positions are made on every stage."""
    config = model(tied=tied)
    parts, whole = stages(config, 3), described(config, 12)
    table = config.vocab * config.hidden
    assert sum(map(parameters, parts)) == config.parameters + tied * table
    assert [sum(counts) for counts in zip(*map(flops, parts), strict=True)] == list(flops(whole))
    assert sum(map(saved_bytes, parts)) == saved_bytes(whole) + 2 * SEQ * config.head_dim * ELEMENT
    held = [sum(state_bytes(work)["parameter"] for work in found) for found in (parts, [whole])]
    assert held[0] - held[1] == tied * table * 2


@pytest.mark.parametrize("tied", [True, False])
def test_stages_are_the_whole_together(tied):
    check_whole(tied)


@pytest.mark.parametrize("tp", [1, 2])
def test_ranks_of_tensor_and_pipeline_hold_the_whole(tp):
    config = model(vocab=332)
    norms = (2 * config.layers + 1) * config.hidden
    held = tp * sum(map(parameters, stages(config, 2, tp=tp)))
    assert held == config.parameters + (tp - 1) * norms


def test_a_tied_head_sums_its_gradient_with_the_embedding_once_a_step():
    first, middle, last = stages(model(tied=True), 3)
    both = {("step", "all_reduce"): (1, 331 * 64 * 4)}
    for work, expected in ((first, both), (middle, {}), (last, both)):
        assert {key: value for key, value in sent(work, "pp").items() if key[1] == "all_reduce"} == expected
    assert all(("step", "all_reduce") not in sent(work, "pp") for work in stages(model(), 3))


def test_logits_are_made_on_the_last_stage_only():
    assert [transient_bytes(work) > 0 for work in stages(model(), 3)] == [False, False, True]


def check_sends(pp: int, vpp: int) -> None:
    """Narayanan et al. 2021, section 4.1: a micro batch crosses each border once forward and once back."""
    micro = 4 * pp
    parts = stages(model(layers=12), pp, vpp)
    for stage, work in enumerate(parts):
        forward = micro * (vpp - (stage == pp - 1))
        backward = micro * (vpp - (stage == 0))
        expected = {("forward", "p2p"): forward, ("backward", "p2p"): backward}
        assert sent(work, "pp") == {key: (count, count * INPUT) for key, count in expected.items() if count}
    calls = sum(count for work in parts for count, _ in sent(work, "pp").values())
    assert calls == 2 * micro * (pp * vpp - 1)


@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (4, 1), (2, 3), (4, 3)])
def test_micro_batches_cross_each_border_once_each_way(pp, vpp):
    check_sends(pp, vpp)


def test_split_tokens_are_sent_in_parts():
    calls, size = sent(stages(model(), 2, tp=4)[0], "pp")["forward", "p2p"]
    assert size * 4 == calls * INPUT


def check_flight(pp: int, micro: int) -> None:
    """1F1B: pp - stage (section 2.2.1 there), never more than there are; GPipe: all."""
    for stage in range(pp):
        mesh = Mesh(pp=pp, stage=stage)
        assert split(described(model(), micro), mesh).flight == min(pp - stage, micro)
        assert split(described(model(), micro), mesh, schedule="gpipe").flight == micro


@pytest.mark.parametrize(("pp", "micro"), [(2, 1), (4, 3), (5, 20)])
def test_micro_batches_in_flight(pp, micro):
    check_flight(pp, micro)


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 3)])
def test_interleaving_holds_more(pp, vpp):
    """Korthikanti et al. 2022, section 4.2.3: 1 + (pp - 1)/(pp vpp) times as much on the first stage."""
    first = split(described(model(layers=12), 8 * pp), Mesh(pp=pp, vpp=vpp, stage=0))
    assert first.flight == pytest.approx(pp * (1 + (pp - 1) / (pp * vpp)))
    few = split(described(model(layers=12), 1), Mesh(pp=pp, vpp=vpp, stage=0))
    assert few.flight == 1


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=6
    )
)
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_arrays_give_what_ints_give(tied, schedule, points):
    points = [(pp, vpp, min(stage, pp - 1), micro) for pp, vpp, stage, micro in points]
    pp, vpp, stage, micro = (np.array(column) for column in zip(*points, strict=True))
    config = model(tied=tied, layers=9)

    def predicted(pp, vpp, stage, micro):
        made = pipeline.Config(schedule=schedule)
        return figures(pipeline.predict(made, described(config, micro), Mesh(pp=pp, vpp=vpp, stage=stage)))

    check_arrays(predicted(pp, vpp, stage, micro), [predicted(*point) for point in points])


@pytest.mark.parametrize(
    ("mesh", "schedule", "said"),
    [
        (Mesh(pp=6), "1f1b", "parallel.pp 6 x parallel.vpp 1 is more than the 5 layers; use at most 5"),
        (Mesh(pp=3, vpp=2), "1f1b", "is more than the 5 layers"),
        (Mesh(pp=2, vpp=2), "1f1b", "in rounds of parallel.pp 2, and a step has 3; make them a multiple of 2"),
        (Mesh(pp=2, vpp=2), "gpipe", "parallel.schedule gpipe takes no chunks; use parallel.vpp=1"),
    ],
)
def test_what_no_pipeline_can_do_is_refused(mesh, schedule, said):
    with pytest.raises(UserError, match=said):
        pipeline.check(pipeline.Config(schedule=schedule), described(model(), MICRO), mesh)


@pytest.mark.sabotage
def test_sabotage_layers_that_are_lost():
    with mock.patch.object(stage_cut, "least", lambda a, b: a), pytest.raises(AssertionError):
        check_all_layers(11, 4, 1)


@pytest.mark.sabotage
def test_sabotage_a_tied_head_without_its_table():
    with (
        mock.patch.object(pipeline, "_with_copy", lambda work, mesh: work.blocks),
        pytest.raises(AssertionError),
    ):
        check_whole(tied=True)


@pytest.mark.sabotage
def test_sabotage_every_micro_batch_in_flight():
    with mock.patch.object(pipeline, "GPIPE", 1), pytest.raises(AssertionError):
        check_flight(4, 9)


@pytest.mark.sabotage
def test_sabotage_the_last_chunk_sends_too():
    def without(config, work, mesh, table=None):
        return predict(config, work, Mesh(pp=mesh.pp + 1, vpp=mesh.vpp, stage=mesh.stage))

    predict = pipeline.predict
    with mock.patch.object(pipeline, "predict", without), pytest.raises(AssertionError):
        check_sends(2, 2)
