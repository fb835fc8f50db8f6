"""Gram statistics of what a matrix reads: C = X^T X / T and mean |x|, summed as batches pass; no activation is kept.

The error of a product x -> x W^T under a changed matrix W + D is, in the mean over T tokens,

    mean |x D^T|^2 = tr(D C D^T)

so all that a search over D needs of the data is C. Shape letters: T tokens, I inputs, O outputs, G groups, g inputs a group.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Gram:
    """Sums over the tokens one matrix has read; `tokens` counts them. `mean` and `magnitude` are per token."""

    def __init__(self, width: int) -> None:
        self.total = torch.zeros(width, width)
        self.sizes = torch.zeros(width, dtype=torch.float64)
        self.tokens = 0

    def add(self, x_TI: Tensor) -> None:
        """Count the tokens of one batch, real ones only."""
        x = x_TI.float()
        self.total.addmm_(x.t(), x)
        self.sizes += x.abs().sum(0, dtype=torch.float64)
        self.tokens += len(x)

    @property
    def mean(self) -> Tensor:
        """C [I, I], float32; zeros where no token was seen."""
        return self.total / max(self.tokens, 1)

    @property
    def magnitude(self) -> Tensor:
        """mean |x| of each input [I], float32."""
        return (self.sizes / max(self.tokens, 1)).float()


def loss(change_OI: Tensor, gram_II: Tensor) -> float:
    """tr(D C D^T): mean squared error over tokens, summed over outputs."""
    return float((change_OI @ gram_II).mul_(change_OI).sum(dtype=torch.float64))


def diagonal_blocks(gram_II: Tensor, groups: int) -> Tensor:
    """The blocks of C that lie within one group: [G, g, g]."""
    size = len(gram_II) // groups
    return torch.stack([gram_II[at : at + size, at : at + size] for at in range(0, len(gram_II), size)])
