"""Plan: a recipe and a machine -> what will be done, what it takes, and whether it fits. Pure and torch-free."""

from __future__ import annotations

from typing import overload

from burnish import apply, layout, precision_list, simulate
from burnish.compressions import planned
from burnish.describe import SAVED_TABLE, Shapes, describe, shapes_of
from burnish.describe import batch_arithmetic as batch_arithmetic
from burnish.hardware import GIB, Chip, chip, detect
from burnish.planner import ModelPlan, Request, plan_model
from burnish.recipe import Recipe
from burnish.recipe_price import step_seconds
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
    """The plan of a recipe: what its passes do to the work of one rank, and what that takes.

    Of a pipeline it is the rank with the most memory in use.
    """
    named = recipe.machine.chip is not None
    device = hardware or (chip(recipe.machine.chip) if recipe.machine.chip else detect(recipe.machine.threads))
    plain = describe(recipe.model, shapes_of(recipe))
    ranks = [apply.predict(recipe, plain, rank) for rank in apply.stage_ranks(recipe)]
    sizes = [_memory(work, device) for work, _ in ranks]
    stage = max(range(len(ranks)), key=lambda k: sum(sizes[k].values()))
    (work, passes), kinds = ranks[stage], sizes[stage]
    predicted = {"parameters": float(recipe.model.parameters), **kinds, "memory.peak": sum(kinds.values())}
    predicted["file.bytes"] = float(file_bytes(recipe))
    if recipe.compress.used:
        predicted["compressed.bytes"] = float(compressed_bytes(recipe))
    predicted |= _step(recipe, work, device)
    fits = predicted["memory.peak"] <= device.memory if device.memory else None
    seconds, how = _seconds(recipe, work, device)
    if seconds is not None:
        predicted["seconds.step"] = seconds
        predicted["tokens_per_second"] = recipe.train.global_batch * recipe.data.seq / seconds
    return Plan(
        recipe=recipe.name,
        machine=device.name,
        passes=passes,
        mapping=_mapping(recipe),
        batch=batch_arithmetic(recipe),
        predicted=predicted,
        capacity=device.memory or None,
        fits=fits,
        notes=_notes(recipe, device, named, how, stage),
    )


def _mapping(recipe: Recipe) -> dict[str, int | str]:
    """Ranks of each axis in use, and the ZeRO stage."""
    asked = recipe.parallel
    split = {axis: getattr(asked, axis) for axis in ("tp", "cp", "ep", "pp", "vpp") if getattr(asked, axis) > 1}
    return {**split, "dp": asked.dp, "zero": asked.zero.stage}


def _memory(work: Work, device: Chip) -> dict[str, float]:
    """Bytes of one rank at its fullest, by kind."""
    sizes = simulate.step_bytes(work).items()
    kinds = {f"memory.{name}": float(size) for name, size in sizes if size or name != "passing"}
    if margin := simulate.reserve(kinds, device):
        kinds["memory.reserve"] = margin
    return kinds


def file_bytes(recipe: Recipe) -> int:
    """Bytes of the weight files that the recipe exports."""
    settings = recipe.export
    return layout.weight_bytes(recipe.model, settings.dtype, settings.write_tied, int(settings.shard_gib * GIB))


def compressed_bytes(recipe: Recipe) -> int:
    """Bytes of the weight files of the compressed model, where the recipe asks for one and no part is kept as it was."""
    work = describe(recipe.model, Shapes(rows=1, seq=recipe.compress.length))
    asked = recipe.compress.model_copy(update={"tp": recipe.compress.tp or recipe.parallel.tp})
    return planned(asked, recipe.model, recipe.export.dtype, work).bytes


def _step(recipe: Recipe, work: Work, device: Chip) -> dict[str, float]:
    """FLOPs and collectives of one step on one rank; their bytes by axis where there are more than data-parallel ones."""
    step: dict[str, float] = {"flops.step": float(sum(flops(work)))}
    seen = fold(work)
    for metric, key in (("comm_count", "comm.count"), ("comm_bytes", "comm.bytes")):
        if total := sum(value for (name, *_), value in seen.items() if name == metric):
            step[key] = float(total)
    if recipe.parallel.world > recipe.parallel.dp:
        for (metric, _, axis, _), value in seen.items():
            if metric == "comm_bytes":
                step[f"comm.bytes.{axis}"] = step.get(f"comm.bytes.{axis}", 0.0) + float(value)
    return step


def _seconds(recipe: Recipe, work: Work, device: Chip) -> tuple[float | None, str]:
    """Seconds of a step and how they were found.

    A chip of the tables is priced as in a decoder's plan. Of a machine measured here only two rates are known, which one
    rank's floor is made of.
    """
    layers = [block for block in work.blocks if block.entering]
    again = sum(int(block.layers) for block in layers if block.recomputed) / sum(int(block.layers) for block in layers)
    seconds = step_seconds(recipe, device, again)
    if seconds is not None:
        calibrated = "" if device.calibrated else f"; uncalibrated: no measured step of {device.name} stands behind it"
        return seconds, f"step time is predicted by the planner's rates, for this package's own stack{calibrated}"
    floor = simulate.step_seconds(work, device, recipe.precision.compute)
    if not device.bandwidth:
        return None, "no step time: this machine's rates are not measured; `burnish run` measures them first"
    if floor is None or recipe.parallel.world > 1:
        return None, ""
    return float(floor), "step time is a floor: matrix products and memory traffic, nothing for launches"


def _notes(recipe: Recipe, device: Chip, named: bool, how: str, stage: int) -> tuple[str, ...]:
    rows = "of several conversations" if recipe.data.format == "chat" else "whole documents"
    notes = [f"saved bytes follow the decoder's own table for {SAVED_TABLE}; rows are taken as {rows}"]
    if recipe.parallel.pp > 1:
        notes.append(f"figures of one rank are those of stage {stage} of 0..{recipe.parallel.pp - 1}, the fullest")
    if how:
        notes.append(how)
    notes += precision_list.lines(recipe)
    if recipe.precision.compute != "fp32":
        notes.append(f"in float32 whatever precision.compute is: {'; '.join(HIGH.values())}")
    if named:
        notes.append(f"planned for {device.name}, figures from: {device.source}")
    return tuple(notes)
