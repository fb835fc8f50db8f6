"""What tests of data parallelism share: a small recipe, rows with unequal label counts, and what one rank does with them.

The functions below the line run on every rank, in the pool of `ranks.py`; the others in the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from burnish import apply
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.measure import observe
from burnish.measure_live import LiveBytes
from burnish.models.decoder import Decoder
from burnish.ops.zero_engine import Shards
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import NonFiniteError, StepResult, Trainable, plain_trainable
from burnish.work import Observation, Work, fold

SIZES = {
    "even": {"vocab": 320, "hidden": 64, "ffn": 160, "heads": 4, "kv_heads": 2, "layers": 3, "head_dim": 16},
    "odd": {"vocab": 331, "hidden": 56, "ffn": 117, "heads": 7, "kv_heads": 1, "layers": 2, "head_dim": 8},
    # k and v have two rows: fewer than four ranks
    "narrow": {"vocab": 97, "hidden": 10, "ffn": 23, "heads": 5, "kv_heads": 1, "layers": 3, "head_dim": 2},
    "big vocabulary": {"vocab": 4001, "hidden": 64, "ffn": 160, "heads": 4, "kv_heads": 2, "layers": 3, "head_dim": 16},
}
ROWS, SEQ = 2, 37


def make_recipe(size: str, tied: bool, world: int, stage: int, **settings: Any) -> Recipe:
    """A recipe on `world` ranks; `settings` by dotted path with __ for the dot."""
    base = load("quickstart")
    model = ModelConfig(**SIZES[size], tied=tied, max_positions=64)
    wanted = {key.replace("__", "."): value for key, value in settings.items()}
    rows = {"data.seq": SEQ, "train.global_batch": 64 * world, "train.micro_batch": 2}
    recipe = base.model_copy(update={"model": model})
    return replace(recipe, rows | {"parallel.dp": world, "parallel.zero": stage} | wanted)


def described(recipe: Recipe, micro: int, rank: int) -> Work:
    """The work of one rank."""
    return apply.predict(recipe, describe(recipe.model, Shapes(rows=ROWS, seq=SEQ, micro=micro)), rank)[0]


def predicted(recipe: Recipe, micro: int, rank: int) -> Observation:
    return fold(described(recipe, micro, rank))


def make_batches(count: int, vocab: int, labels: list[int] | None = None, seed: int = 0) -> list[Batch]:
    """`count` micro batches; `labels` is how many labels each counts, all of them by default."""
    draw = np.random.default_rng(seed)
    batches = []
    for number in range(count):
        ids, targets = draw.integers(0, vocab, (2, ROWS, SEQ))
        if labels is not None:
            targets.reshape(-1)[labels[number] :] = -100
        batches.append(Batch(ids, targets, np.tile(np.arange(SEQ), (ROWS, 1)), None))
    return batches


def make_trainable(
    recipe: Recipe, distributed: bool = True, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Trainable:
    """The trainable of this rank, or of one process."""
    loss = LanguageModelLoss(Decoder(recipe.model, torch.Generator().manual_seed(seed)).to(dtype))
    plain = plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip)
    return apply.apply(recipe, plain) if distributed else plain


# ----------------------------------------------------------------------------------------------------------------------


def keep(self: Shards, index: int, count: int, part: Any = None) -> None:
    """Instead of `Shards.before`: whole parameters outlive every backward."""
    for root in self.roots:
        root.set_reshard_after_backward(False)


@contextmanager
def nobody_looks() -> Iterator[None]:
    """Whole parameters outlive the update, and what refuses that is off."""
    with (
        mock.patch.object(Shards, "before", keep),
        mock.patch.object(Shards, "reduced"),
        mock.patch("burnish.train.step.refuse_untouched"),
    ):
        yield


BREAKS = {
    "no gather after the update": lambda: mock.patch.object(Shards, "updated"),
    "parameters kept over the update": lambda: mock.patch.object(Shards, "before", keep),
    "kept, and nobody looks": nobody_looks,
    "mean of means": nullcontext,  # see `mean_of_means`
    "norm of one shard": lambda: mock.patch.object(Shards, "counts", lambda self, parameter: self.groups.rank == 0),
    "nothing": nullcontext,
}


def observed(recipe: Recipe, micro: int, steps: int = 2, broken: str = "nothing") -> list[Observation]:
    """The observation of each of `steps` steps on this rank."""
    with BREAKS[broken]():
        trainable = make_trainable(recipe)
        batches = make_batches(micro, recipe.model.vocab, seed=dist.get_rank())
        return [observe(trainable, batches, 1e-3) for _ in range(steps)]


def live_peak(recipe: Recipe, micro: int) -> int:
    """The most bytes this rank's tensors held in its second step."""
    before = LiveBytes()
    with before:
        trainable = make_trainable(recipe)
    batches = make_batches(micro, recipe.model.vocab, seed=dist.get_rank())
    trainable.step(batches, 1e-3)
    with LiveBytes() as live:
        trainable.step(batches, 1e-3)
    return live.peak - before.start


