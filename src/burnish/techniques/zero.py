"""Data parallelism with ZeRO: split optimizer state, gradients and parameters over the data-parallel ranks.

Idea    Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models" (arXiv 1910.02054).
        stage 1 splits the optimizer state, stage 2 the gradients too, stage 3 the parameters too.
Price   bytes on the data-parallel axis per step, with A micro batches and P bytes of parameters: stage 0 one all-reduce;
        stage 1 a reduce-scatter and an all-gather; stage 2 A reduce-scatters and one all-gather after the step, none in
        forward; stage 3 A reduce-scatters and 2A all-gathers.
Limits  stage 2 moves more bytes than stage 1 under accumulation: prefer stage 1 while whole gradients fit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from burnish.mesh import Mesh, N
from burnish.section import Section
from burnish.work import BACKWARD, FORWARD, STEP, Comm, Sharding, Work, shard_elements

if TYPE_CHECKING:
    from burnish.train.step import Trainable

PLAN_ONLY = True


class Config(Section):
    """`stage` 0 (plain data parallel), 1, 2 or 3."""

    stage: Literal[0, 1, 2, 3] = 0

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"stage": value} if isinstance(value, int) else value


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Every stage is allowed on every number of ranks."""


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with states split over `mesh.shards` ranks, and the collectives that keep them whole where needed.

    One collective a group of parameters: each decoder layer is a group, all that stands outside the layers is one more.
    """
    parts, stage = mesh.shards, config.stage
    padded = sum(n * parts * shard_elements(shape, parts) for n, shape in work.shapes())
    whole = padded * work.bytes.compute
    groups = sum(block.layers for block in work.blocks if block.entering) + 1
    comms = _collectives(stage, padded * work.bytes.gradient, whole, groups)
    if stage == 0:
        return replace(work, comms=work.comms + comms)
    split = Sharding(parameter=parts, gradient=parts if stage >= 2 else 1, optimizer=parts)
    return replace(work, sharding=split, gathered=whole if stage < 3 else 0, comms=work.comms + comms)


def _collectives(stage: int, gradients: N, parameters: N, groups: N) -> tuple[Comm, ...]:
    """Collectives of one optimizer step; a micro batch's own stand in forward and backward."""
    gather = Comm("all_gather", "dp", STEP, parameters, groups)
    scatter = Comm("reduce_scatter", "dp", STEP, gradients, groups)
    return {
        0: (Comm("all_reduce", "dp", STEP, gradients, groups),),
        1: (scatter, gather),
        2: (replace(scatter, phase=BACKWARD), gather),
        3: (replace(gather, phase=FORWARD), replace(gather, phase=BACKWARD), replace(scatter, phase=BACKWARD)),
    }[stage]


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Planned only: `train` refuses a recipe that needs it."""
    raise AssertionError("a planned technique is refused before it is applied")
