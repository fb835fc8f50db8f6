"""Predict boxes: find what a detector knows in a picture, or in every picture of a folder; what fails is named.

The folder of results holds boxes.json, COCO's form with a score on each box, and overlays/ with the boxes drawn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import PartlyDone, UserError
from burnish.export.folder import replacing_folder
from burnish.vision.box_overlay import drawn_png
from burnish.vision.boxes import Found
from burnish.vision.finding import find, likely
from burnish.vision.inference import Labeller
from burnish.vision.seen_picture import Pixels, read_pixels

BOXES, OVERLAYS = "boxes.json", "overlays"
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
NAMED = 3  # failures in one line
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class PredictedBoxes:
    """What came of it: pictures read, boxes of each class, and what failed with the reason."""

    pictures: int
    boxes: dict[str, int]
    failed: tuple[str, ...]


def pictures_in(source: Path) -> list[Path]:
    """The pictures at `source`, by name. Raises UserError where there are none."""
    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    if not source.is_dir():
        return [source]
    found = sorted(path for path in source.iterdir() if path.suffix.lower() in PICTURES)
    if not found:
        raise UserError(f"{source}: holds no picture ({', '.join(PICTURES)})")
    return found


def predict_boxes(own: Labeller, source: Path, out: Path, progress: Progress | None = None) -> PredictedBoxes:
    """Find boxes in what is at `source` and write them into the folder `out`, whole or not at all.

    Raises UserError where nothing can be read, PartlyDone, what could be being written, where some could not.
    """
    paths = pictures_in(source)
    if source.resolve() == out.resolve():
        raise UserError(f"{out}: is where the pictures are; name another folder with --out")
    classes = tuple(own.images.classes)
    results: list[tuple[Path, tuple[int, int], Found]] = []
    failed: list[str] = []
    with replacing_folder(out, lambda name: name == BOXES or name.startswith(f"{OVERLAYS}/")) as fresh:
        (fresh / OVERLAYS).mkdir()
        for number, path in enumerate(paths):
            try:
                pixels = read_pixels(path, own.network.in_channels)
                found = one(own, pixels)
                (fresh / OVERLAYS / f"{path.name}.png").write_bytes(drawn_png(pixels, found, classes))
                results.append((path, (pixels.shape[1], pixels.shape[2]), found))
            except (UserError, MemoryError) as error:
                said = str(error) or "not enough memory"
                failed.append(said if str(path) in said else f"{path}: {said}")
            if progress:
                progress(number + 1, len(paths), path.name)
        if failed and not results:
            raise UserError(failed[0])
        (fresh / BOXES).write_text(json.dumps(as_coco(results, classes), indent=1) + "\n", encoding="utf-8")
    if failed:
        more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        done = f"{len(results)} of {len(paths)} pictures are read, their boxes in {out}"
        raise PartlyDone(f"{done}; not these: {'; '.join(failed[:NAMED])}{more}")
    counts = Counter(classes[label] for _, _, found in results for label in found.labels)
    return PredictedBoxes(len(results), {name: counts[name] for name in classes}, tuple(failed))


def one(own: Labeller, pixels: Pixels) -> Found:
    """The boxes of one picture that are likely enough to be told."""
    return likely(find(own, [pixels])[0], own.inference.least_score)


def as_coco(results: list[tuple[Path, tuple[int, int], Found]], classes: tuple[str, ...]) -> dict[str, Any]:
    """COCO's form: pictures, classes counted from 1, and boxes as left, top, width, height with scores."""
    images: list[dict[str, Any]] = []
    boxes: list[dict[str, Any]] = []
    for number, (path, (height, width), found) in enumerate(results, start=1):
        images.append({"id": number, "file_name": path.name, "width": width, "height": height})
        for (left, top, right, bottom), label, score in zip(
            found.boxes.tolist(), found.labels.tolist(), found.scores.tolist(), strict=True
        ):
            own: dict[str, Any] = {"id": len(boxes) + 1, "image_id": number, "category_id": label + 1, "iscrowd": 0}
            sides = (right - left, bottom - top)
            boxes.append(own | {"bbox": [left, top, *sides], "area": sides[0] * sides[1], "score": score})
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, start=1)]
    return {"images": images, "categories": categories, "annotations": boxes}
