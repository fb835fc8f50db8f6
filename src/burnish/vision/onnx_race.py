"""Race: which of two ONNX files of a network is faster here, on the provider that this machine has.

Both read the same images in turn, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from burnish.vision.onnx_providers import IMAGES, opened_on

ROUNDS = 11
SAME = 0.03  # of the time: less than this is no difference


@dataclass(frozen=True)
class Race:
    """Median and least seconds of one run: of the float file, of the 8-bit one. `ratio`: median of float / 8-bit by round."""

    float_seconds: tuple[float, float]
    int8_seconds: tuple[float, float]
    ratio: float
    provider: str

    @property
    def verdict(self) -> str:
        """In words, with the number."""
        if self.ratio > 1 + SAME:
            return f"8 bits are {self.ratio:.2f} times as fast as float here ({self.provider})"
        if self.ratio < 1 - SAME:
            return (
                f"8 bits are slower than float here, {1 / self.ratio:.2f} times the time ({self.provider}): float kept"
            )
        return f"8 bits are as fast as float here ({self.provider})"


def race(float_file: Path, int8_file: Path, images: NDArray[np.float32], threads: int = 0) -> Race:
    """Run both in turn on images [B, C, *spatial], once to warm up."""
    sessions = [opened_on(path, threads) for path in (float_file, int8_file)]
    seconds: list[list[float]] = [[], []]
    for number in range(ROUNDS + 1):
        for session, kept in zip(sessions, seconds, strict=True):
            began = time.perf_counter()
            session.run(None, {IMAGES: images})
            if number:
                kept.append(time.perf_counter() - began)
    ratio = statistics.median(one / other for one, other in zip(*seconds, strict=True))
    provider = str(sessions[1].get_providers()[0]).removesuffix("ExecutionProvider")
    return Race(_of(seconds[0]), _of(seconds[1]), ratio, provider)


def _of(seconds: list[float]) -> tuple[float, float]:
    return statistics.median(seconds), min(seconds)
