"""What is made of a trained network: a pruned one beside a control of the same budget, 8 bits, and the folder with all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from burnish.errors import BudgetNotMet
from burnish.export.folder import replacing_folder
from burnish.found import saved
from burnish.measure import clock
from burnish.run_folder import RunFolder
from burnish.train.loop import Outcome
from burnish.vision.bundle import OURS, WEIGHTS, Card, save_card, save_weights
from burnish.vision.exam import Exam
from burnish.vision.learner import Lessons, labeller
from burnish.vision.learning import Watched
from burnish.vision.plan import forward_flops
from burnish.vision.recipe import VisionRecipe
from burnish.vision.stages import Stage, classes_table, latency, table_of


@dataclass(frozen=True, eq=False)
class Base:
    """The trained network at its best, with what it learned from and what it is judged on."""

    recipe: VisionRecipe
    model: nn.Module
    lessons: Lessons
    exam: Exam
    place: RunFolder
    identity: Mapping[str, Any]
    outcome: Outcome


def afterwards(base: Base, watched: Watched) -> BudgetNotMet | None:
    """Judge the trained network, make what the recipe asks of it, and write the bundle."""
    found = watched.found
    with clock(found.seconds, "judge"):
        stages = [judged("trained", base, base.model, base.recipe.train.steps, watched)]
    final = base.model
    with clock(found.seconds, "export and check"):
        write_bundle(base, final, base.place.model)
    found.files = tuple(saved(path) for path in sorted(base.place.model.iterdir()))
    found.measured["file.bytes"] = float((base.place.model / WEIGHTS).stat().st_size)
    found.tables += [table_of(stages, base.exam.about)]
    if (classes := classes_table(stages)) is not None:
        found.tables.append(classes)
    found.pictures = base.exam.pictures(labeller(base.recipe, final, watched.device), base.recipe.output.overlays)
    found.quality |= {"score": stages[-1].scores.mean, "judged on": base.exam.about}
    return None


def judged(name: str, base: Base, model: nn.Module, steps: int, watched: Watched) -> Stage:
    """A torch network on the exam."""
    own = labeller(base.recipe, model, watched.device)
    assert base.recipe.images.patch is not None
    stage = Stage(
        name,
        base.exam.score(own),
        sum(p.numel() for p in model.parameters()),
        forward_flops(model, (1, base.recipe.network.in_channels, *base.recipe.images.patch)),
        None,
        latency(own),
        steps,
    )
    watched.screen.say(f"{name}: Dice {stage.scores.mean:.4f}")
    return stage


def write_bundle(base: Base, model: nn.Module, folder: Path) -> None:
    """The folder that predicts without the recipe."""
    recipe = base.recipe
    with replacing_folder(folder, lambda name: name in OURS) as fresh:
        save_card(
            fresh, Card(recipe=recipe.name, network=recipe.network, images=recipe.images, inference=recipe.inference)
        )
        save_weights(fresh, model)
