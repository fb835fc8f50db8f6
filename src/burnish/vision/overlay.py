"""Overlays: slices of a scan with what was found and what is true drawn over them, as small PNGs for a report."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.records import Picture

LEGEND = "Green: found and true. Red: found only. Blue: missed."
HIT, EXTRA, MISSED = (70, 190, 90), (220, 60, 60), (70, 120, 240)
SHARE = 0.45  # of colour


def overlay(image: NDArray[np.float32], found: NDArray[np.integer], true: NDArray[np.integer] | None) -> str:
    """A PNG in base64 of one slice: image [rows, columns] in grey with labels in colour; found alone where none is true."""
    from PIL import Image

    low, high = np.percentile(image, (1, 99.5))
    grey = np.clip((image - low) / max(float(high - low), 1e-6), 0, 1)
    colours = np.repeat((grey * 255)[..., None], 3, axis=2)
    true = found if true is None else true
    for where, colour in (
        ((found > 0) & (found == true), HIT),
        ((found > 0) & (found != true), EXTRA),
        ((found == 0) & (true > 0), MISSED),
    ):
        colours[where] = colours[where] * (1 - SHARE) + np.asarray(colour) * SHARE
    stream = io.BytesIO()
    Image.fromarray(colours.astype(np.uint8)).save(stream, format="PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode("ascii")


def pictures_of(
    name: str,
    image: NDArray[np.float32],
    found: NDArray[np.integer],
    true: NDArray[np.integer] | None,
    count: int,
) -> tuple[Picture, ...]:
    """Slices across the labelled part of a volume: image [C, S, H, W] and labels [S, H, W], as the network sees them."""
    marked = np.flatnonzero((found if true is None else np.maximum(found, true)).reshape(len(found), -1).any(axis=1))
    if not count or not len(marked):
        return ()
    chosen = np.unique(np.linspace(marked[0], marked[-1], count + 2).round().astype(int)[1:-1])
    return tuple(
        Picture(
            title=f"{name}, slice {k}",
            png=overlay(_upright(image[0, k]), _upright(found[k]), None if true is None else _upright(true[k])),
            legend=LEGEND if true is not None else "Green: found.",
        )
        for k in chosen
    )


def _upright(plane: NDArray[Any]) -> NDArray[Any]:
    """First axis to the right, second upwards."""
    return plane.T[::-1]
