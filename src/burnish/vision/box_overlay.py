"""Box overlays: a picture with the boxes that were found, and those that are true, drawn on it as a PNG."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from burnish.vision.boxes import Floats, Found

LEGEND = "Green: found and true. Red: found only. Blue: missed."
HIT, EXTRA, MISSED = (70, 190, 90), (220, 60, 60), (70, 120, 240)
OVERLAP = 0.5  # of a found and a true box of the same class, over what both cover, to be the same
SIDE = 320  # the smaller side of a picture is drawn with at least this many pixels


def drawn(
    pixels: NDArray[np.uint8],
    found: Found,
    classes: Sequence[str],
    boxes: Floats | None = None,
    labels: NDArray[np.int64] | None = None,
) -> str:
    """A PNG in base64 of pixels [C, H, W] with the boxes found; and held against true boxes, where there are some."""
    return base64.b64encode(drawn_png(pixels, found, classes, boxes, labels)).decode("ascii")


def drawn_png(
    pixels: NDArray[np.uint8],
    found: Found,
    classes: Sequence[str],
    boxes: Floats | None = None,
    labels: NDArray[np.int64] | None = None,
) -> bytes:
    """The bytes of that PNG."""
    from PIL import Image, ImageDraw

    array = np.repeat(pixels, 3, axis=0) if len(pixels) == 1 else pixels
    picture = Image.fromarray(np.ascontiguousarray(array.transpose(1, 2, 0)))
    times = max(1, -(-SIDE // min(picture.size)))
    picture = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(picture)
    hit, seen = matched(found, boxes, labels) if boxes is not None and labels is not None else (None, None)
    if boxes is not None and seen is not None:
        for box, was in zip(boxes, seen, strict=True):
            if not was:
                pen.rectangle([float(side * times) for side in box], outline=MISSED, width=2)
    for number, (box, label, score) in enumerate(zip(found.boxes, found.labels, found.scores, strict=True)):
        colour = HIT if hit is None or hit[number] else EXTRA
        pen.rectangle([float(side * times) for side in box], outline=colour, width=2)
        pen.text((float(box[0] * times) + 3, float(box[1] * times) + 1), f"{classes[label]} {score:.2f}", fill=colour)
    stream = io.BytesIO()
    picture.save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def matched(found: Found, boxes: Floats, labels: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which found boxes are true ones, and which true ones were found; each true box by the best score that covers it."""
    hit, seen = np.zeros(len(found.boxes), np.bool_), np.zeros(len(boxes), np.bool_)
    both = overlaps(found.boxes, boxes)
    both[found.labels[:, None] != labels[None]] = 0
    for number in np.argsort(-found.scores, kind="stable"):
        own = np.where(seen, 0, both[number])
        if own.size and own.max() >= OVERLAP:
            hit[number] = seen[int(own.argmax())] = True
    return hit, seen


def overlaps(one: Floats, other: Floats) -> Floats:
    """Intersection over union of boxes [N, 4] and [M, 4], as [N, M]."""
    low, high = np.maximum(one[:, None, :2], other[None, :, :2]), np.minimum(one[:, None, 2:], other[None, :, 2:])
    inside = np.clip(high - low, 0, None).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (one, other)]
    return np.asarray(inside / np.maximum(areas[0][:, None] + areas[1][None] - inside, 1e-9), np.float32)
