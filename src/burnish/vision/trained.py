"""Trained: the network that a run has learned, with all that later stages need of it, and the judging of any network beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from burnish.run_folder import RunFolder
from burnish.train.loop import Outcome
from burnish.vision.bundle import held
from burnish.vision.learner import labeller
from burnish.vision.learning import Watched
from burnish.vision.plan import forward_flops
from burnish.vision.recipe import VisionRecipe
from burnish.vision.stages import Stage, latency
from burnish.vision.task import Exam, Lessons


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


def judged(name: str, base: Base, model: nn.Module, steps: int, watched: Watched, key: str = "trained") -> Stage:
    """A torch network on the exam."""
    own = labeller(base.recipe, model, watched.device)
    assert base.recipe.images.patch is not None
    stage = Stage(
        key,
        name,
        base.exam.score(own),
        sum(p.numel() for p in model.parameters()),
        forward_flops(model, (1, base.recipe.network.in_channels, *base.recipe.images.patch)),
        sum(t.nbytes for t in held(model).values()),
        latency(own),
        steps,
    )
    watched.screen.say(f"{name}: {base.recipe.metric} {stage.scores.mean:.4f}")
    return stage
