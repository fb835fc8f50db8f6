"""A matrix in integers of 4 bits, the error of each column made up by the columns that come after it.

Frantar et al. 2022, "GPTQ" (arXiv 2210.17323), Algorithm 1: with H the inputs' Gram matrix and U the upper Cholesky factor of
its inverse, the columns after column i take -(w_i - q_i) / U_ii * U_i. What is least is the error of the outputs, not that of the
weights. The grid of a group is made when the group is reached, of the ratio whose error, weighed by H's diagonal, is least.

Shape letters: O outputs, I inputs, G groups of a row, g inputs of a group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.compress.rtn import Steps, rounded, steps
from burnish.errors import UserError
from burnish.ops.int4_linear import Integers
from burnish.weight_format import IntWeights

RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8)
DAMPING = (
    0.1  # share of the diagonal's mean that is added to it: inputs of few texts leave directions that none of them had
)


def gptq(weight_OI: Tensor, gram_II: Tensor, scheme: IntWeights) -> Integers:
    """The integers of a matrix whose inputs have this sum of products x xᵀ, each over some tokens; any scale of it will do.

    Raises UserError where inputs are not finite.
    """
    if not bool(gram_II.isfinite().all()):
        raise UserError("weights of 4 bits: an input of a matrix is not finite; its weights may be damaged")
    width, group = weight_OI.shape[1], weight_OI.shape[1] // scheme.groups(weight_OI.shape[1])
    diagonal_I = gram_II.diagonal().float()
    factor_II = _factor(gram_II)
    left_IO = weight_OI.detach().float().t().contiguous()  # columns lie together: they are what is gone through
    values, grids = [], []
    for first in range(0, width, group):
        columns = slice(first, first + group)
        block_gO, own_gg = left_IO[columns], factor_II[columns, columns]
        grid = _best(block_gO.t().unsqueeze(1), scheme, diagonal_I[columns])
        made, errors_gO = [], torch.empty_like(block_gO)
        for number, column_O in enumerate(block_gO):
            made.append(rounded(column_O[:, None, None], grid)[:, 0, 0])
            back_O = made[-1] if grid.zero is None else made[-1] - grid.zero[:, 0, 0]
            errors_gO[number] = (column_O - back_O * grid.scale[:, 0, 0]) / own_gg[number, number]
            block_gO[number + 1 :].addr_(own_gg[number, number + 1 :], errors_gO[number], alpha=-1)
        left_IO[first + group :].addmm_(factor_II[columns, first + group :].t(), errors_gO, alpha=-1)
        values += made
        grids.append(grid)
    zeros = [grid.zero[:, 0] for grid in grids if grid.zero is not None]
    return Integers(
        torch.stack(values, 1).to(torch.int8),
        torch.cat([grid.scale[:, 0] for grid in grids], 1),
        torch.cat(zeros, 1).to(torch.int8) if zeros else None,
    )


def _factor(gram_II: Tensor) -> Tensor:
    """U of H⁻¹ = Uᵀ U in float32, H being damped; an input that is always zero is as good as any."""
    gram_II = gram_II.double()
    mean = float(gram_II.diagonal().mean()) or 1.0
    damped_II = gram_II + DAMPING * mean * torch.eye(len(gram_II), dtype=torch.float64)
    return torch.linalg.cholesky(torch.linalg.inv(damped_II), upper=True).float()


def _best(block_OGg: Tensor, scheme: IntWeights, weights_g: Tensor) -> Steps:
    """The grid of one group of each row, of the ratio of its range that does least harm."""
    best, found = None, None
    for ratio in RATIOS:
        grid = steps(block_OGg, scheme, ratio)
        made = rounded(block_OGg, grid)
        if grid.zero is not None:
            made -= grid.zero
        error = ((made * grid.scale - block_OGg).square_() @ weights_g).unsqueeze(-1)
        if best is None or found is None:
            best, found = error, grid
            continue
        better = error < best
        best = torch.where(better, error, best)
        zero = None if grid.zero is None or found.zero is None else torch.where(better, grid.zero, found.zero)
        found = Steps(torch.where(better, grid.scale, found.scale), zero)
    assert found is not None
    return found
