"""Claim: a pipeline splits a model between layers, holds with 1F1B what is in flight and no more, and computes the same."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch.distributed as dist

from burnish import ranks
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.measure import observed_step
from burnish.measure_live import LiveBytes
from burnish.mesh import Mesh
from burnish.prove.checkpointing import random_batch
from burnish.prove.claim import Verdict
from burnish.prove.tensor_parallel import named, plain, small_model
from burnish.simulate import step_bytes
from burnish.techniques import pipeline
from burnish.units import show
from burnish.work import Observation, Work, fold

STAGES, MICRO, ROWS, SEQ, STEPS, LR = 2, 8, 2, 64, 3, 1e-3
WAYS: dict[str, dict[str, str]] = {"GPipe": {"schedule": "gpipe"}, "1F1B": {"schedule": "1f1b"}}
TOLERANCE = 1e-5  # of losses, relative
CEILING = (0.85, 1.03)  # of the predicted peak


@dataclass(frozen=True)
class Seen:
    """One way on one stage: what its first step was predicted and observed to do, micro batches whose tensors stood at once,
    the most bytes of its second step and what was predicted of them, all losses."""

    predicted: Observation
    observed: Observation
    flight: int
    peak: int
    ceiling: int
    losses: list[float]


def batches() -> list[Batch]:
    """The micro batches of a step; every stage has them all."""
    whole = random_batch(small_model(), MICRO * ROWS, SEQ)
    cuts = [slice(start, start + ROWS) for start in range(0, MICRO * ROWS, ROWS)]
    return [Batch(whole.ids[cut], whole.labels[cut], whole.positions[cut], None) for cut in cuts]


def work_of(way: str, mesh: Mesh) -> Work:
    """The description of one stage."""
    return pipeline.predict(config_of(way, mesh), described(), mesh)


def described() -> Work:
    """The description of one process."""
    return describe(small_model(), Shapes(rows=ROWS, seq=SEQ, micro=MICRO))


def config_of(way: str, mesh: Mesh) -> pipeline.Config:
    """The settings of a way, with the weight of the head."""
    return pipeline.settle(pipeline.Config.model_validate(WAYS[way]), described(), mesh)


def observe_ways() -> list[Seen]:
    """On this rank: each way by itself."""
    return [observe(way) for way in WAYS]


def observe(way: str) -> Seen:
    """A few steps of one way, the first one observed, the bytes of the second one watched."""
    gc.collect()  # what is left of another way is no part of this one
    mesh, before = Mesh(pp=STAGES, stage=dist.get_rank()), LiveBytes()
    with before:
        trainable = plain()
        trainable.together(mesh)
        trainable = pipeline.apply(config_of(way, mesh), trainable, mesh)
        gc.collect()
    first, seen = observed_step(trainable, batches(), LR)
    with LiveBytes() as live:
        losses = [first.loss, trainable.step(batches(), LR).loss]
    losses += [trainable.step(batches(), LR).loss for _ in range(STEPS - len(losses))]
    work, flight = work_of(way, mesh), getattr(trainable.engine, "most_kept", 0)
    return Seen(
        named(fold(work)), named(seen), flight, live.peak - before.start, int(sum(step_bytes(work).values())), losses
    )


def line(found: list[list[Seen]], predicted: bool) -> str:
    """The figures of the claim, a way at a time, stage by stage."""
    parts = []
    for number, way in enumerate(WAYS):
        for stage, seen in enumerate(rank[number] for rank in found):
            flight = work_of(way, Mesh(pp=STAGES, stage=stage)).flight if predicted else seen.flight
            size = show(seen.ceiling if predicted else seen.peak, "bytes")
            parts.append(f"{way} stage {stage}: {flight} in flight, {'at most ' if predicted else ''}{size}")
    return "; ".join(parts)


def measure() -> Verdict:
    """Train alike on one process and, each way, on two stages."""
    alone = plain()
    expected = [alone.step(batches(), LR).loss for _ in range(STEPS)]
    found = ranks.run(STAGES, observe_ways)
    every = [seen for rank in found for seen in rank]
    exact = all(seen.predicted == seen.observed for seen in every)
    apart = max(abs(a / b - 1) for seen in every for a, b in zip(seen.losses, expected, strict=True))
    flights = [
        (work_of(way, Mesh(pp=STAGES, stage=stage)).flight, rank[number].flight)
        for stage, rank in enumerate(found)
        for number, way in enumerate(WAYS)
    ]
    held = all(CEILING[0] < seen.peak / seen.ceiling < CEILING[1] for seen in every)
    less = all(rank[1].peak < rank[0].peak for rank in found)
    return Verdict(
        claim="pipeline",
        statement="A pipeline splits a model between layers: each stage holds whole layers and their states, and sends hidden "
        "states on and gradients back. Under 1F1B it holds tensors of the micro batches in flight, not of all.",
        varied=f"parallel.pp: 1, {STAGES}; parallel.schedule: gpipe, 1f1b",
        held=f"{small_model().parameters:,} parameters, tied; {MICRO} x {ROWS} x {SEQ} tokens a step, weights, batch",
        expected=f"{line(found, predicted=True)}; losses within {TOLERANCE:g} of one process",
        measured=f"{line(found, predicted=False)}; losses within {apart:.1g}; states and sends of every stage "
        f"{'as' if exact else 'not as'} predicted",
        holds=exact and held and less and apart <= TOLERANCE and all(a == b for a, b in flights),
        why="Backward of a micro batch frees its tensors. 1F1B starts it as soon as the last stage has the loss, so stage s "
        "of p never has more than p - s of them; GPipe runs all forward first. Little is sent: one layer's input.",
        source="Huang et al. 2019, arXiv 1811.06965; Narayanan et al. 2021, arXiv 2104.04473",
        code="src/burnish/techniques/pipeline.py, src/burnish/ops/pipeline_engine.py",
    )
