"""Row and Batch: what one packed row, and a stack of them, hands to the model.

Legend: B rows, S inputs a row. All arrays are int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IGNORED = -100  # the label every cross entropy of the field leaves out
Ids = NDArray[np.int64]


class Row(NamedTuple):
    """One packed row: `labels[i]` is the token after `ids[i]`, or IGNORED; `pieces`, document lengths, sum to S."""

    ids: Ids
    labels: Ids
    positions: Ids
    pieces: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Batch:
    """A stack of rows: ids, labels (already shifted), positions, each [B, S].

    `segments` holds, per row, the lengths of its document pieces; attention is causal inside each piece only. None says
    that every row is one piece.
    """

    ids: Ids
    labels: Ids
    positions: Ids
    segments: tuple[tuple[int, ...], ...] | None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Batch:
        """Stack rows of equal length. Raises ValueError when there is none."""
        if not rows:
            raise ValueError("a batch needs at least one row")
        pieces = tuple(row.pieces for row in rows)
        return cls(
            ids=np.stack([row.ids for row in rows]),
            labels=np.stack([row.labels for row in rows]),
            positions=np.stack([row.positions for row in rows]),
            segments=None if all(len(lengths) == 1 for lengths in pieces) else pieces,
        )

    @property
    def input_count(self) -> int:
        """Tokens that go in."""
        return self.ids.size

    @property
    def label_count(self) -> int:
        """Number of labels that count in the loss."""
        return int(np.count_nonzero(self.labels != IGNORED))
