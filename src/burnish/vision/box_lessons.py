"""Box lessons: annotated pictures as what a detector learns from, and those that are held out; a function of seed and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from burnish.vision.augment import revalued
from burnish.vision.box_batch import BoxBatch
from burnish.vision.box_metric import BoxScores, score
from burnish.vision.box_targets import targets_of
from burnish.vision.box_variation import KEPT, varied
from burnish.vision.boxes import STRIDE
from burnish.vision.finding import find
from burnish.vision.inference import Labeller
from burnish.vision.normalise import normalised
from burnish.vision.recipe import VisionRecipe
from burnish.vision.seen_picture import SeenPicture


@dataclass(frozen=True, eq=False)
class BoxLessons:
    """Pictures to learn from and pictures that the best weights are chosen by."""

    pool: tuple[SeenPicture, ...]
    held: tuple[SeenPicture, ...]
    classes: tuple[str, ...]

    def batches(self, recipe: VisionRecipe, seed: int) -> Callable[[int], list[BoxBatch]]:
        """The micro batches of step n."""
        return lambda step: box_batches(recipe, self.pool, len(self.classes), np.random.default_rng([seed, step]))

    def score(self, own: Labeller) -> BoxScores:
        """A network on what is held out."""
        return score(find(own, [one.pixels for one in self.held]), self.held, self.classes)


def box_batches(
    recipe: VisionRecipe, pool: Sequence[SeenPicture], classes: int, draw: np.random.Generator
) -> list[BoxBatch]:
    """The micro batches of one step."""
    picked = [patch_of(recipe, pool[int(draw.integers(len(pool)))], draw) for _ in range(recipe.train.global_batch)]
    images = torch.stack([image for image, _, _ in picked])
    if recipe.augment.enabled:
        images = revalued(images, recipe.augment, torch.Generator().manual_seed(int(draw.integers(2**62))))
    cells = (images.shape[2] // STRIDE, images.shape[3] // STRIDE)
    targets = torch.stack([targets_of(boxes, labels, classes, cells) for _, boxes, labels in picked])
    counts = [len(boxes) for _, boxes, _ in picked]
    made, micro = [], recipe.train.micro_batch
    for first in range(0, len(picked), micro):
        some = slice(first, first + micro)  # copied, as a view would keep the whole batch
        made.append(BoxBatch(images[some].clone(), targets[some].clone(), sum(counts[some])))
    return made


def patch_of(recipe: VisionRecipe, picture: SeenPicture, draw: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A patch [C, *patch] with its boxes and labels: around a box as often as `images.foreground` says, else anywhere."""
    assert recipe.images.patch is not None
    rows, columns = recipe.images.patch
    centre = [draw.integers(side + 1) for side in picture.size]
    if len(picture.boxes) and draw.random() < recipe.images.foreground:
        left, top, right, bottom = picture.boxes[int(draw.integers(len(picture.boxes)))]
        centre = [draw.normal((top + bottom) / 2, rows / 6), draw.normal((left + right) / 2, columns / 6)]
    corner = [
        _corner(int(at), side, length) for at, side, length in zip(centre, (rows, columns), picture.size, strict=True)
    ]
    image, boxes, labels = cut(picture, (corner[0], corner[1]), (rows, columns))
    pixels = torch.from_numpy(normalised(image.astype(np.float32), recipe.images, image.dtype))
    if not recipe.augment.enabled:
        return pixels, boxes, labels
    generator = torch.Generator().manual_seed(int(draw.integers(2**62)))
    return varied(pixels, boxes, labels, recipe.augment, generator)


def _corner(centre: int, side: int, length: int) -> int:
    """Where a patch begins: inside of the picture; around one that is smaller."""
    return min(max(centre - side // 2, 0), length - side) if length > side else (length - side) // 2


def cut(picture: SeenPicture, corner: tuple[int, int], sides: tuple[int, int]) -> tuple[np.ndarray, Tensor, Tensor]:
    """The piece of `sides` at `corner` (row, column), the picture's edge repeated around; boxes cut to it, without crowds.

    A box of which less than `KEPT` is inside is left out.
    """
    (top, left), (rows, columns) = corner, sides
    height, width = picture.size
    down = np.clip(np.arange(top, top + rows), 0, height - 1)
    across = np.clip(np.arange(left, left + columns), 0, width - 1)
    image = picture.pixels[:, down[:, None], across[None]]
    own = ~picture.crowd
    moved = picture.boxes[own] - np.array([left, top, left, top], np.float32)
    inside = np.clip(moved, 0, np.array([columns, rows] * 2, np.float32))
    share = area(inside) / np.maximum(area(moved), 1e-6)
    kept = share >= KEPT
    return image, torch.from_numpy(inside[kept]), torch.from_numpy(picture.labels[own][kept])


def area(boxes: np.ndarray) -> np.ndarray:
    """Area of boxes [N, 4]."""
    found: np.ndarray = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return found
