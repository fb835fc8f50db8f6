"""Normalisation: the values of one image brought to a range that a network takes, the same in training and afterwards."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from burnish.vision.sections import Images

Floats = NDArray[np.float32]
PERCENTS = (1.0, 99.0)  # of the voxels above the lowest value: what is around a head or an animal is not counted


def _zscore(image: Floats, images: Images, stored: np.dtype) -> Floats:
    axes = tuple(range(1, image.ndim))
    spread = image.std(axis=axes, keepdims=True)
    return (image - image.mean(axis=axes, keepdims=True)) / np.maximum(spread, 1e-6)


def _percentile(image: Floats, images: Images, stored: np.dtype) -> Floats:
    found = np.empty_like(image)
    for k, channel in enumerate(image):
        counted = channel[channel > channel.min()]
        low, high = np.percentile(counted, PERCENTS) if counted.size else (0.0, 1.0)
        found[k] = np.clip((channel - low) / max(high - low, 1e-6), -0.1, 1.5)
    return found


def _window(image: Floats, images: Images, stored: np.dtype) -> Floats:
    assert images.window is not None
    low, high = images.window
    return np.clip((image - low) / (high - low), 0.0, 1.0)


def _unit(image: Floats, images: Images, stored: np.dtype) -> Floats:
    return image / np.float32(np.iinfo(stored).max if np.issubdtype(stored, np.integer) else 1)


KINDS: dict[str, Callable[[Floats, Images, np.dtype], Floats]] = {
    "zscore": _zscore,
    "percentile": _percentile,
    "window": _window,
    "unit": _unit,
}


def normalised(image: Floats, images: Images, stored: np.dtype) -> Floats:
    """`image` [C, *spatial] as `images.normalise` says, float32. `stored`: the type that the file has."""
    return KINDS[images.normalise or "zscore"](image, images, stored).astype(np.float32)
