"""Learner: a recipe and what there is to learn from, made into what the training loop takes: steps and a held-out score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from burnish.train.loop import Heldout, Job
from burnish.train.optim import build_optimizer, lr_at
from burnish.train.step import Trainable, plain_trainable
from burnish.vision.inference import Labeller, of_module
from burnish.vision.losses import loss_of
from burnish.vision.recipe import VisionRecipe
from burnish.vision.task import Lessons


def labeller(recipe: VisionRecipe, model: nn.Module, device: str, finished: bool = True) -> Labeller:
    """The network of a recipe, ready to label or to find; not `finished`, without the steps that come after it."""
    inference = recipe.inference if finished else recipe.inference.model_copy(update={"keep_largest": False})
    return Labeller(of_module(model, device), recipe.network, recipe.images, inference)


def trainable_of(recipe: VisionRecipe, model: nn.Module) -> Trainable:
    """Network, loss and optimizer."""
    loss = loss_of(recipe.network, model)
    return plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip)


def job_of(
    recipe: VisionRecipe,
    folder: Path,
    lessons: Lessons,
    model: nn.Module,
    device: str,
    about: dict[str, Any],
    steps: int,
) -> Job:
    """The job of `steps` steps in `folder`; `about` are the settings without which a checkpoint must not be resumed.

    The held-out loss is 1 - the score, so that the best weights are those of the best score.
    """

    def judge() -> Heldout:
        training = model.training
        score = lessons.score(labeller(recipe, model, device, finished=False)).mean
        model.train(training)
        return Heldout(loss=1.0 - score, score=score)

    return Job(
        steps=steps,
        batches=lessons.batches(recipe, recipe.train.seed),
        lr=lambda step: lr_at(step, recipe.schedule, steps, recipe.optim.lr),
        folder=folder,
        global_batch=recipe.train.global_batch,
        identity=about,
        evaluate=judge if lessons.held else None,
        eval_every=recipe.train.eval_every,
        checkpoint_every=recipe.train.checkpoint_every,
        keep=recipe.train.keep,
        tensorboard=recipe.train.tensorboard,
    )
