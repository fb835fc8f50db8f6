"""When stages of a pipeline run what: idle time as published, no pass before what it needs, and honest shortening."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.plan_schedule import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Pipeline,
    idle,
    needs,
    order,
    shortened,
    timeline,
)


@st.composite
def pipelines(draw: st.DrawFn, schedules: tuple[str, ...] = ("1f1b", "gpipe", "zero-bubble")) -> Pipeline:
    """Small pipelines; with chunks, micro batches come in rounds of one a stage."""
    stages, chunks = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    rounds = draw(st.integers(1, 9))
    forward = draw(st.sampled_from([1.0, 0.5, 3.0]))
    backward = forward * draw(st.sampled_from([2.0, 3.0]))
    chunks = chunks if stages > 1 else 1
    return Pipeline(stages, chunks, rounds * stages, forward, backward, draw(st.sampled_from(schedules)))


@given(pipelines(("1f1b", "gpipe")))
def test_every_stage_waits_one_micro_batch_of_every_other_by_chunks(pipeline: Pipeline) -> None:
    line = timeline(pipeline)
    expected = (pipeline.stages - 1) * (pipeline.forward + pipeline.backward) / pipeline.chunks
    for stage in range(pipeline.stages):
        assert idle(line, stage) == pytest.approx(expected, abs=1e-9)


@given(pipelines(("zero-bubble",)))
def test_zero_bubble_fills_what_gradients_of_weights_can_fill(pipeline: Pipeline) -> None:
    line = timeline(pipeline)
    expected = (pipeline.stages - 1) * (pipeline.backward - pipeline.forward) / pipeline.chunks
    for stage in range(pipeline.stages):
        assert idle(line, stage) == pytest.approx(expected, abs=1e-9)


@given(pipelines())
def test_each_pass_runs_once_after_what_it_needs_and_alone(pipeline: Pipeline) -> None:
    line = timeline(pipeline)
    ends = {(cell.stage, (cell.kind, cell.chunk, cell.micro_batch)): cell.end for cell in line.cells}
    kinds = 3 if pipeline.weight else 2
    assert len(ends) == len(line.cells) == kinds * pipeline.stages * pipeline.chunks * pipeline.micro_batches
    for cell in line.cells:
        need = needs(pipeline, cell.stage, (cell.kind, cell.chunk, cell.micro_batch))
        assert need is None or ends[need] <= cell.start + 1e-9
    for stage in range(pipeline.stages):
        row = [cell for cell in line.cells if cell.stage == stage]
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(row))


def test_one_forward_one_backward_keeps_as_many_micro_batches_as_stages_behind() -> None:
    pipeline = Pipeline(4, 1, 9, 1.0, 2.0)
    for stage in range(4):
        most = running = 0
        for kind, _, _ in order(pipeline, stage):
            running += {FORWARD: 1, BACKWARD: -1}[kind]
            most = max(most, running)
        assert most == 4 - stage


def test_passes_of_the_last_of_two_stages_are_those_of_the_paper() -> None:
    said = [(kind[0], chunk, micro_batch) for kind, chunk, micro_batch in order(Pipeline(2, 2, 2, 1.0, 2.0), 1)]
    first = [("f", 0, 0), ("f", 0, 1), ("f", 1, 0), ("b", 1, 0)]
    assert said == [*first, ("f", 1, 1), ("b", 1, 1), ("b", 0, 0), ("b", 0, 1)]


def test_gradients_of_weights_wait_for_their_backward() -> None:
    passes = list(order(Pipeline(3, 1, 4, 1.0, 2.0, "zero-bubble"), 2))
    for micro_batch in range(4):
        assert passes.index((WEIGHT, 0, micro_batch)) > passes.index((BACKWARD, 0, micro_batch)) + 1 - (micro_batch > 1)


@given(pipelines(), st.integers(4, 12))
def test_what_is_left_of_a_long_step_is_what_the_whole_step_has_there(pipeline: Pipeline, times: int) -> None:
    longer = Pipeline(**{**vars(pipeline), "micro_batches": times * 4 * pipeline.stages})
    whole, short = timeline(longer), shortened(longer)
    assert short.seconds == pytest.approx(whole.seconds)
    starts = {
        (cell.stage, cell.kind, cell.chunk, cell.micro_batch): cell.start
        for cell in whole.cells
        if not any(low <= cell.start + 1e-9 and cell.end <= high + 1e-9 for low, high in short.cuts)
    }
    shown = {(cell.stage, cell.kind, cell.chunk, cell.micro_batch): cell.start for cell in short.cells}
    assert set(starts) <= set(shown)
    for key, start in starts.items():
        assert shown[key] == pytest.approx(start), key
    assert not short.cuts or len(short.cells) < len(whole.cells)


def test_a_short_step_is_shown_whole() -> None:
    assert shortened(Pipeline(4, 2, 8, 1.0, 2.0)).cuts == ()
    assert len(shortened(Pipeline(4, 1, 400, 1.0, 2.0)).cuts) == 1
    assert len(shortened(Pipeline(4, 1, 400, 1.0, 2.0, "gpipe")).cuts) == 2
    assert len(shortened(Pipeline(1, 1, 4000, 1.0, 2.0)).cells) < 20
