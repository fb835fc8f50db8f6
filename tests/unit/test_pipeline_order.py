"""The order in which a stage runs: torch's own, no two ranks waiting for each other, as many passes kept as a plan says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from burnish.mapping import SCHEDULE
from burnish.mesh import Mesh
from burnish.plan_schedule import BACKWARD, FORWARD, UNDERWAY, Pipeline, order
from burnish.techniques.pipeline import in_flight

Event = tuple[
    str, tuple[str, int, int, int]
]  # what is done, and the message: phase, sender's chunk, micro batch, sender


def pipelines() -> st.SearchStrategy[Pipeline]:
    def made(stages: int, chunks: int, rounds: int, rest: int, schedule: str) -> Pipeline:
        chunks = 1 if schedule == "gpipe" else chunks
        micro = stages * rounds + (0 if chunks > 1 else rest)
        return Pipeline(stages, chunks, micro, 1.0, 1.0, schedule)

    return st.builds(
        made,
        st.integers(2, 7),
        st.integers(1, 4),
        st.integers(1, 4),
        st.integers(0, 3),
        st.sampled_from(("gpipe", "1f1b")),
    )


def events(pipeline: Pipeline, stage: int, late: int) -> list[Event]:
    """What a stage does with messages, as the engine and its links do: receive, send, wait for the `late`-last send."""
    last_stage, last_chunk = pipeline.stages - 1, pipeline.chunks - 1
    done: list[Event] = []
    sent: dict[str, list] = {FORWARD: [], BACKWARD: []}
    for kind, chunk, micro in order(pipeline, stage):
        begins, ends = (stage, chunk) == (0, 0), (stage, chunk) == (last_stage, last_chunk)
        if kind == FORWARD and not begins:
            done.append(("receive", (kind, chunk - (stage == 0), micro, (stage - 1) % pipeline.stages)))
        if kind == BACKWARD and not ends:
            done.append(("receive", (kind, chunk + (stage == last_stage), micro, (stage + 1) % pipeline.stages)))
        if not (ends if kind == FORWARD else begins):
            sent[kind].append((kind, chunk, micro, stage))
            done.append(("send", sent[kind][-1]))
            if len(sent[kind]) > late:
                done.append(("wait", sent[kind].pop(0)))
    return done


def stops(pipeline: Pipeline, late: int) -> bool:
    """Whether some stage never ends: a send is done when the other side receives it, and not before."""
    left = [events(pipeline, stage, late) for stage in range(pipeline.stages)]
    sent, received, moved = set(), set(), True
    while moved:
        moved = False
        for todo in left:
            while todo:
                what, message = todo[0]
                if (what == "receive" and message not in sent) or (what == "wait" and message not in received):
                    break
                (sent if what == "send" else received).add(message)
                todo.pop(0)
                moved = True
    return any(left)


@given(pipelines())
@settings(max_examples=150, deadline=None)
def test_no_two_stages_wait_for_each_other(pipeline):
    assert not stops(pipeline, UNDERWAY)
    assert not stops(pipeline, 1)


@given(pipelines())
@settings(max_examples=100, deadline=None)
def test_messages_of_one_way_match_in_their_order(pipeline):
    """The other side receives what a stage sends in the order it was sent, apart where two stages have two ways."""
    for stage in range(pipeline.stages):
        for phase, step in ((FORWARD, 1), (BACKWARD, -1)):
            to = (stage + step) % pipeline.stages
            sent = [m for what, m in events(pipeline, stage, UNDERWAY) if what == "send" and m[0] == phase]
            got = [
                m for what, m in events(pipeline, to, UNDERWAY) if what == "receive" and m[0] == phase and m[3] == stage
            ]
            assert sent == got


@given(pipelines())
@settings(max_examples=100, deadline=None)
def test_as_many_passes_are_kept_as_planned(pipeline):
    for stage in range(pipeline.stages):
        kept = most = 0
        for kind, _, _ in order(pipeline, stage):
            kept += 1 if kind == FORWARD else -1
            most = max(most, kept)
        mesh = Mesh(pp=pipeline.stages, vpp=pipeline.chunks, stage=stage)
        planned = in_flight(SCHEDULE.index(pipeline.schedule), pipeline.micro_batches, mesh)
        assert most == planned * pipeline.chunks


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("rounds", [1, 3])
def test_chunks_are_taken_in_torchs_order(stages, chunks, rounds):
    theirs = object.__new__(ScheduleInterleaved1F1B)
    theirs.n_local_stages, theirs.pp_group_size, theirs._n_microbatches = chunks, stages, stages * rounds
    theirs.microbatches_per_round = stages
    for stage in range(stages):
        wanted = [
            (
                FORWARD if action.computation_type.name == "FORWARD" else BACKWARD,
                action.stage_index // stages,
                action.microbatch_index,
            )
            for action in theirs._calculate_single_rank_operations(stage)
            if action is not None
        ]
        assert list(order(Pipeline(stages, chunks, stages * rounds, 1.0, 1.0), stage)) == wanted


@pytest.mark.sabotage
def test_sabotage_a_send_that_waits_until_it_is_received():
    assert stops(Pipeline(2, 1, 4, 1.0, 1.0), 0)
