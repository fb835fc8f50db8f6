"""What tests of training an encoder share: small shapes, a recipe that holds the techniques, batches, and what one rank does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from burnish import apply
from burnish.data.batch import IGNORED, Batch
from burnish.encoders.config import EncoderConfig
from burnish.encoders.describe import describe_encoder
from burnish.measure import observe
from burnish.models.encoder import Encoder
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.shapes import Shapes
from burnish.train.classification import ClassificationLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import StepResult, Trainable, plain_trainable
from burnish.work import Observation, Work

CLASSES = ("no", "yes", "perhaps")
TEXTS = {"head": "sequence", "labels": CLASSES}
SIZES = {
    "even": {"vocab": 320, "hidden": 64, "ffn": 160, "heads": 4, "layers": 3, "table": 64},
    "odd": {"vocab": 331, "hidden": 35, "ffn": 117, "heads": 7, "layers": 5, "table": 61, "types": 3},
    "relu": {"vocab": 97, "hidden": 48, "ffn": 101, "heads": 3, "layers": 2, "table": 64, "activation": "relu"},
}
HEADS = {
    "texts": TEXTS,
    "tokens": {"head": "tokens", "labels": ("b", "i", "o", "e", "s"), "pooler": False},
    "roberta": TEXTS | {"family": "roberta", "types": 1, "pad": 1, "activation": "gelu_new"},
}
ROWS, SEQ = 3, 37


def make_config(size: str, head: str = "texts") -> EncoderConfig:
    return EncoderConfig(**SIZES[size] | HEADS[head] | ({"activation": "relu"} if size == "relu" else {}))


def make_recipe(settings: dict[str, Any], world: int = 1, stage: int = 0) -> Recipe:
    """A recipe of which only the techniques and the optimizer matter here; settings by dotted path."""
    rows = {"train.global_batch": 64 * world, "train.micro_batch": 2, "parallel.dp": world, "parallel.zero": stage}
    return replace(load("quickstart"), rows | settings)


def make_trainable(config: EncoderConfig, recipe: Recipe, work: Work | None, seed: int = 0) -> Trainable:
    """The trainable of this rank, or of one process where no work is given."""
    loss = ClassificationLoss(Encoder(config, torch.Generator().manual_seed(seed)))
    plain = plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip)
    return plain if work is None else apply.apply(recipe, plain, work)


def make_batches(
    config: EncoderConfig, micro: int, rows: int, seq: int, pieces: tuple[int, ...] | None = None, seed: int = 0
) -> list[Batch]:
    """Rows of one text each, or of the given `pieces`, of which the last is a padded rest without a label."""
    draw = np.random.default_rng(seed)
    lengths = pieces or (seq,)
    starts = np.cumsum((0, *lengths))[:-1]
    positions = np.tile(np.concatenate([np.arange(n) for n in lengths]), (rows, 1))
    batches = []
    for _ in range(micro):
        ids = draw.integers(0, config.vocab, (rows, seq))
        labels = draw.integers(0, len(config.labels), (rows, seq))
        if pieces:
            labels[:, starts[-1] :] = IGNORED
        if config.head == "sequence":
            kept = np.full_like(labels, IGNORED)
            kept[:, starts] = labels[:, starts]
            labels = kept
        batches.append(Batch(ids, labels, positions, (pieces,) * rows if pieces else None))
    return batches


def described(config: EncoderConfig, micro: int) -> Work:
    return describe_encoder(config, Shapes(rows=ROWS, seq=SEQ, micro=micro))


# ----------------------------------------------------------------------------------------------------------------------


def observed(config: EncoderConfig, recipe: Recipe, micro: int, steps: int = 2) -> list[Observation]:
    """The observation of each of `steps` steps on this rank."""
    trainable = make_trainable(config, recipe, described(config, micro))
    batches = make_batches(config, micro, ROWS, SEQ, seed=dist.get_rank())
    return [observe(trainable, batches, 1e-3) for _ in range(steps)]


def trained(config: EncoderConfig, recipe: Recipe, steps: list[list[Batch]]) -> tuple[list[StepResult], dict[str, Any]]:
    """The results of training on this rank's half of each step, and the whole weights after it."""
    trainable = make_trainable(config, recipe, described(config, 1))
    each = len(steps[0]) // dist.get_world_size()
    mine = slice(dist.get_rank() * each, (dist.get_rank() + 1) * each)
    results = [trainable.step(batches[mine], 0.01) for batches in steps]
    state = trainable.parts[0].state_dict()
    return results, {n: (t.full_tensor() if hasattr(t, "full_tensor") else t).numpy() for n, t in state.items()}
