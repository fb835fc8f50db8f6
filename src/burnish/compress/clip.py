"""Clip search: how far each group's range is shrunk, so that its many small weights get finer steps.

Lin et al. 2023 (arXiv 2306.00978) and their code: for every output and group, of a grid of ratios the one whose weights give
the least error of that group's part of the product. With D the change of the group's weights and C_gg the block of the Gram
matrix for its inputs the error is D C_gg D^T exactly; nothing is sampled. Queries and keys are left out, as there.

Shape letters: O outputs, I inputs, G groups an output, g inputs a group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.compress.gram import diagonal_blocks
from burnish.compress.rtn import Steps, grid, grouped, restored
from burnish.weight_format import IntWeights

RATIOS = tuple(round(1 - 0.05 * k, 2) for k in range(10))
UNCLIPPED = (
    "q",
    "k",
)  # their products pass a softmax, where the error of a large score counts for more than its square


def search(weight_OI: Tensor, gram_II: Tensor, scheme: IntWeights) -> Tensor:
    """The index into RATIOS that is best for every output and group: int64 [O, G]; the first of equal ones."""
    parts = grouped(weight_OI, scheme)
    blocks = diagonal_blocks(gram_II, parts.shape[1])
    low, high = (edge.unsqueeze(-1) for edge in parts.aminmax(dim=-1))
    best = torch.full(parts.shape[:2], torch.inf)
    index = torch.zeros(parts.shape[:2], dtype=torch.int64)
    for number, ratio in enumerate(RATIOS):
        error = _error(parts, grid(low, high, scheme, ratio), blocks)
        better = error < best
        best = torch.where(better, error, best)
        index[better] = number
    return index


def _error(parts_OGg: Tensor, own: Steps, blocks_Ggg: Tensor) -> Tensor:
    """D C_gg D^T of every output and group [O, G]."""
    change = (restored(parts_OGg, own) - parts_OGg).transpose(0, 1)
    return torch.bmm(change, blocks_Ggg).mul_(change).sum(-1).t()


def ratios(index_OG: Tensor) -> Tensor:
    """The ratios that an index stands for, float32."""
    return torch.tensor(RATIOS)[index_OG]


def written(index_OG: Tensor) -> str:
    """An index as text: a digit a group, a word an output."""
    return " ".join("".join(map(str, row)) for row in index_OG.tolist())


def read(text: str) -> Tensor:
    """The index that `written` wrote. Raises ValueError for text that is none."""
    return torch.tensor([[int(digit) for digit in row] for row in text.split(" ")])
