"""Two regions of the brain from twelve slices, from pretrained weights and from scratch: bench/results/brain_regions.json.

The same slices, seeds and steps on both sides; Dice on slices of the head that neither has seen, at its best step by those
slices and at the last step. brain-extraction is trained first, on another head.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from burnish.recipe_files import load_any
from burnish.records import Records, read
from burnish.run import run
from burnish.vision.recipe import VisionRecipe, replace
from record import record

SEEDS = (0, 1, 2)
BASE_STEPS = 200


def trained(recipe: VisionRecipe, folder: Path) -> tuple[float, float]:
    """Dice at the best step and at the last one."""
    run(recipe, folder=folder, fresh=True, stages=("train",), quiet=True)
    scores = [one.score or 0.0 for one in read(Records, folder / "records.json").evals]
    return max(scores), scores[-1]


def main() -> None:
    """Measure and record."""
    began = time.perf_counter()
    base, regions = load_any("brain-extraction")[0], load_any("brain-regions")[0]
    assert isinstance(base, VisionRecipe)
    assert isinstance(regions, VisionRecipe)
    values: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        first = Path(scratch) / "base"
        changes = {"train.steps": BASE_STEPS, "prune.target": 0, "int8.used": False, "output.onnx": False}
        run(replace(base, changes), folder=first, fresh=True, quiet=True)
        for seed in SEEDS:
            for name, init in (("pretrained", str(first)), ("scratch", None)):
                made = replace(regions, {"train.seed": seed, "train.init": init})
                best, last = trained(made, Path(scratch) / f"{name}-{seed}")
                values |= {f"{name}_{seed}": last, f"{name}_best_{seed}": best}
                print(f"seed {seed} {name}: Dice {last:.4f} at the last step, {best:.4f} at the best")
    gains = [values[f"pretrained_{seed}"] - values[f"scratch_{seed}"] for seed in SEEDS]
    values |= {"least_gain": min(gains), "mean_gain": sum(gains) / len(gains), "seconds": time.perf_counter() - began}
    for name in ("pretrained", "scratch"):
        values[f"{name}_mean"] = sum(values[f"{name}_{seed}"] for seed in SEEDS) / len(SEEDS)
    print(record("brain_regions", values), values)


if __name__ == "__main__":
    main()
