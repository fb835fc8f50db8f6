"""Samples: rows of tokens that a model is calibrated on, with which of them are real; padding never enters a statistic.

Legend: N rows, S tokens a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from burnish.errors import UserError


@dataclass(frozen=True, eq=False)
class Samples:
    """`ids` [N, S] int64; `mask` [N, S] bool, True where a token is real. Every row has a real token."""

    ids: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        """Raises UserError for shapes or types that differ, no row at all, and a row of padding alone."""
        if self.ids.dim() != 2 or self.ids.shape != self.mask.shape:
            raise UserError(f"samples: ids {tuple(self.ids.shape)} and mask {tuple(self.mask.shape)}; both are [N, S]")
        if self.ids.dtype != torch.int64 or self.mask.dtype != torch.bool:
            raise UserError(f"samples: ids {self.ids.dtype} and mask {self.mask.dtype}; int64 and bool are needed")
        if not len(self.ids):
            raise UserError("samples: there is no row; a model is calibrated on at least one")
        if len(empty := (~self.mask.any(1)).nonzero()):
            raise UserError(f"samples: row {int(empty[0])} holds no real token; leave it out")

    @classmethod
    def of(cls, rows: list[list[int]], pad: int = 0) -> Samples:
        """Rows of unequal length, padded at their end to the longest."""
        longest = max(map(len, rows), default=0)
        ids = torch.full((len(rows), longest), pad, dtype=torch.int64)
        mask = torch.zeros(len(rows), longest, dtype=torch.bool)
        for k, row in enumerate(rows):
            ids[k, : len(row)] = torch.tensor(row, dtype=torch.int64)
            mask[k, : len(row)] = True
        return cls(ids, mask)

    def batches(self, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(ids, mask) of at most `rows` rows at a time, without the columns behind the last real token of the batch."""
        if rows < 1:
            raise UserError(f"samples: batches of {rows} rows; 1 and more work")
        for at in range(0, len(self.ids), rows):
            mask = self.mask[at : at + rows]
            used = int(mask.any(0).nonzero()[-1]) + 1
            yield self.ids[at : at + rows, :used], mask[:, :used]

    @property
    def tokens(self) -> int:
        """Real tokens in all."""
        return int(self.mask.sum())

    def first(self, rows: int) -> Samples:
        """The first `rows` rows."""
        return Samples(self.ids[:rows], self.mask[:rows])

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of the real tokens, row by row; not of what stands in the padding or how wide it is."""
        total = hashlib.sha256()
        for ids, mask in zip(self.ids, self.mask, strict=True):
            real = ids[mask].tolist()
            total.update(f"{len(real)}:{','.join(map(str, real))};".encode())
        return total.hexdigest()
