"""Sliding windows over a whole volume with Gaussian weights, within a stated memory: scores of finished slices leave at once.

The weights are nnU-Net's (Isensee et al. 2021): a Gaussian of an eighth of the window, largest in its middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError

Floats = NDArray[np.float32]
Predict = Callable[[Floats], Floats]  # [B, C, *window] -> scores [B, classes, *window]
LEAST = 1e-3  # of the largest weight: no voxel is left without
SIGMA = 0.125


def starts(length: int, side: int, overlap: float) -> list[int]:
    """First indices of windows of `side` that cover `length`, the last one flush with its end; one where it is smaller."""
    step = max(1, int(side * (1 - overlap)))
    last = max(length - side, 0)
    count = -(-last // step)
    return sorted({round(k * last / count) for k in range(count + 1)}) if count else [0]


def gaussian(window: Sequence[int]) -> Floats:
    """Weights [*window] in (0, 1]."""
    made = np.ones((1,) * len(window), np.float64)
    for axis, side in enumerate(window):
        line = np.exp(-0.5 * ((np.arange(side) - (side - 1) / 2) / max(side * SIGMA, 1e-6)) ** 2)
        made = made * line.reshape([-1 if k == axis else 1 for k in range(len(window))])
    return np.maximum(made / made.max(), LEAST).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Way:
    """How windows are taken of an image: the network, its window, the weights of a window's scores, and how many at once."""

    image: Floats
    predict: Predict
    window: tuple[int, ...]
    weight: Floats
    batch: int
    flat: bool


def slabs(
    image: Floats, predict: Predict, window: tuple[int, ...], overlap: float, batch: int, flat: bool = False
) -> Iterator[tuple[int, Floats]]:
    """Scores of whole slices of the first axis as they are finished: (first index, [classes, slices, *rest]), in order.

    `image` is [C, *spatial], channels first; `window` three sides. `flat`: the network takes slices, and the window has one.
    What is held at once is scores and weights of one window's depth, of `batch` slices where it is flat. A volume smaller
    than the window has its edge repeated. Raises UserError for an image with other axes.
    """
    if image.ndim != 4:
        raise UserError(f"an image has the axes channel, x, y, z; this one has {image.ndim}: {image.shape}")
    shape = image.shape[1:]
    depth, rest = window[0], shape[1:]
    firsts = starts(shape[0], depth, 0.0 if flat else overlap)
    groups = [firsts[k : k + batch] for k in range(0, len(firsts), batch)] if flat else [[first] for first in firsts]
    across = list(product(*(starts(n, side, overlap) for n, side in zip(rest, window[1:], strict=True))))
    weight = gaussian(window[1:])[None] if flat else gaussian(window)
    way = _Way(image, predict, window, weight, batch, flat)
    held: tuple[int, Floats, Floats] | None = None  # scores and weights from an index on, of windows so far
    for number, group in enumerate(groups):
        begin, end = group[0], min(group[-1] + depth, shape[0])
        places = [(first, *at) for first in group for at in across]
        scores, weights = _added(way, held, places, (begin, end))
        done = end if number + 1 == len(groups) else groups[number + 1][0]
        yield begin, scores[:, : done - begin] / weights[: done - begin]
        held = (done, scores[:, done - begin :], weights[done - begin :])


def _added(
    way: _Way,
    held: tuple[int, Floats, Floats] | None,
    places: list[tuple[int, ...]],
    span: tuple[int, int],
) -> tuple[Floats, Floats]:
    """Sums of weighted scores and of weights over slices `span`, with what earlier windows have left there."""
    shape, window, weight = way.image.shape[1:], way.window, way.weight
    begin, end = span
    scores, weights = None, np.zeros((end - begin, *shape[1:]), np.float32)
    for k in range(0, len(places), way.batch):
        some = places[k : k + way.batch]
        pieces = np.stack([_piece(way.image, at, window) for at in some])
        found = way.predict(pieces[:, :, 0] if way.flat else pieces)
        found = found[:, :, None] if way.flat else found
        if scores is None:
            scores = np.zeros((found.shape[1], *weights.shape), np.float32)
        for at, own in zip(some, found, strict=True):
            inside = tuple(slice(a, min(a + side, n)) for a, side, n in zip(at, window, shape, strict=True))
            size = tuple(slice(0, part.stop - part.start) for part in inside)
            target = (slice(inside[0].start - begin, inside[0].stop - begin), *inside[1:])
            scores[:, *target] += own[:, *size] * weight[size]
            weights[target] += weight[size]
    assert scores is not None
    if held is not None and (left := held[1].shape[1]):
        scores[:, :left] += held[1]
        weights[:left] += held[2]
    return scores, weights


def _piece(image: Floats, at: tuple[int, ...], window: tuple[int, ...]) -> Floats:
    found = image[:, *(slice(a, a + side) for a, side in zip(at, window, strict=True))]
    short = [(0, side - n) for side, n in zip(window, found.shape[1:], strict=True)]
    return np.pad(found, [(0, 0), *short], mode="edge") if any(after for _, after in short) else found
