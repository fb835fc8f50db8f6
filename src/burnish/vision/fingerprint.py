"""Fingerprint: what the training scans are like, and the settings that follow from it where a recipe leaves them open.

The rules are those of nnU-Net (Isensee et al. 2021, supplementary table 2) where two cores can follow them: median spacing,
windows of values for CT, patches no larger than the median scan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.data.cache import cache_folder
from burnish.errors import UserError
from burnish.records import write_text
from burnish.vision.prepared import content_key, read_pair
from burnish.vision.recipe import VisionRecipe, replace
from burnish.vision.scans import Scan
from burnish.vision.sections import AXES
from burnish.vision.sources import Entry

LARGEST = {2: 128, 3: 48}  # side of a patch that a step on two cores takes in about half a second
MOST_CLASSES = 256
AIR = -200.0  # no scan but CT has values this low
KEPT = 20_000  # voxels of each scan that values are judged on


@dataclass(frozen=True)
class Fingerprint:
    """Of the training scans: medians of size [3] and spacing [3] (right, front, top), channels, values in the labels,
    `low` and `high` (0.5 and 99.5 percent of the values in labelled voxels), and whether they are CT or pictures."""

    scans: int
    size: tuple[float, float, float]
    spacing: tuple[float, float, float]
    channels: int
    values: tuple[int, ...]
    low: float
    high: float
    ct: bool
    pictures: bool


def fingerprint(scans: Sequence[tuple[Scan, NDArray[np.int64]]]) -> Fingerprint:
    """The fingerprint of scans with labels [X, Y, Z]. Raises UserError where channels differ, and for too many classes."""
    from burnish.vision.space import Space

    channels = {scan.array.shape[0] for scan, _ in scans}
    if len(channels) > 1:
        raise UserError(f"the images have {' and '.join(map(str, sorted(channels)))} channels; give all the same")
    values: set[int] = set()
    inside, sizes, spacings = [], [], []
    for scan, label in scans:
        values |= {int(value) for value in np.unique(label)}
        space = Space.of(scan.array.shape[1:], scan.affine)
        sizes.append(space.size)
        spacings.append(space.spacing)
        marked = scan.array[:, label > 0] if (label > 0).any() else scan.array.reshape(len(scan.array), -1)
        inside.append(marked.ravel()[:: max(1, marked.size // KEPT)].astype(np.float64))
    if len(values) > MOST_CLASSES:
        raise UserError(f"the labels hold {len(values)} values, at most {MOST_CLASSES} are classes; is it an image?")
    low, high = np.percentile(np.concatenate(inside), (0.5, 99.5))
    a, b, c = np.median(sizes, axis=0)
    x, y, z = np.median(spacings, axis=0)
    return Fingerprint(
        scans=len(scans),
        size=(float(a), float(b), float(c)),
        spacing=(float(x), float(y), float(z)),
        channels=channels.pop(),
        values=tuple(sorted(values - {0})),
        low=float(low),
        high=float(high),
        ct=any(scan.array.min() < AIR for scan, _ in scans),
        pictures=all(scan.kind == "picture" for scan, _ in scans),
    )


def fingerprint_of(entries: Sequence[Entry], cache: Path | None = None) -> Fingerprint:
    """The fingerprint of labelled scans, from the cache where the same files were looked at before."""
    place = (cache_folder() if cache is None else cache) / "images" / f"fingerprint-{content_key(entries)[:32]}.json"
    try:
        values: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        listed: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return Fingerprint(**listed)
    except (OSError, ValueError, TypeError):
        made = fingerprint([read_pair(entry) for entry in entries])
        write_text(place, json.dumps(asdict(made)))
        return made


def settle(recipe: VisionRecipe, found: Fingerprint) -> tuple[VisionRecipe, tuple[str, ...]]:
    """The recipe with all that it left open, and a line on each setting that was derived."""
    changes: dict[str, object] = {}
    notes: list[str] = []

    def derive(key: str, value: object, why: str) -> None:
        changes[key] = value
        notes.append(f"{key}={value}: {why}")

    images, network = recipe.images, recipe.network
    if not images.classes:
        if not found.values:
            raise UserError("no label file holds a value above 0; there is nothing to learn")
        classes = {f"value {value}": (value,) for value in found.values}
        derive("images.classes", classes, f"the values in the labels of {found.scans} scans")
    count = len(changes.get("images.classes", images.classes)) + 1  # type: ignore[arg-type]
    spacing = images.spacing
    if spacing is None:
        spacing = tuple(round(step, 4) for step in found.spacing)
        derive("images.spacing", spacing, f"the median of {found.scans} scans")
    if images.normalise is None:
        _derive_values(found, derive)
    if images.patch is None:
        lengths = [size * own / new for size, own, new in zip(found.size, found.spacing, spacing, strict=True)]
        if network.dimensions == 2:
            del lengths[AXES[images.slice_axis]]
        sides = tuple(_side(length, network.divisor, LARGEST[network.dimensions]) for length in lengths)
        derive("images.patch", sides, "the median scan, as far as a step on two cores goes")
    if not network.in_channels:
        changes["network.in_channels"] = found.channels
    elif network.in_channels != found.channels:
        raise UserError(f"network.in_channels is {network.in_channels}, the images have {found.channels}")
    if not network.out_channels:
        changes["network.out_channels"] = count
    elif network.out_channels != count:
        raise UserError(f"network.out_channels is {network.out_channels}, background and classes are {count}")
    return (replace(recipe, changes, recipe.name) if changes else recipe), tuple(notes)


def _derive_values(found: Fingerprint, derive: object) -> None:
    assert callable(derive)
    if found.ct:
        derive("images.normalise", "window", "values as low as air in CT")
        derive("images.window", (round(found.low, 2), round(found.high, 2)), "0.5 and 99.5 percent of labelled voxels")
    elif found.pictures:
        derive("images.normalise", "unit", "pictures, whose range is that of their type")
    else:
        derive("images.normalise", "percentile", "values of a scanner without a unit of its own")


def _side(length: float, divisor: int, largest: int) -> int:
    return max(divisor, min(int(np.ceil(length / divisor)) * divisor, largest // divisor * divisor))
