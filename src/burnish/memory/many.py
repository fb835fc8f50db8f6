"""Many: the peak memory of many settings, each with a job, a mapping, a machine and a stack of its own, in a few calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from burnish.architecture import Architecture
from burnish.cluster import Cluster
from burnish.columns import columns
from burnish.job import Job
from burnish.mapping import Mapping
from burnish.memory.sizes import Sizes, sizes_of
from burnish.memory.steps import stage_memory
from burnish.stack import Stack


class Setting(Protocol):
    """One thing to ask about."""

    @property
    def job(self) -> Job:
        """What is trained."""

    @property
    def mapping(self) -> Mapping:
        """How it is laid out."""

    @property
    def cluster(self) -> Cluster:
        """Where."""

    @property
    def stack(self) -> Stack:
        """By whose software."""


class Peaks(NamedTuple):
    """Bytes of the fullest stage, and bytes a chip has (infinite where not known); (n,) each."""

    peak: np.ndarray
    capacity: np.ndarray


def peaks(settings: Sequence[Setting], sizes: Sequence[Sizes] | None = None) -> Peaks:
    """Peaks of settings, in order; `sizes` replaces those of their stacks."""
    given = sizes or [sizes_of(s.job, s.stack, s.cluster.chip) for s in settings]
    most = np.zeros(len(settings))
    kinds: dict[tuple[bool, ...], list[int]] = {}
    for index, setting in enumerate(settings):
        kinds.setdefault(structure(setting.job.model), []).append(index)
    for members in kinds.values():
        table = [settings[index] for index in members]
        shape = np.array([(s.job.seq, s.job.global_batch) for s in table]).T
        held = stage_memory(
            columns([s.job.model for s in table]),
            (shape[0], shape[1]),
            columns([s.mapping for s in table]),
            columns([given[index] for index in members]),
            np.array([s.stack.balanced for s in table]),
        )
        most[members] = np.asarray(sum(held.values())).max(axis=0)
    return Peaks(most, np.array([s.cluster.chip.memory or np.inf for s in settings]))


def structure(model: Architecture) -> tuple[bool, ...]:
    """Models with the same kinds of layers can be described together."""
    return bool(model.experts), bool(model.kv_rank), bool(model.mixer_layers)
