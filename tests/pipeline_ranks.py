"""What tests of pipelines share: recipes of several stages, rows with unequal label counts, whole or packed, and what one
rank does with them.

The functions below the line run on every rank, in the pool of `ranks.py`; the others in the test.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed as dist

from burnish import apply, placement
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.measure import observe
from burnish.measure_live import LiveBytes
from burnish.ops.pipeline_engine import Engine
from burnish.ops.tied_copy import TiedCopy
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.train.evaluate import evaluate
from burnish.train.step import NonFiniteError, StepResult, Trainable
from burnish.work import Observation, Work, fold
from zero_ranks import make_trainable, whole

ROWS, SEQ = 2, 24
SIZES = {"vocab": 131, "hidden": 24, "ffn": 40, "heads": 3, "kv_heads": 1, "head_dim": 8, "max_positions": 64}
PIECES = (9, 3, 12)  # texts packed into one row


def make_recipe(micro: int, pp: int, layers: int = 5, model: dict[str, Any] | None = None, **settings: Any) -> Recipe:
    """`pp` stages and `micro` micro batches a rank and step; `settings` by dotted path with __ for the dot."""
    wanted = {key.replace("__", "."): value for key, value in settings.items()}
    config = ModelConfig(**SIZES | {"layers": layers} | (model or {}))
    rows = ROWS * micro * wanted.get("parallel.dp", 1)
    sizes = {"data.seq": SEQ, "train.global_batch": rows, "train.micro_batch": ROWS, "parallel.pp": pp}
    return replace(load("quickstart").model_copy(update={"model": config}), sizes | wanted)


def described(recipe: Recipe, rank: int, packed: bool = False) -> Work:
    """The work of one rank."""
    micro = recipe.train.global_batch // recipe.parallel.dp // ROWS
    pairs = ROWS * sum(n * n for n in PIECES) if packed else None
    shapes = Shapes(rows=ROWS, seq=SEQ, micro=micro, pairs=pairs, packed=packed)
    return apply.predict(recipe, describe(recipe.model, shapes), rank)[0]


def predicted(recipe: Recipe, rank: int, packed: bool = False) -> Observation:
    return fold(described(recipe, rank, packed))


def make_batches(recipe: Recipe, packed: bool = False, seed: int = 0) -> list[Batch]:
    """The micro batches of a step of all data-parallel ranks; each counts another number of labels, one of them none."""
    draw = np.random.default_rng(seed)
    count = recipe.train.global_batch // ROWS
    starts = np.concatenate([np.arange(n) for n in PIECES]) if packed else np.arange(SEQ)
    batches = []
    for number in range(count):
        ids, targets = draw.integers(0, recipe.model.vocab, (2, ROWS, SEQ))
        targets.reshape(-1)[(number * 17 + seed * 7) % (ROWS * SEQ) :] = -100
        batches.append(Batch(ids, targets, np.tile(starts, (ROWS, 1)), (PIECES,) * ROWS if packed else None))
    return batches


# ----------------------------------------------------------------------------------------------------------------------


def mean_of_micro_batches(self: Engine, micros: Any, ranks: Any) -> float:
    """Instead of `Engine.run`: every micro batch gives the mean of its labels, as pipelines that divide by their number do."""
    everything = sum(int((tensors[1] != -100).sum()) for tensors in micros)
    counts = [int((tensors[1] != -100).sum()) for tensors in micros]
    seen = iter(counts)
    last = self.parts[-1]

    def scaled(module: Any, given: Any, loss: Any) -> Any:
        return loss * (everything / len(micros) / max(next(seen), 1))

    handle = last.register_forward_hook(scaled) if self.is_last(len(self.parts) - 1) else None
    result = RUN(self, micros, ranks)
    if handle is not None:
        handle.remove()
    return result


RUN = Engine.run
BREAKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "tied gradients not summed": lambda: mock.patch.object(TiedCopy, "reduced"),
    "the tied copy counted twice": lambda: mock.patch.object(TiedCopy, "counts", return_value=True),
    "mean of micro batches": lambda: mock.patch.object(Engine, "run", mean_of_micro_batches),
}


def mine(recipe: Recipe, batches: list[Batch]) -> list[Batch]:
    """The micro batches of this rank, which every stage of its pipeline has: neighbours."""
    mesh = apply.mesh_of(recipe, dist.get_rank())
    each = len(batches) // recipe.parallel.dp
    return batches[int(mesh.rank) * each :][:each]


def observed(recipe: Recipe, batches: list[Batch], steps: int = 2) -> list[Observation]:
    """The observation of each of `steps` steps on this rank."""
    trainable = make_trainable(recipe)
    return [observe(trainable, mine(recipe, batches), 1e-3) for _ in range(steps)]


def trained(
    recipe: Recipe, steps: list[list[Batch]], broken: str = "nothing", lr: float = 1e-3
) -> tuple[list[StepResult], list[Any], float, int]:
    """Results of training on this rank's part of each step, this stage's weights as pieces of the whole model, the loss
    of the first step's rows judged after it, and the passes whose tensors stood at once."""
    with BREAKS[broken]():
        trainable = make_trainable(recipe)
        results = [trainable.step(mine(recipe, batches), lr) for batches in steps]
    score = evaluate(trainable.scorer, steps[0])
    return results, weights_of(trainable), score.loss, trainable.engine.most_kept


def weights_of(trainable: Trainable) -> list[tuple[str, tuple[slice, ...], np.ndarray]]:
    """Pieces of the parameters of all parts, put together from their shards, with where they lie in the whole model."""
    found = []
    for number, part in enumerate(trainable.parts):
        for name, tensor in part.state_dict().items():
            values = whole(tensor).float().numpy()
            place = trainable.placements.get(f"{number}.{name}", placement.whole(name, values.shape))
            for piece in place.pieces:
                here, there = (tuple(map(slice, at, np.add(at, piece.size))) for at in (piece.here, piece.there))
                found.append((place.name, there, values[here].copy()))
    return found


def live_peak(recipe: Recipe, batches: list[Batch]) -> int:
    """The most bytes this rank's tensors held in its second step."""
    before = LiveBytes()
    with before:
        trainable = make_trainable(recipe)
    own = mine(recipe, batches)
    trainable.step(own, 1e-3)
    with LiveBytes() as live:
        trainable.step(own, 1e-3)
    return live.peak - before.start


def stopped(recipe: Recipe, batches: list[Batch]) -> tuple[str, bool, float]:
    """One good step, one whose loss is not finite on the last stage, one good step again.

    Gives the error, whether weights were as before it, and the last loss.
    """
    trainable = make_trainable(recipe)
    trainable.step(batches, 1e-3)
    before = weights_of(trainable)
    handle = None
    if trainable.engine.is_last(len(trainable.parts) - 1):
        handle = trainable.parts[-1].register_forward_hook(lambda module, given, loss: loss * float("inf"))
    try:
        trainable.step(batches, 1e-3)
        error = "none"
    except NonFiniteError as found:
        error = f"{type(found).__name__}: {found}"
    if handle is not None:
        handle.remove()
    pairs = zip(weights_of(trainable), before, strict=True)
    same = all(np.array_equal(after, held) for (_, _, after), (_, _, held) in pairs)
    return error, same, trainable.step(batches, 1e-3).loss


def refused(recipe: Recipe) -> str:
    """The error of building."""
    try:
        make_trainable(recipe)
    except ValueError as error:
        return str(error)
    return "accepted"
