"""Score prices: seconds, bytes at the peak and capacity of many settings of different jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.columns import columns
from burnish.rows.training import Setting
from burnish.simulate import memory_of, price_many


@dataclass(frozen=True)
class Prices:
    """Seconds a step, bytes at the peak of the fullest stage, and bytes a chip has; (n,) each."""

    seconds: np.ndarray
    peak: np.ndarray
    capacity: np.ndarray


def prices(settings: Sequence[Setting]) -> Prices:
    """Prices of settings, in their order."""
    peak = np.zeros(len(settings))
    alike: dict[object, list[int]] = defaultdict(list)
    for k, setting in enumerate(settings):
        alike[setting.job, setting.cluster.name, setting.stack].append(k)
    for members in alike.values():
        first = settings[members[0]]
        mapping = columns([settings[k].mapping for k in members])
        kinds = memory_of(first.job, mapping, first.cluster, first.stack)
        peak[members] = np.asarray(sum(kinds.values())).max(axis=0)
    capacity = [setting.cluster.chip.memory or np.inf for setting in settings]
    plain: list[Any] = list(settings)
    return Prices(np.asarray(price_many(plain)), peak, np.array(capacity))
