"""Patches: which pieces of which scans make the batch of a step; a function of the seed and the step's number alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from burnish.vision.augment import augmented
from burnish.vision.image_batch import ImageBatch
from burnish.vision.prepared import Case
from burnish.vision.recipe import VisionRecipe

TRIES = 65_536  # labelled voxels of a class that are kept to centre patches on


@dataclass(frozen=True, eq=False)
class Pool:
    """Cases with the places that patches may be centred on: `marked[case][class]` are flat indices of labelled voxels.

    `slices[case]` are those of the first axis that may be used, of a network of slices.
    """

    cases: Sequence[Case]
    slices: tuple[NDArray[np.int64], ...]
    marked: tuple[dict[int, NDArray[np.int64]], ...]


def pool_of(cases: Sequence[Case], slices: Sequence[NDArray[np.int64]], seed: int = 0) -> Pool:
    """The pool of cases, restricted to `slices` of each."""
    marked = []
    for number, (case, own) in enumerate(zip(cases, slices, strict=True)):
        label = np.asarray(case.label)
        flat = np.arange(label.size).reshape(label.shape)[own].ravel()
        values = label[own].ravel()
        found = {}
        for value in np.unique(values[values > 0]):
            places = flat[values == value]
            if len(places) > TRIES:
                places = np.random.default_rng([seed, number, int(value)]).choice(places, TRIES, replace=False)
            found[int(value)] = places
        marked.append(found)
    return Pool(tuple(cases), tuple(slices), tuple(marked))


def batches_of(recipe: VisionRecipe, pool: Pool, seed: int) -> Callable[[int], list[ImageBatch]]:
    """The micro batches of step n, as the loop asks for them."""
    size, micro = recipe.train.global_batch, recipe.train.micro_batch

    def batches(step: int) -> list[ImageBatch]:
        draw = np.random.default_rng([seed, step])
        picked = [patch(recipe, pool, draw) for _ in range(size)]
        images, labels = (torch.from_numpy(np.stack(parts)) for parts in zip(*picked, strict=True))
        if recipe.augment.enabled:
            generator = torch.Generator().manual_seed(int(draw.integers(2**62)))
            images, labels = augmented(images, labels, recipe.augment, generator)
        parts = zip(images.split(micro), labels.split(micro), strict=True)
        return [ImageBatch(one.clone(), own.clone()) for one, own in parts]  # a view would keep the whole batch

    return batches


def patch(recipe: VisionRecipe, pool: Pool, draw: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """One patch: around a labelled voxel of a random class as often as `images.foreground` says, else anywhere."""
    images, flat = recipe.images, recipe.network.dimensions == 2
    assert images.patch is not None
    size = (1, *images.patch) if flat else images.patch
    number = int(draw.integers(len(pool.cases)))
    case, marked = pool.cases[number], pool.marked[number]
    shape = case.label.shape
    if marked and draw.random() < images.foreground:
        places = marked[sorted(marked)[int(draw.integers(len(marked)))]]
        found = np.unravel_index(int(places[int(draw.integers(len(places)))]), shape)
        jitter = [int(draw.integers(-(side // 4), side // 4 + 1)) for side in size]
        centre = [int(c) + j for c, j in zip(found, jitter, strict=True)]
    else:
        centre = [int(draw.integers(length)) for length in shape]
        centre[0] = int(draw.choice(pool.slices[number])) if flat else centre[0]
    image, label = cut(case, centre, size)
    return (image[:, 0], label[0]) if flat else (image, label)


def cut(case: Case, centre: Sequence[int], size: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The piece of `size` around `centre`, moved inside; where the case is smaller its edge is repeated, labelled 0."""
    starts, stops, pads = [], [], []
    for at, side, length in zip(centre, size, case.label.shape, strict=True):
        start = min(max(at - side // 2, 0), max(length - side, 0))
        starts.append(start)
        stops.append(min(start + side, length))
        before = max(side - length, 0) // 2
        pads.append((before, max(side - length, 0) - before))
    where = tuple(slice(a, b) for a, b in zip(starts, stops, strict=True))
    image, label = np.asarray(case.image[:, *where]), np.asarray(case.label[where], np.int64)
    if any(pad != (0, 0) for pad in pads):
        image, label = np.pad(image, [(0, 0), *pads], mode="edge"), np.pad(label, pads)
    return image, label
