"""Attention time: seconds of one attention kernel, by implementation, from its products and what each score moves.

Kernels that store their scores move several bytes of each (Dao et al. 2022, arXiv 2205.14135, section 2.2); those that do not
still spend time of each on exponentials, masks and random numbers, counted here as bytes too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from burnish.hardware import Chip
from burnish.timing import CAUSAL, longer


@dataclass(frozen=True)
class Kernel:
    """One call: `batch` sequences of `queries` positions that look at `keys`, with `heads` of `width`; `both` = with backward."""

    implementation: str
    batch: int
    heads: int
    width: int
    queries: int
    keys: int
    causal: bool = False
    masked: bool = False
    dropout: bool = False
    both: bool = False

    @property
    def scores(self) -> int:
        """Scores of a whole square."""
        return self.batch * self.heads * self.queries * self.keys


@cache
def implementations() -> dict[str, dict[str, Any]]:
    """Implementations with their constants."""
    path = Path(__file__).parents[1] / "tables" / "attention.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def kernel_seconds(kernel: Kernel, chip: Chip, c: Mapping[str, Any] | None = None) -> float:
    """Seconds of a call; `c` are constants to use instead of the table's."""
    c = c or implementations()[kernel.implementation]
    half = chip.flops.get("fp16") or chip.flops["fp32"]
    stored = kernel.implementation != "flash-1"
    share = CAUSAL if kernel.causal and not stored else 1.0
    products = 4 * kernel.width * kernel.scores * share / (half * c["products"])
    moved = kernel.scores * share * (c["score"] + kernel.masked * c["mask"] + kernel.dropout * c["dropout"])
    traffic = moved / chip.bandwidth
    if kernel.both:
        products, traffic = c["matmuls"] * products, c["again"] * traffic
    return float(longer(c["start_both"] if kernel.both else c["start"], products + traffic))