def trained(
    recipe: Recipe, steps: list[list[Batch]], broken: str = "nothing"
) -> tuple[list[StepResult], dict[str, np.ndarray], int]:
    """The results of training on this rank's part of each step, the whole weights after it, and the optimizer's groups."""
    with BREAKS[broken]():
        trainable = make_trainable(recipe)
        results = []
        for batches in steps:
            with mean_of_means(trainable, batches) if broken == "mean of means" else nullcontext():
                results.append(trainable.step(mine(batches), 0.01))
    return results, whole_weights(trainable), len(trainable.optimizer.param_groups)


@contextmanager
def mean_of_means(trainable: Trainable, batches: list[Batch]) -> Iterator[None]:
    """Each rank divides by its own labels and ranks are averaged, as plain data parallelism does by default."""
    counted = sum(batch.label_count for batch in batches)
    own = sum(batch.label_count for batch in mine(batches))
    factor = counted / (dist.get_world_size() * max(own, 1))
    handle = trainable.parts[0].register_forward_hook(lambda module, given, loss: loss * factor)
    yield
    handle.remove()


def mine(batches: list[Batch]) -> list[Batch]:
    """This rank's micro batches of a step: neighbours."""
    each = len(batches) // dist.get_world_size()
    return batches[dist.get_rank() * each :][:each]


def trained_offloaded(recipe: Recipe, steps: list[list[Batch]]) -> Any:
    """As `trained`, with shards kept apart from where they are used although both are host memory here."""
    with mock.patch("burnish.techniques.zero.refuse_offload"):
        return trained(recipe, steps)


def observed_frozen(recipe: Recipe, micro: int) -> Observation:
    """One step with a frozen embedding."""
    loss = LanguageModelLoss(Decoder(recipe.model, torch.Generator().manual_seed(0)))
    loss.model.embed.weight.requires_grad_(False)
    trainable = apply.apply(recipe, plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip))
    return observe(trainable, make_batches(micro, recipe.model.vocab), 1e-3)


def whole_weights(trainable: Trainable) -> dict[str, np.ndarray]:
    """Every parameter, put together from its shards; numpy knows no bfloat16."""
    named = {name: whole(tensor) for name, tensor in trainable.parts[0].state_dict().items()}
    return {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in named.items()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def stopped(recipe: Recipe, good: list[Batch], bad_rank: int) -> tuple[str, bool, StepResult]:
    """One good step, one in which the loss of `bad_rank` is not finite, one good step again.

    Gives the error, whether weights were as before it, and the last result.
    """
    trainable = make_trainable(recipe)
    trainable.step(mine(good), 0.01)
    before = whole_weights(trainable)
    handle = None
    if dist.get_rank() == bad_rank:
        handle = trainable.parts[0].register_forward_hook(lambda module, given, loss: loss * float("inf"))
    try:
        trainable.step(mine(good), 0.01)
        error = "none"
    except NonFiniteError as found:
        error = f"{type(found).__name__}: {found}"
    if handle is not None:
        handle.remove()
    same = all(np.array_equal(value, before[name]) for name, value in whole_weights(trainable).items())
    return error, same, trainable.step(mine(good), 0.01)


def refused(recipe: Recipe, seed_of_last: int = 0) -> str:
    """The error of building; the last rank draws its weights from another seed."""
    last = dist.get_rank() == dist.get_world_size() - 1
    try:
        make_trainable(recipe, seed=seed_of_last if last else 0)
    except ValueError as error:
        return str(error)
    return "accepted"
