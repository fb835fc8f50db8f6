"""Learner: a recipe and its prepared scans made into what the training loop takes: batches, steps, and a held-out score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from burnish.errors import UserError
from burnish.train.loop import Heldout, Job
from burnish.train.optim import build_optimizer, lr_at
from burnish.train.step import Trainable, plain_trainable
from burnish.vision.inference import Labeller, label_image, of_module
from burnish.vision.metric import Scores, scored
from burnish.vision.patches import Pool, batches_of, pool_of
from burnish.vision.prepared import Case
from burnish.vision.recipe import VisionRecipe
from burnish.vision.segmentation_loss import SegmentationLoss

BLOCK = 4  # neighbouring slices that are held out together


@dataclass(frozen=True, eq=False)
class Lessons:
    """What there is to learn from, and the parts of scans that the best weights are chosen by."""

    pool: Pool
    held: tuple[Case, ...]


def lessons_of(recipe: VisionRecipe, train: Sequence[Case], validation: Sequence[Case]) -> Lessons:
    """Training scans without the slices that are held out, and what is held out."""
    slices, held = [], list(validation)
    for case in train:
        own, kept = sliced(case, recipe)
        slices.append(own)
        if kept.size:
            held.append(part_of(case, kept))
    return Lessons(pool_of(train, slices, recipe.train.seed), tuple(held))


def sliced(case: Case, recipe: VisionRecipe) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the first axis to learn from, and those held out: whole blocks of neighbours, evenly over the volume."""
    count, share, wanted = case.label.shape[0], recipe.images.validation_slices, recipe.images.train_slices
    block = np.arange(count) // BLOCK
    out = np.floor((block + 1) * share + 0.5) > np.floor(block * share + 0.5)
    own, held = np.flatnonzero(~out), np.flatnonzero(out)
    if wanted:
        marked = own[np.asarray(case.label)[own].reshape(len(own), -1).any(axis=1)]
        if not len(marked):
            raise UserError(f"{case.name}: none of its slices holds a label; images.train_slices takes those that do")
        own = np.unique(marked[np.linspace(0, len(marked) - 1, min(wanted, len(marked))).round().astype(int)])
    return own, held


def part_of(case: Case, slices: NDArray[np.int64]) -> Case:
    """Slices of a case as a case of their own."""
    return Case(case.name, np.asarray(case.image)[:, slices], np.asarray(case.label)[slices], case.affine, case.spacing)


def labeller(recipe: VisionRecipe, model: nn.Module, device: str, finished: bool = True) -> Labeller:
    """The network of a recipe, ready to label; not `finished`, without the steps that come after it."""
    inference = recipe.inference if finished else recipe.inference.model_copy(update={"keep_largest": False})
    return Labeller(of_module(model, device), recipe.network, recipe.images, inference)


def score_cases(own: Labeller, cases: Sequence[Case], classes: Sequence[str], surfaces: bool = False) -> Scores:
    """Scores of cases in the network's own space."""
    pairs = ((label_image(own, np.asarray(case.image)), np.asarray(case.label), case.spacing) for case in cases)
    return scored(pairs, classes, surfaces)


def trainable_of(recipe: VisionRecipe, model: nn.Module) -> Trainable:
    """Network, loss and optimizer."""
    loss = SegmentationLoss(model)
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

    The held-out loss is 1 - Dice, so that the best weights are those of the best score.
    """
    classes = list(recipe.images.classes)

    def judge() -> Heldout:
        training = model.training
        own = labeller(recipe, model, device, finished=False)
        score = score_cases(own, lessons.held, classes).mean
        model.train(training)
        return Heldout(loss=1.0 - score, score=score)

    return Job(
        steps=steps,
        batches=batches_of(recipe, lessons.pool, recipe.train.seed),
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
