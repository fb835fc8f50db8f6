"""What tests of tensor parallelism share: recipes whose layers divide, and what one rank does with them in the pool."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch

from burnish import apply
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.measure import observe
from burnish.models.decoder import Decoder
from burnish.ops import split_products, tensor_parallel
from burnish.ops.vocabulary import Vocabulary
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import StepResult, Trainable, plain_trainable
from burnish.work import Observation, fold

SIZES = {"vocab": 331, "hidden": 56, "ffn": 116, "heads": 8, "layers": 2, "head_dim": 8, "max_positions": 64}
MODELS = {
    "llama": {"kv_heads": 4},
    "llama untied": {"kv_heads": 2, "tied": False},
    "one key head": {"kv_heads": 1},
    "qwen3": {"family": "qwen3", "kv_heads": 2},
    "qwen3 one key head": {"family": "qwen3", "kv_heads": 1, "tied": False},
    "qwen2": {"family": "qwen2", "kv_heads": 4},
    "qwen2 one key head": {"family": "qwen2", "kv_heads": 1},
    "mistral": {"family": "mistral", "kv_heads": 8, "window": 7},
    "gpt2": {"family": "gpt2", "kv_heads": 8, "hidden": 64},
}
ROWS, SEQ = 2, 36
LR = 1e-3  # a step in which rounding moves nothing that matters: Adam makes whole steps of gradients near 0


def make_recipe(model: str, tp: int, dp: int = 1, sequence: bool = True, **settings: Any) -> Recipe:
    base = load("quickstart").model_copy(update={"model": ModelConfig(**SIZES | MODELS[model])})
    wanted = {key.replace("__", "."): value for key, value in settings.items()}
    rows = {"data.seq": SEQ, "train.global_batch": 64 * dp, "train.micro_batch": ROWS}
    return replace(base, rows | {"parallel.tp": tp, "parallel.dp": dp, "parallel.sequence": sequence} | wanted)


def shapes_of(micro: int, pieces: tuple[int, ...] | None = None) -> Shapes:
    pairs = None if pieces is None else ROWS * sum(n * n for n in pieces)
    return Shapes(rows=ROWS, seq=SEQ, micro=micro, pairs=pairs, packed=pieces is not None)


def predicted(recipe: Recipe, micro: int, rank: int, pieces: tuple[int, ...] | None = None) -> Observation:
    return fold(apply.predict(recipe, describe(recipe.model, shapes_of(micro, pieces)), rank)[0])


def make_batches(count: int, vocab: int, seed: int, pieces: tuple[int, ...] | None = None) -> list[Batch]:
    """Micro batches with unequal numbers of labels; rows of `pieces` where they are packed."""
    draw = np.random.default_rng(seed)
    positions = np.arange(SEQ) if pieces is None else np.concatenate([np.arange(n) for n in pieces])
    batches = []
    for number in range(count):
        ids, labels = draw.integers(0, vocab, (2, ROWS, SEQ))
        labels.reshape(-1)[5 + 11 * number :: 3] = -100
        batches.append(Batch(ids, labels, np.tile(positions, (ROWS, 1)), (pieces,) * ROWS if pieces else None))
    return batches


def make_trainable(recipe: Recipe, distributed: bool = True, work: Any = None) -> Trainable:
    loss = LanguageModelLoss(Decoder(recipe.model, torch.Generator().manual_seed(0)))
    with torch.no_grad():  # norms and biases that are not all the same, so that leaving one out shows
        draw = torch.Generator().manual_seed(1)
        for parameter in loss.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.1)
    plain = plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip)
    return apply.apply(recipe, plain, work) if distributed else plain


# ----------------------------------------------------------------------------------------------------------------------


def _first_rank_only(self: Any, parameter: Any) -> bool:
    return self.place == 0


def _mean_of_parts(self: Vocabulary, exponentials: torch.Tensor, at_label: torch.Tensor) -> Any:
    return exponentials * 2, at_label


BREAKS = {
    "nothing": nullcontext,
    "norms not summed": lambda: mock.patch.object(tensor_parallel.TensorParallel, "reduced"),
    "norm of one rank": lambda: mock.patch.object(tensor_parallel.TensorParallel, "counts", _first_rank_only),
    "exponentials not summed": lambda: mock.patch.object(Vocabulary, "sums", _mean_of_parts),
    "input kept whole": lambda: mock.patch.object(tensor_parallel, "opened", split_products.GatherTokens.apply),
}


def observed(recipe: Recipe, micro: int, pieces: tuple[int, ...] | None = None, broken: str = "nothing") -> list:
    with BREAKS[broken]():
        work = describe(recipe.model, shapes_of(micro, pieces))
        trainable = make_trainable(recipe, work=work)
        batches = make_batches(micro, recipe.model.vocab, data_rank(recipe), pieces)
        return [observe(trainable, batches, 1e-3) for _ in range(2)]


def trained(recipe: Recipe, steps: list[list[Batch]], broken: str = "nothing") -> list[StepResult]:
    """The results of training on this data-parallel rank's part of each step."""
    with BREAKS[broken]():
        trainable = make_trainable(recipe)
        results = []
        for batches in steps:
            each = len(batches) // recipe.parallel.dp
            results.append(trainable.step(batches[data_rank(recipe) * each :][:each], LR))
        return results


def data_rank(recipe: Recipe) -> int:
    return torch.distributed.get_rank() // recipe.parallel.tp % recipe.parallel.dp
