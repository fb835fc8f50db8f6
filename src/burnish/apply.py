"""Apply: the techniques of a recipe, in their one order, for the description and for the thing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from burnish import passes as table
from burnish.describe import describe, shapes_of
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.passes import Technique
from burnish.recipe import Recipe
from burnish.records import Pass
from burnish.work import STEP, Comm, Work

if TYPE_CHECKING:
    from burnish.train.step import Trainable

SUMS = 4 * 8  # bytes of what a step sums over all ranks: loss, labels, tokens and squared norm in float64


def passes(recipe: Recipe) -> list[Technique]:
    """The techniques a recipe uses, in order. Raises UserError for a refused pair."""
    chosen = [technique for technique in table.PASSES if technique.is_used(recipe)]
    names = {technique.name for technique in chosen}
    for pair, reason in table.REFUSED.items():
        if pair <= names:
            raise UserError(f"{' and '.join(sorted(pair))} do not go together: {reason}")
    return chosen


def refuse_planned(recipe: Recipe) -> None:
    """Raises UserError naming the techniques of a recipe that can only be planned."""
    if only := [technique.name for technique in passes(recipe) if technique.plan_only]:
        raise UserError(f"{recipe.name}: {', '.join(only)} can be planned but not run yet; use `burnish plan`")


def mesh_of(recipe: Recipe, rank: int = 0) -> Mesh:
    """The arrangement of ranks a recipe asks for, as `rank` of all of them sees it: tensor-parallel ones are neighbours,
    then come context, data and pipeline."""
    asked = recipe.parallel
    tokens = asked.cp * asked.dp
    return Mesh(
        dp=asked.dp,
        shard=asked.shard,
        per_node=recipe.machine.per_node,
        rank=rank // asked.tp % tokens,
        tp=asked.tp,
        cp=asked.cp,
        pp=asked.pp,
        vpp=asked.vpp,
        ep=asked.ep,
        stage=rank // (asked.tp * tokens),
        tp_rank=rank % asked.tp,
    )


def predict(recipe: Recipe, work: Work, rank: int = 0) -> tuple[Work, tuple[Pass, ...]]:
    """The description of `rank` after every technique, and the passes taken. Raises UserError when one does not fit.

    Of a pipeline stage the first rank holds as much as any: shards of an odd size are largest there.
    """
    every = mesh_of(recipe, rank)
    taken = []
    for technique in passes(recipe):
        mesh = technique.view(every)
        config = technique.settled(recipe, work, mesh)
        work = technique.module.predict(config, work, mesh)
        reason = technique.reason
        if config != technique.settings(recipe):
            reason += f"; chosen: {config}"
        taken.append(Pass(technique=technique.name, reason=reason, plan_only=technique.plan_only))
    if every.world > 1:
        work = replace(work, comms=(*work.comms, Comm("all_reduce", "all", STEP, SUMS, 1)))
    return work, tuple(taken)


def stage_ranks(recipe: Recipe) -> range:
    """The first rank of each pipeline stage."""
    ranks = recipe.parallel.world // recipe.parallel.pp
    return range(0, recipe.parallel.world, ranks)


def apply(recipe: Recipe, trainable: Trainable, work: Work | None = None) -> Trainable:
    """The thing after every technique, each with the settings it has in `predict` of the same `work`.

    `work` is the description before any technique; None: the recipe's own. Raises UserError naming a technique that can
    only be planned or does not fit the work, and when the ranks started are not those it asks for.
    """
    from burnish.groups import check_started, rank_here

    refuse_planned(recipe)
    chosen = passes(recipe)
    every = mesh_of(recipe, rank_here())
    check_started(every)
    if every.world > 1:
        trainable.together(every)
    work = describe(recipe.model, shapes_of(recipe)) if work is None else work
    for technique in chosen:
        mesh = technique.view(every)
        config = technique.settled(recipe, work, mesh)
        trainable = technique.module.apply(config, trainable, mesh)
        work = technique.module.predict(config, work, mesh)
    return trainable
