"""Plan: a recipe and a machine -> what will be done, what it takes, and whether it fits. Pure and torch-free."""

from __future__ import annotations

from typing import overload

from burnish import apply, layout, simulate
from burnish.describe import SAVED_TABLE, describe, shapes_of
from burnish.describe import batch_arithmetic as batch_arithmetic
from burnish.hardware import GIB, Chip, chip, detect
from burnish.planner import ModelPlan, Request, plan_model
from burnish.recipe import Recipe
from burnish.records import Plan
from burnish.techniques.precision import HIGH
from burnish.work import Work, flops, fold


@overload
def make_plan(asked: Recipe, hardware: Chip | None = None) -> Plan: ...


@overload
def make_plan(asked: Request, hardware: None = None) -> ModelPlan: ...


def make_plan(asked: Recipe | Request, hardware: Chip | None = None) -> Plan | ModelPlan:
    """The plan of a recipe on `hardware` (default: the recipe's chip, else this machine), or of a decoder on the cluster
    that a `Request` names.

    Raises UserError for an unknown chip, a refused pair of techniques or a technique that does not fit the model, and for
    a request that no mapping could answer.
    """
    return plan_model(asked) if isinstance(asked, Request) else plan_recipe(asked, hardware)


def plan_recipe(recipe: Recipe, hardware: Chip | None = None) -> Plan:
    """The plan of a recipe: what its passes do to the work of one rank, and what that takes."""
    named = recipe.machine.chip is not None
    device = hardware or (chip(recipe.machine.chip) if recipe.machine.chip else detect(recipe.machine.threads))
    work, passes = apply.predict(recipe, describe(recipe.model, shapes_of(recipe)))
    sizes = simulate.step_bytes(work).items()
    kinds = {f"memory.{name}": float(size) for name, size in sizes if size or name != "passing"}
    if margin := simulate.reserve(kinds, device):
        kinds["memory.reserve"] = margin
    predicted = {"parameters": float(recipe.model.parameters), **kinds, "memory.peak": sum(kinds.values())}
    predicted["file.bytes"] = float(file_bytes(recipe))
    predicted |= _step(recipe, work, device)
    fits = predicted["memory.peak"] <= device.memory if device.memory else None
    return Plan(
        recipe=recipe.name,
        machine=device.name,
        passes=passes,
        mapping={"dp": recipe.parallel.dp, "zero": recipe.parallel.zero.stage},
        batch=batch_arithmetic(recipe),
        predicted=predicted,
        capacity=device.memory or None,
        fits=fits,
        notes=_notes(recipe, device, named),
    )


def file_bytes(recipe: Recipe) -> int:
    """Bytes of the weight files that the recipe exports."""
    settings = recipe.export
    return layout.weight_bytes(recipe.model, settings.dtype, settings.write_tied, int(settings.shard_gib * GIB))


def _step(recipe: Recipe, work: Work, device: Chip) -> dict[str, float]:
    """FLOPs, collectives and, where the machine's rates are known, seconds of one step on one rank."""
    step: dict[str, float] = {"flops.step": float(sum(flops(work)))}
    seen = fold(work)
    for metric, key in (("comm_count", "comm.count"), ("comm_bytes", "comm.bytes")):
        if total := sum(value for (name, *_), value in seen.items() if name == metric):
            step[key] = float(total)
    seconds = simulate.step_seconds(work, device, recipe.precision.compute)
    if seconds is not None and recipe.parallel.dp == 1:
        step["seconds.step"] = float(seconds)
        step["tokens_per_second"] = recipe.train.global_batch * recipe.data.seq / float(seconds)
    return step


def _notes(recipe: Recipe, device: Chip, named: bool) -> tuple[str, ...]:
    notes = [f"saved bytes follow the decoder's own table for {SAVED_TABLE}; rows are taken as whole documents"]
    if not device.bandwidth:
        notes.append("no step time: this machine's rates are not measured; `burnish run` measures them first")
    elif recipe.parallel.dp == 1:
        notes.append("step time is a floor: matrix products and memory traffic, nothing for launches")
    if recipe.precision.compute != "fp32":
        notes.append(f"in float32 whatever precision.compute is: {'; '.join(HIGH.values())}")
    if named:
        notes.append(f"planned for {device.name}, figures from: {device.source}")
    return tuple(notes)
