"""Training beside MONAI's tutorial loop: bench/results/segmentation_vs_monai.json.

The same network, prepared slices of one head, patches, batches, steps, rates and kinds of augmentation; theirs is CacheDataset,
dictionary transforms, DataLoader with as many workers as are fastest here, DiceCELoss and sliding_window_inference. Each side
is a process of its own. Dice is on the slices of another head, without any step after the network.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.hardware import detect
from burnish.recipe_files import load_any
from burnish.train.loop import train
from burnish.train.optim import lr_at
from burnish.vision.fingerprint import fingerprint_of, settle
from burnish.vision.learner import job_of, labeller, trainable_of
from burnish.vision.metric import dice
from burnish.vision.networks import build
from burnish.vision.prepared import Case, prepare
from burnish.vision.recipe import VisionRecipe, replace
from burnish.vision.scan_lessons import lessons_of, score_cases
from burnish.vision.sources import split_of
from record import record

STEPS, TRIAL, WORKERS = 200, 40, (0, 2)
SEEDS = (0, 1, 2)


def setting(steps: int, seed: int) -> tuple[VisionRecipe, list[Case], list[Case]]:
    """The recipe, settled, with its training and test cases as the networks see them."""
    made = load_any("brain-extraction")[0]
    assert isinstance(made, VisionRecipe)
    made = replace(made, {"train.steps": steps, "train.eval_every": 0, "train.checkpoint_every": 0})
    made = replace(made, {"images.validation_slices": 0.0, "train.seed": seed})
    split = split_of(made.images, seed)
    made, _ = settle(made, fingerprint_of(split.train))
    sides = [prepare(side, made.images, made.network.dimensions)[0] for side in (split.train, split.test)]
    return made, sides[0], sides[1]


def ours(steps: int, seed: int) -> dict[str, float]:
    """The loop of the package."""
    recipe, learn_from, judge_on = setting(steps, seed)
    torch.manual_seed(seed)
    model = build(recipe.network)
    lessons = lessons_of(recipe, learn_from, [])
    trainable = trainable_of(recipe, model)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        train(trainable, job_of(recipe, Path(folder), lessons, model, "cpu", {}, steps))
        seconds = time.perf_counter() - began
    own = labeller(recipe, model, "cpu", finished=False)
    score = score_cases(own, judge_on, list(recipe.images.classes)).mean
    return {"dice": score, "images_per_second": steps * recipe.train.global_batch / seconds, "peak": peak()}


def transforms(recipe: VisionRecipe) -> Any:
    """Dictionary transforms of the same kinds and sizes as the recipe's augmentation."""
    from monai import transforms as t

    both, own = ["image", "label"], recipe.augment
    turn, grow = math.radians(own.rotate), own.scale
    patch = list(recipe.images.patch or ())
    shift = [own.shift * side for side in patch]
    return t.Compose(
        [
            t.SpatialPadd(keys=both, spatial_size=patch),
            t.RandSpatialCropd(keys=both, roi_size=patch, random_size=False),
            t.RandAffined(
                keys=both,
                prob=1.0,
                rotate_range=turn,
                scale_range=grow,
                translate_range=shift,
                mode=("bilinear", "nearest"),
                padding_mode=("border", "zeros"),
            ),
            t.RandAdjustContrastd(keys="image", prob=1.0, gamma=(0.7, 1.5)),
            t.RandBiasFieldd(keys="image", prob=1.0, coeff_range=(0.0, own.bias)),
            t.RandScaleIntensityd(keys="image", prob=1.0, factors=own.contrast),
            t.RandShiftIntensityd(keys="image", prob=1.0, offsets=own.brightness),
            t.RandGaussianSmoothd(keys="image", prob=own.blur),
            t.RandGaussianNoised(keys="image", prob=1.0, std=own.noise),
        ]
    )


