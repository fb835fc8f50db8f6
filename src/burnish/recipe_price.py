"""Recipe price: seconds of a recipe's step on a chip of the tables, by the planner's rates, as for any decoder's plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from burnish import simulate
from burnish.architecture import architecture
from burnish.cluster import Cluster, cluster
from burnish.hardware import Chip, chips
from burnish.job import Job
from burnish.mapping import OFFLOAD, RECOMPUTE, SCHEDULE, Mapping
from burnish.planner.candidates import several
from burnish.rates import FORMAT
from burnish.recipe import Recipe
from burnish.shapes import shapes_of
from burnish.stack import nearest_stack

STACK = "burnish"


def step_seconds(recipe: Recipe, chip: Chip, again: float) -> float | None:
    """Seconds of a step where the share `again` of all layers runs again; None for a chip of no table or without the format.

    Shares lie between none and all. A ragged last micro batch counts its rows.
    """
    precision = precision_of(recipe)
    if chip != chips().get(chip.key) or FORMAT.get(precision, precision) not in chip.flops:
        return None
    stack, _ = nearest_stack(STACK)
    modes = several([replace(mapping_of(recipe), recompute=RECOMPUTE.index(mode)) for mode in ("none", "full")])
    seconds = simulate.price(job_of(recipe), modes, cluster_of(recipe, chip), stack).seconds
    none, full = (float(mode) for mode in np.asarray(seconds))
    shapes = shapes_of(recipe)
    whole = shapes.step_rows // shapes.rows * shapes.rows
    return ((1 - again) * none + again * full) * int(shapes.step_rows) / int(whole)


def job_of(recipe: Recipe) -> Job:
    """What a recipe trains."""
    lora = recipe.techniques.get("lora")
    return Job(
        model=architecture(recipe.model),
        seq=recipe.data.seq,
        global_batch=recipe.train.global_batch,
        precision=precision_of(recipe),
        trained="all" if lora is None else "lora",
        lora_rank=getattr(lora, "rank", 0),
    )


def precision_of(recipe: Recipe) -> str:
    """The format that most products are made in, as a job names it."""
    cast = recipe.techniques.get("fp8")
    if cast is None:
        return recipe.precision.compute
    return "fp8-block" if getattr(cast, "scaling", "") == "block" else "fp8"


def mapping_of(recipe: Recipe) -> Mapping:
    """How a recipe lays it out; what runs again is left out."""
    asked = recipe.parallel
    return Mapping(
        tp=asked.tp,
        pp=asked.pp,
        dp=asked.dp,
        cp=asked.cp,
        ep=asked.ep,
        vpp=asked.vpp,
        zero=asked.zero.stage,
        shard=asked.shard,
        sp=int(asked.sequence and asked.tp > 1),
        micro_batch=recipe.train.micro_batch,
        schedule=SCHEDULE.index(asked.schedule),
        offload=OFFLOAD.index("states" if asked.zero.offload else "none"),
    )


def cluster_of(recipe: Recipe, chip: Chip) -> Cluster:
    """As many nodes of the recipe's size as its ranks need."""
    world, per_node = recipe.parallel.world, recipe.machine.per_node
    nodes = -(-world // per_node)
    return cluster(f"{chip.key}:{nodes}x{min(world, per_node)}")
