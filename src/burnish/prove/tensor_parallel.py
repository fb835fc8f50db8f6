"""Claim: tensor parallelism splits single weight matrices inside a layer, and computes the same as one process."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from burnish import ranks
from burnish.apply import SUMS
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.measure import observed_step
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.prove.checkpointing import random_batch
from burnish.prove.claim import Verdict
from burnish.recipe import Optim
from burnish.techniques import tensor
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import Trainable, plain_trainable
from burnish.units import show
from burnish.work import Observation, fold

WORLD, MICRO, ROWS, SEQ, STEPS, LR = 2, 2, 2, 64, 3, 1e-3
WAYS = {"one sum": False, "in halves": True}  # what the ranks pass on between products: `sequence`
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Seen:
    """One way on one rank: the shape of a matrix, what its first step was predicted and observed to do, all losses."""

    matrix: tuple[int, ...]
    predicted: Observation
    observed: Observation
    losses: list[float]


def small_model() -> ModelConfig:
    """About 0.7 million parameters; the words do not divide by two."""
    return ModelConfig(vocab=1001, hidden=128, ffn=352, heads=4, kv_heads=2, layers=3, tied=True, max_positions=SEQ)


def plain() -> Trainable:
    """The same weights on every rank and for every way."""
    loss = LanguageModelLoss(Decoder(small_model(), torch.Generator().manual_seed(0)))
    return plain_trainable(loss, build_optimizer(loss, Optim()), clip=1.0)


def batches() -> list[Batch]:
    """The micro batches of a step: all ranks see all rows."""
    whole = random_batch(small_model(), MICRO * ROWS, SEQ)
    cuts = [slice(start, start + ROWS) for start in range(0, MICRO * ROWS, ROWS)]
    return [Batch(whole.ids[cut], whole.labels[cut], whole.positions[cut], None) for cut in cuts]


def observe_ways() -> list[Seen]:
    """On this rank: a few steps of every way, the first one observed."""
    found, mesh = [], Mesh(tp=WORLD, tp_rank=dist.get_rank())
    for sequence in WAYS.values():
        config = tensor.Config(sequence=sequence)
        trainable = tensor.apply(config, plain(), mesh)
        first, seen = observed_step(trainable, batches(), LR)
        losses = [first.loss, *(trainable.step(batches(), LR).loss for _ in range(STEPS - 1))]
        work = tensor.predict(config, describe(small_model(), Shapes(rows=ROWS, seq=SEQ, micro=MICRO)), mesh)
        matrix = tuple(dict(trainable.parts[0].named_parameters())["model.layers.0.mlp.up.weight"].shape)
        found.append(Seen(matrix, named(fold(work)), named(seen), losses))
    return found


def named(seen: Observation) -> Observation:
    """States and what is sent inside layers; the sums of a step over all ranks are everybody's."""
    kinds = ("parameter", "optimizer", "comm_count", "comm_bytes")
    return Observation({key: count for key, count in seen.items() if key[0] in kinds and key[2] != "all"})


def line(seen: list[Observation]) -> str:
    """The figures of the claim, a way at a time."""
    parts = []
    for way, one in zip(WAYS, seen, strict=True):
        calls = sum(count for key, count in one.items() if key[0] == "comm_count")
        size = sum(count for key, count in one.items() if key[0] == "comm_bytes")
        parts.append(f"{way}: {show(one['parameter', '', '', ''], 'bytes')}, {calls} calls, {show(size, 'bytes')}")
    return "; ".join(parts)


def measure() -> Verdict:
    """Train alike on one process and, each way, on two ranks."""
    alone = plain()
    expected = [alone.step(batches(), LR).loss for _ in range(STEPS)]
    whole = tuple(dict(alone.parts[0].named_parameters())["model.layers.0.mlp.up.weight"].shape)
    found = ranks.run(WORLD, observe_ways)
    exact = all(seen.predicted == seen.observed for rank in found for seen in rank)
    apart = max(abs(a / b - 1) for rank in found for s in rank for a, b in zip(s.losses, expected, strict=True))
    split = all(seen.matrix == (whole[0] // WORLD, whole[1]) for rank in found for seen in rank)
    return Verdict(
        claim="tensor-parallel",
        statement="Tensor parallelism splits single weight matrices inside a layer: each rank holds a slice of the same "
        "layer, sees the same rows, and partial results are summed. Batches are not split, steps are not added up.",
        varied=f"parallel.tp: 1, {WORLD}; parallel.sequence: false, true",
        held=f"{small_model().parameters:,} parameters, {MICRO} x {ROWS} x {SEQ} tokens a step, weights, batch",
        expected=f"a matrix {whole} as {(whole[0] // WORLD, whole[1])} on a rank; rank 0, parameters and what it sends "
        f"beside {SUMS} bytes a step: {line([s.predicted for s in found[0]])}; losses within {TOLERANCE:g} of one process",
        measured=f"{found[0][0].matrix}; {line([s.observed for s in found[0]])}; losses within {apart:.1g}; every rank "
        f"{'as' if exact else 'not as'} predicted",
        holds=split and exact and apart <= TOLERANCE,
        why="y = f(x A) B is a sum over slices: columns of A make their own elements, rows of B take just those, so a pair "
        "of matrices needs one sum. It comes in every layer, which is why its ranks belong on the fastest link.",
        source="Shoeybi et al. 2019, arXiv 1909.08053; Korthikanti et al. 2022, arXiv 2205.05198",
        code="src/burnish/techniques/tensor.py, src/burnish/ops/tensor_parallel.py",
    )
