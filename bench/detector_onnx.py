"""Boxes by onnxruntime beside boxes by torch, on trained weights: bench/results/detector_onnx.json.

A detector that has learned digits for a while; batches of one and three, three sizes of pictures, boxes as they come out of each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from burnish.recipe_files import load_any
from burnish.train.optim import lr_at
from burnish.vision.boxes import decoded
from burnish.vision.learner import trainable_of
from burnish.vision.networks import build
from burnish.vision.onnx_network import export
from burnish.vision.onnx_providers import IMAGES, ON_CPU, opened_on
from burnish.vision.picture_material import PictureMaterial
from burnish.vision.recipe import VisionRecipe
from burnish.vision.seen_picture import SeenPicture
from record import record

STEPS, LIKELY = 200, 0.1
BATCHES, SIZES = (1, 3), ((96, 96), (64, 128), (112, 80))


def main() -> None:
    """Measure and record."""
    recipe, _ = load_any("digits-detector", [f"train.steps={STEPS}"])
    assert isinstance(recipe, VisionRecipe)
    material = PictureMaterial.of(recipe)
    recipe, _ = material.settled(recipe)
    lessons, _ = material.lessons(recipe, None)
    torch.manual_seed(recipe.train.seed)
    model = build(recipe.network)
    trainable, batches = trainable_of(recipe, model), lessons.batches(recipe, recipe.train.seed)
    for step in range(STEPS):
        trainable.step(batches(step), lr_at(step, recipe.schedule, STEPS, recipe.optim.lr))
    model.eval()
    values = {"box": 0.0, "score": 0.0, "boxes": 0.0}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        values["maps"] = export(model, (1, 1, 96, 96), path, recipe.network.divisor).difference
        session = opened_on(path, wanted=ON_CPU)
        for batch in BATCHES:
            for size in SIZES:
                images = np.stack([shown(lessons.held[4 * k : 4 * k + 4], size) for k in range(batch)])
                with torch.no_grad():
                    ours = decoded(model(torch.from_numpy(images)).numpy(), 100, size)
                theirs = decoded(session.run(None, {IMAGES: images})[0], 100, size)
                for one, other in zip(ours, theirs, strict=True):
                    count = int((one.scores > LIKELY).sum())
                    values["boxes"] += count
                    values["box"] = max(values["box"], _apart(one.boxes[:count], other.boxes[:count]))
                    values["score"] = max(values["score"], _apart(one.scores[:count], other.scores[:count]))
    print(record("detector_onnx", values), values)


def shown(four: Sequence[SeenPicture], size: tuple[int, int]) -> np.ndarray:
    """A piece of `size` (height, width) of four pictures put together, as the network reads it."""
    top, bottom = (np.concatenate([one.pixels for one in pair], axis=2) for pair in (four[:2], four[2:]))
    whole = np.concatenate((top, bottom), axis=1)
    return np.ascontiguousarray(whole[:, : size[0], : size[1]]).astype(np.float32) / 255


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max()) if one.size else 0.0


if __name__ == "__main__":
    main()
