"""What tests of 8-bit products share: a small recipe whose sizes they take, and what one rank does with it in the pool."""

from __future__ import annotations

from typing import Any

from burnish.config import ModelConfig
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from tensor_ranks import LR, ROWS, SEQ, data_rank, make_batches, make_trainable, shapes_of

MODEL = {"vocab": 331, "hidden": 48, "ffn": 160, "heads": 4, "kv_heads": 2, "layers": 3, "head_dim": 16}
FAMILIES = {
    "llama": {},
    "gpt2": {"family": "gpt2", "kv_heads": 4, "hidden": 64},
    "one key head": {"kv_heads": 1},
    "qwen3": {"family": "qwen3", "tied": False},
    "experts": {"family": "mixtral", "experts": 4, "topk": 2},
}
SCALINGS = ("current", "delayed", "block")


def make_recipe(fp8: Any, model: str = "llama", **settings: Any) -> Recipe:
    """`settings` with two underscores for a dot; `fp8` None for products that are not cast."""
    config = ModelConfig(**{**MODEL, **FAMILIES[model]}, max_positions=64)
    wanted = {key.replace("__", "."): value for key, value in settings.items()}
    parallel = {key.removeprefix("parallel."): value for key, value in wanted.items() if key.startswith("parallel.")}
    rows = 16 * parallel.get("dp", 1)
    techniques = wanted.pop("techniques", {}) | ({} if fp8 is None else {"fp8": fp8})
    base = {"data.seq": SEQ, "train.global_batch": rows, "train.micro_batch": ROWS, "techniques": techniques}
    return replace(load("quickstart").model_copy(update={"model": config}), base | wanted)


def trained(recipe: Recipe, steps: int, micro: int) -> list[tuple[float, float]]:
    """Losses and gradient norms of `steps` steps on this rank's part of the rows."""
    trainable = make_trainable(recipe)
    results = []
    for step in range(steps):
        batches = make_batches(micro * recipe.parallel.dp, recipe.model.vocab, step)
        first = data_rank(recipe) * micro if recipe.parallel.world > 1 else 0
        result = trainable.step(batches[first : first + micro], LR)
        results.append((result.loss, result.grad_norm))
    return results


__all__ = ["LR", "MODEL", "ROWS", "SCALINGS", "SEQ", "make_batches", "make_recipe", "make_trainable", "shapes_of"]
