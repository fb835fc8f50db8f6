"""VisionRecipe: network, images, training, pruning, 8 bits and export as one frozen object; read, varied and checked; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from burnish.errors import UserError
from burnish.recipe import FolderName, Machine, Optim, Schedule, Train
from burnish.section import Section, explain, with_changes
from burnish.vision.sections import DETECTORS, Augment, Images, Inference, Int8, Network, Output, Prune

METRICS = {"segmentation": "Dice", "detection": "mAP"}
OPTIM = Optim(weight_decay=1e-4, betas=(0.9, 0.99))  # where a recipe names nothing else


class VisionRecipe(Section):
    """One resolved recipe. A row of a batch is one patch."""

    name: FolderName
    about: str = ""
    task: Literal["segmentation", "detection"] = "segmentation"
    network: Network = Network()
    images: Images
    augment: Augment = Augment()
    optim: Optim = OPTIM
    schedule: Schedule = Schedule()
    train: Train
    inference: Inference = Inference()
    prune: Prune = Prune()
    int8: Int8 = Int8()
    output: Output = Output()
    machine: Machine = Field(default_factory=Machine)

    @property
    def metric(self) -> str:
        """The name of the score that is told and budgeted."""
        return METRICS[self.task]


def build(values: Mapping[str, Any], where: str) -> VisionRecipe:
    """A recipe from nested values. Raises UserError with one line naming the key and what would be right."""
    try:
        recipe = VisionRecipe.model_validate(values)
    except ValidationError as error:
        raise explain(error, VisionRecipe, where) from None
    check(recipe, where)
    return recipe


def replace(recipe: VisionRecipe, changes: Mapping[str, Any], where: str = "override") -> VisionRecipe:
    """A variant: `replace(recipe, {"train.steps": 100})`. All changes are applied, then the whole is validated once."""
    return build(with_changes(recipe.model_dump(), changes, where), where)


def _kinds(task: str) -> str:
    return (
        f"use network.kind={DETECTORS[0]} or {DETECTORS[1]}" if task == "detection" else "set task=detection for boxes"
    )


def check(recipe: VisionRecipe, where: str = "recipe") -> None:
    """What no section can see alone. Raises UserError naming both values."""
    network, images, train, schedule = recipe.network, recipe.images, recipe.train, recipe.schedule
    patch, divisor = images.patch, network.divisor

    def refuse(message: str) -> None:
        raise UserError(f"{where}: {message}")

    if network.detects != (recipe.task == "detection"):
        refuse(f"task {recipe.task} and network.kind {network.kind} do not go together; {_kinds(recipe.task)}")
    if patch is not None and len(patch) != network.dimensions:
        refuse(f"images.patch has {len(patch)} sides, network.dimensions is {network.dimensions}")
    for side in patch or ():
        if side < 1 or side % divisor:
            near = max(divisor, side // divisor * divisor)
            refuse(f"images.patch {side} is no multiple of {divisor}, which the network's levels halve; use {near}")
    if train.micro_batch > train.global_batch:
        refuse(f"train.micro_batch {train.micro_batch} exceeds train.global_batch {train.global_batch}")
    if schedule.warmup_steps + schedule.decay_steps > train.steps:
        refuse(
            f"schedule.warmup_steps {schedule.warmup_steps} + decay_steps {schedule.decay_steps} exceed train.steps "
            f"{train.steps}; set schedule.warmup_steps={max(1, train.steps // 10)}"
        )
    if images.validation_fraction and images.validation:
        refuse(
            "images.validation_fraction takes patients from images.train, and images.validation names others; use one"
        )
    if images.validation_slices and network.dimensions == 3:
        refuse(
            "images.validation_slices needs a network of slices; set network.dimensions=2 or use validation_fraction"
        )
    if images.train_slices and network.dimensions == 3:
        refuse("images.train_slices needs a network of slices; set network.dimensions=2")
    if len(recipe.augment.flip) not in (0, network.dimensions):
        refuse(f"augment.flip has {len(recipe.augment.flip)} axes, network.dimensions is {network.dimensions}")
    if network.out_channels == 1 and not network.detects:
        refuse("network.out_channels 1 leaves no class beside the background; use 2, or 0 to take it from the data")
    if train.compile != "off":
        refuse(f"train.compile {train.compile} is for decoders; leave it off")
    if recipe.prune.used and not recipe.prune.retrain_steps:
        refuse("prune.target without prune.retrain_steps leaves a network that labels nothing; give it steps")
