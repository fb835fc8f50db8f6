"""The metric of segmentation: Dice and the 95th percentile of surface distances, of each class in each scan.

Empty masks have one convention, the loss's too: nothing where nothing is scores 1, anything where nothing is scores 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.units import MISSING

Labels = NDArray[np.integer]


@dataclass(frozen=True)
class Scores:
    """Means over scans. `dice` of each class; `hd95` in millimetres, of scans that have the class on both sides."""

    dice: dict[str, float]
    hd95: dict[str, float] = field(default_factory=dict)
    scans: int = 0

    @property
    def mean(self) -> float:
        """Mean Dice over classes."""
        return float(np.mean(list(self.dice.values()))) if self.dice else 0.0

    @property
    def shown(self) -> dict[str, str]:
        """Columns of a report."""
        apart = f"{np.mean(list(self.hd95.values())):.1f} mm" if self.hd95 else MISSING
        return {"Dice": f"{self.mean:.4f}", "HD95": apart}

    @property
    def classes(self) -> dict[str, float]:
        """Dice of each class."""
        return self.dice

    @property
    def named(self) -> dict[str, float]:
        """Numbers by the keys of records."""
        return {"dice": self.mean}


def dice(found: Labels, true: Labels, number: int) -> float:
    """2 |A and B| / (|A| + |B|) (Dice 1945); 1 where both are empty."""
    ours, theirs = found == number, true == number
    both = int(np.count_nonzero(ours)) + int(np.count_nonzero(theirs))
    return 2 * int(np.count_nonzero(ours & theirs)) / both if both else 1.0


def hd95(found: Labels, true: Labels, number: int, spacing: tuple[float, ...]) -> float | None:
    """95th percentile of the distances between the surfaces, millimetres; None where a mask is empty."""
    from monai.metrics.utils import get_mask_edges, get_surface_distance

    ours, theirs = found == number, true == number
    if not ours.any() or not theirs.any():
        return None
    edges: Any = get_mask_edges(ours, theirs, crop=True)
    one, other = edges[0], edges[1]
    ways = (get_surface_distance(a, b, spacing=spacing) for a, b in ((one, other), (other, one)))
    return float(max(np.percentile(np.asarray(way), 95) for way in ways))


def scored(
    pairs: Iterable[tuple[Labels, Labels, tuple[float, ...]]], classes: Iterable[str], surfaces: bool = True
) -> Scores:
    """Scores of (found, true, spacing) of each scan."""
    names = list(classes)
    overlaps: dict[str, list[float]] = {name: [] for name in names}
    apart: dict[str, list[float]] = {name: [] for name in names}
    scans = 0
    for found, true, spacing in pairs:
        scans += 1
        for number, name in enumerate(names, start=1):
            overlaps[name].append(dice(found, true, number))
            if surfaces and (distance := hd95(found, true, number, spacing)) is not None:
                apart[name].append(distance)
    means: Callable[[Mapping[str, list[float]]], dict[str, float]] = lambda all_: {  # noqa: E731
        name: float(np.mean(values)) for name, values in all_.items() if values
    }
    return Scores(means(overlaps), means(apart), scans)
