"""Abilities: which mappings a stack can run at all, as far as its profile's kind and year say so."""

from __future__ import annotations

import numpy as np

from burnish.mapping import Mapping
from burnish.stack import Stack

# From this year on Megatron splits sequences over ranks and gradients and parameters over data-parallel ones.
SPLITS_MORE = 2023


def able(stack: Stack, mapping: Mapping) -> np.ndarray:
    """Which candidates (arrays) a stack can run."""
    m, everything = mapping, np.ones(len(np.asarray(mapping.tp)), dtype=bool)
    if stack.kind == "plain":
        return (m.tp * m.pp * m.cp * m.ep * m.etp == 1) & (m.zero == 0) & (m.offload == 0) & everything
    if early(stack):
        return (m.zero <= 1) & (m.cp == 1) & everything
    return everything


def early(stack: Stack) -> bool:
    """Whether a stack is a Megatron from before it split more than optimizer states."""
    return stack.kind == "megatron" and stack.year < SPLITS_MORE


def limits(stack: Stack) -> str:
    """What `able` leaves, in words; empty where that is everything."""
    if stack.kind == "plain":
        return "has one GPU or plain data parallelism (ZeRO 0), and no offload"
    return "has ZeRO 0 and 1, and cp 1" if early(stack) else ""
