"""What tests of checkpoints over ranks share: mappings, one stretch of a run on each, and a checkpoint put together by hand.

The functions below the line run on every rank, in the pool of `ranks.py`; the others in the test.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors import safe_open

import zero_ranks
from burnish.crew import started_crew
from burnish.data.batch import Batch
from burnish.placement import Placement
from burnish.recipe import Recipe
from burnish.runnable import data_place
from burnish.train.optim import fill_state
from burnish.train.pieces import read_pieces
from burnish.train.state import State, load_checkpoint, save_checkpoint
from burnish.train.step import StepResult

MICROS = 12  # divides by every number of data-parallel ranks here
MAPPINGS = {
    "one": {},
    "dp 2": {"dp": 2},
    "dp 3, stage 1": {"dp": 3, "zero": 1},
    "dp 4, stage 2": {"dp": 4, "zero": 2},
    "dp 2, stage 3": {"dp": 2, "zero": 3},
    "dp 4, stage 3 in pairs": {"dp": 4, "zero": 3, "shard": 2},
    "dp 4, stage 1 in pairs": {"dp": 4, "zero": 1, "shard": 2},
    "tp 2": {"tp": 2},
    "pp 2": {"pp": 2},
    "tp 2, pp 2": {"tp": 2, "pp": 2},
    "dp 2, stage 3, tp 2": {"dp": 2, "zero": 3, "tp": 2},
    "dp 2, stage 1, pp 2": {"dp": 2, "zero": 1, "pp": 2},
    "dp 2, tp 2, pp 2": {"dp": 2, "tp": 2, "pp": 2},
}


def mapped(name: str, tied: bool = True, **settings: Any) -> tuple[Recipe, int]:
    """A small recipe on a mapping, and its ranks."""
    asked: dict[str, int] = MAPPINGS[name]
    parallel = {f"parallel__{key}": value for key, value in asked.items() if key != "zero"}
    rows = {
        "parallel__sequence": False,
        "train__global_batch": MICROS * zero_ranks.ROWS,
        "train__micro_batch": zero_ranks.ROWS,
    }
    recipe = zero_ranks.make_recipe("even", tied, 1, asked.get("zero", 0), **rows, **parallel, **settings)
    return recipe, recipe.parallel.world


def dtype_of(recipe: Recipe) -> torch.dtype:
    """Float64 where a recipe allows it: then only what is wrong differs, not the order of sums over many steps."""
    return torch.float64 if recipe.precision.compute == "fp32" else torch.float32


def steps(first: int, count: int) -> list[list[Batch]]:
    """The micro batches of steps, with unequal label counts."""
    labels = [5 + 4 * number for number in range(MICROS)]
    return [zero_ranks.make_batches(MICROS, 320, labels, seed=number) for number in range(first, first + count)]


def whole_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint, put together from its index and files without the code under test; float32 or float64."""
    found = {}
    for name, about in json.loads((folder / "pieces.json").read_text())["tensors"].items():
        full = np.full(about["shape"], np.nan, dtype=np.float64)
        for piece in about["pieces"]:
            box = tuple(slice(a, a + n) for a, n in zip(piece["at"], piece["size"], strict=True))
            assert np.isnan(full[box]).all(), f"{name}: written twice"
            with safe_open(folder / piece["file"], framework="pt") as file:
                full[box] = file.get_tensor(piece["key"]).double().numpy()
        assert not np.isnan(full).any(), f"{name}: not all of it is written"
        found[name] = full
    return found


# ----------------------------------------------------------------------------------------------------------------------


def shifted(self: Placement, start: Any, size: Any) -> Placement:
    """Instead of `Placement.within`: a shard that lies at the first rows of the whole, wherever it belongs."""
    found = original(self, start, size)
    return found if not start or not start[0] else original(self, (0,) * len(start), size)


def weights_alone(folder: Path, tensors: Any, crew: Any) -> None:
    """Instead of `read_pieces`: the optimizer starts anew."""
    read_pieces(folder, {name: thing for name, thing in tensors.items() if name.startswith("model/")}, crew)


original = Placement.within
BREAKS: dict[str, Any] = {
    "nothing": nullcontext,
    "a shard put where the first one lies": lambda: mock.patch.object(Placement, "within", shifted),
    "moments left out": lambda: mock.patch("burnish.train.state.read_pieces", weights_alone),
}


def stretch(
    recipe: Recipe, batches: list[list[Batch]], folder: Path, old: Path | None, number: int, broken: str = "nothing"
) -> tuple[list[StepResult], Path, Path]:
    """Go on from `old`, save at once as step `number`, take the steps, and save again: results and both checkpoints."""
    breaking: AbstractContextManager[Any] = BREAKS[broken]()
    with breaking:
        crew = started_crew()
        index, count = data_place(recipe, crew.rank)
        trainable = zero_ranks.make_trainable(recipe, seed=0 if old is None else 7, dtype=dtype_of(recipe))
        fill_state(trainable.optimizer)
        if old is not None:
            load_checkpoint(old, trainable, {}, crew)
        before = save_checkpoint(folder / "before", trainable, State(number, 0), 9, crew)
        each = MICROS // count
        results = [trainable.step(step[index * each :][:each], 0.01) for step in batches]
        after = save_checkpoint(folder / "after", trainable, State(number + len(batches), 0), 9, crew)
        return results, before, after
