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
    """The work with states split over `mesh.shards` ranks, and the collectives that keep them whole where needed."""
    parts, stage = mesh.shards, config.stage
    split = Sharding(
        parameter=parts if stage >= 1 else 1, gradient=parts if stage >= 2 else 1, optimizer=parts if stage >= 1 else 1
    )
    padded = sum(n * parts * shard_elements(shape, parts) for n, shape in work.shapes())
    compute = 2 if work.gathered is not 0 else work.bytes.parameter  # noqa: F632 - an array is never the literal 0
    whole = padded * compute
    groups = sum(block.layers for block in work.blocks if any(op.shapes for op in block.ops))
    gathered = whole if stage in (1, 2) else 0
    comms = _collectives(stage, padded * work.bytes.gradient, whole, groups, work.micro) if np_any(parts > 1) else ()
    return replace(work, sharding=split, gathered=gathered if stage else work.gathered, comms=work.comms + comms)


def np_any(value: Any) -> bool:
    """Whether any candidate has it."""
    return bool(value.any()) if hasattr(value, "any") else bool(value)


def _collectives(stage: int, gradients: N, parameters: N, groups: N, micro: N) -> tuple[Comm, ...]:
    """Collectives of one optimizer step, `groups` calls each (one a layer), as totals over the groups."""

    def each(kind: str, phase: str, total: N, times: N = 1) -> Comm:
        return Comm(kind, "dp", phase, total // groups, groups * times)

    if stage == 0:
        return (each("all_reduce", STEP, gradients),)
    if stage == 1:
        return each("reduce_scatter", STEP, gradients), each("all_gather", STEP, parameters)
    if stage == 2:
        return each("reduce_scatter", BACKWARD, gradients), each("all_gather", STEP, parameters)
    return (
        each("all_gather", FORWARD, parameters),
        each("all_gather", BACKWARD, parameters),
        each("reduce_scatter", BACKWARD, gradients),
    )


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Planned only: `train` refuses a recipe that needs it."""
    raise AssertionError("a planned technique is refused before it is applied")
