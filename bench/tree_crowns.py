"""Trees from the air, from ImageNet's weights and from scratch with the same steps: bench/results/tree_crowns.json.

The recipe tree-crowns as it ships, and with nothing changed but that its weights are drawn.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path

from burnish.errors import BudgetNotMet
from burnish.load.backbones import backbone
from burnish.load.picture_sets import picture_set
from burnish.recipe_files import load_any
from burnish.run import run
from burnish.vision.recipe import VisionRecipe, replace
from record import record

NAME = "tree-crowns"


def quality_of(recipe: VisionRecipe, folder: Path) -> dict[str, float]:
    """Numbers of a run, whether or not its budgets are met."""
    with contextlib.suppress(BudgetNotMet):
        run(recipe, folder=folder, fresh=True, quiet=True)
    found = json.loads((folder / "report.json").read_text(encoding="utf-8"))["quality"]
    return {key: value for key, value in found.items() if isinstance(value, float | int)}


def main() -> None:
    """Measure and record."""
    picture_set(NAME)
    backbone("efficientnet-lite0")
    recipe, _ = load_any(NAME)
    assert isinstance(recipe, VisionRecipe)
    plain = {"train.init": None, "int8.used": False, "output.overlays": 0}
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        values = quality_of(recipe, Path(scratch) / "pretrained")
        values["seconds"] = time.perf_counter() - began
        drawn = quality_of(replace(recipe, plain), Path(scratch) / "scratch")
    values |= {"scratch.map": drawn["trained.map"], "scratch.map50": drawn["trained.map50"]}
    values["gain50"] = values["trained.map50"] - values["scratch.map50"]
    print(record("tree_crowns", values), values)


if __name__ == "__main__":
    main()
