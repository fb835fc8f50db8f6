"""Score prices: seconds, bytes at the peak and capacity of many settings of different jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.columns import columns
from burnish.memory import sizes_of
from burnish.rows.training import Setting
from burnish.simulate import memory_of, price_many


@dataclass(frozen=True)
class Prices:
    """Seconds a step, bytes at the peak of the fullest stage, and bytes a chip has; (n,) each.

    Of the peak, `allocated` is in tensors and `reserved` is what the allocator holds; None where nothing tells them apart.
    """

    seconds: np.ndarray
    peak: np.ndarray
    capacity: np.ndarray
    allocated: np.ndarray | None = None
    reserved: np.ndarray | None = None

    def metered(self, meter: str, k: int) -> float:
        """Of setting `k`, the bytes at the peak that a meter shows ("process", "allocated" or "reserved")."""
        shown = {"allocated": self.allocated, "reserved": self.reserved}.get(meter)
        return float((self.peak if shown is None else shown)[k])


def prices(settings: Sequence[Setting]) -> Prices:
    """Prices of settings, in their order."""
    peak, allocated, reserved = (np.zeros(len(settings)) for _ in range(3))
    alike: dict[object, list[int]] = defaultdict(list)
    for k, setting in enumerate(settings):
        alike[setting.job, setting.cluster.name, setting.stack].append(k)
    for members in alike.values():
        first = settings[members[0]]
        mapping = columns([settings[k].mapping for k in members])
        kinds = memory_of(first.job, mapping, first.cluster, first.stack)
        total = np.asarray(sum(kinds.values()))
        peak[members] = total.max(axis=0)
        allocated[members] = (total - kinds["reserve"]).max(axis=0)
        reserved[members] = peak[members] - sizes_of(first.job, first.stack, first.cluster.chip).base
    capacity = [setting.cluster.chip.memory or np.inf for setting in settings]
    plain: list[Any] = list(settings)
    return Prices(np.asarray(price_many(plain)), peak, np.array(capacity), allocated, reserved)
