"""A vocabulary divided over ranks: what the loss of a language model sums so that each rank needs only its own words.

Shoeybi et al. 2019 (arXiv 1909.08053, section 3): the ranks share three numbers a token (the highest score, the sum of
exponentials, the label's score) in place of the scores of all words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from burnish.ops.token_collectives import Group, gather, scatter_sum, summed


@dataclass(frozen=True)
class Vocabulary:
    """This rank has words `first` on, as many as its head has rows. `sequence`: hidden states are divided by tokens."""

    group: Group
    first: int
    sequence: bool

    def whole(self, hidden_BSH: Tensor) -> Tensor:
        """The hidden states of all tokens, [T, H]."""
        return (gather(hidden_BSH, self.group) if self.sequence else hidden_BSH).flatten(0, 1)

    def summed(self, gradient_TH: Tensor, like: Tensor) -> Tensor:
        """The gradient of `like` from every rank's words."""
        if not self.sequence:
            return summed(gradient_TH, self.group).view_as(like)
        rows, _, width = like.shape
        return scatter_sum(gradient_TH.view(rows, -1, width), self.group)

    def own(self, labels_C: Tensor, words: int) -> tuple[Tensor, Tensor]:
        """Which labels are among this rank's words, and their numbers there (0 for the others)."""
        number = labels_C - self.first
        mine = (number >= 0) & (number < words)
        return mine, number.where(mine, 0)

    def highest(self, highest_C1: Tensor) -> Tensor:
        """The highest score of each token."""
        dist.all_reduce(highest_C1, dist.ReduceOp.MAX, group=self.group)
        return highest_C1

    def sums(self, exponentials_C1: Tensor, at_label_C1: Tensor) -> tuple[Tensor, Tensor]:
        """Exponentials and the label's score, summed over ranks."""
        both = torch.stack((exponentials_C1, at_label_C1))
        dist.all_reduce(both, group=self.group)
        return both[0], both[1]