def theirs(steps: int, seed: int, workers: int) -> dict[str, float]:
    """MONAI's tutorial loop."""
    from monai.data import CacheDataset, DataLoader
    from monai.inferers import sliding_window_inference
    from monai.losses import DiceCELoss
    from monai.utils import set_determinism

    recipe, learn_from, judge_on = setting(steps, seed)
    set_determinism(seed)
    model = build(recipe.network)
    case = learn_from[0]
    rows = [
        {"image": np.array(case.image[:, k]), "label": np.array(case.label[k])[None].astype(np.float32)}
        for k in range(case.label.shape[0])
    ]
    data = CacheDataset(rows, transforms(recipe), cache_rate=1.0, progress=False)
    batch = recipe.train.global_batch
    loader = DataLoader(
        data, batch_size=batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )
    loss = DiceCELoss(softmax=True, to_onehot_y=True, include_background=False, batch=True)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.optim.lr, betas=recipe.optim.betas, weight_decay=recipe.optim.weight_decay
    )
    began, step = time.perf_counter(), 0
    model.train()
    while step < steps:
        for pieces in loader:
            for group in optimizer.param_groups:
                group["lr"] = lr_at(step, recipe.schedule, steps, recipe.optim.lr)
            optimizer.zero_grad()
            value = loss(model(pieces["image"]), pieces["label"])
            value.backward()
            optimizer.step()
            step += 1
            if step == steps:
                break
    seconds = time.perf_counter() - began
    model.eval()
    test = judge_on[0]
    with torch.no_grad():
        image = torch.from_numpy(np.array(test.image)).transpose(0, 1)
        window = recipe.images.patch
        scores = [
            sliding_window_inference(one, window, recipe.inference.batch, model, recipe.inference.overlap, "gaussian")
            for one in image.split(recipe.inference.batch)
        ]
    found = torch.cat([torch.as_tensor(one) for one in scores]).argmax(dim=1).numpy()
    score = dice(found, np.asarray(test.label), 1)
    return {"dice": score, "images_per_second": steps * batch / seconds, "peak": peak()}


def peak() -> float:
    """Most memory of this process and of the largest of its workers, bytes."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return float(sum(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024)


def apart(side: str, steps: int, seed: int, workers: int = 0) -> dict[str, float]:
    """One side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--steps", str(steps), "--seed", str(seed)]
    ran = subprocess.run([*command, "--workers", str(workers)], capture_output=True, text=True, check=True)
    made: dict[str, float] = json.loads(ran.stdout.strip().splitlines()[-1])
    print(side, f"seed {seed}, {workers} workers, {steps} steps:", made)
    return made


def main() -> None:
    """Measure and record: means over seeds, sides in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("ours", "theirs"))
    for name, value in (("steps", STEPS), ("seed", 0), ("workers", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    if given.side:
        torch.set_num_threads(detect().threads)
        one = ours(given.steps, given.seed) if given.side == "ours" else theirs(given.steps, given.seed, given.workers)
        print(json.dumps(one))
        return
    setting(given.steps, 0)  # fetched and prepared before either is timed
    fastest = max(WORKERS, key=lambda count: apart("theirs", TRIAL, 0, count)["images_per_second"])
    pairs = [(apart("ours", given.steps, seed), apart("theirs", given.steps, seed, fastest)) for seed in SEEDS]
    values: dict[str, float] = {"monai.workers": fastest}
    for key in ("dice", "images_per_second", "peak"):
        for side, name in enumerate(("ours", "monai")):
            values[f"{name}.{key}"] = sum(pair[side][key] for pair in pairs) / len(pairs)
    values |= {
        "dice.above": values["ours.dice"] - values["monai.dice"],
        "dice.ratio": values["ours.dice"] / values["monai.dice"],
        "speed.ratio": values["ours.images_per_second"] / values["monai.images_per_second"],
        "memory.ratio": values["ours.peak"] / values["monai.peak"],
    }
    print(record("segmentation_vs_monai", values), values)


if __name__ == "__main__":
    main()
