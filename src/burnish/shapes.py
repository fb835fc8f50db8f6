"""Shapes: how many rows of how many tokens a rank takes at a time, and how a recipe's step is cut into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.mesh import N, pick

if TYPE_CHECKING:
    from burnish.recipe import Recipe


@dataclass(frozen=True)
class Shapes:
    """One micro batch: `rows` of `seq` tokens, `micro` of them a step on each rank, the last one of `rest` rows if not 0.

    `pairs` is the sum of squared piece lengths over all rows, the size of full attention; None means whole rows.
    `pieces` is how many texts the rows hold, for models that say something of each; None means one a row.
    """

    rows: N
    seq: N
    micro: N = 1
    rest: N = 0
    pairs: N | None = None
    pieces: N | None = None
    packed: bool = False  # rows of several pieces, whose attention outputs are joined, and positions given per row
    scores: N = 0  # 1 where attention scores are stored instead of kept on chip

    @property
    def step_rows(self) -> N:
        """Rows of one step on one rank."""
        return self.rows * self.micro - pick(self.rest > 0, self.rows - self.rest, 0)


def shapes_of(recipe: Recipe) -> Shapes:
    """The micro batch of a recipe as the description needs it; conversations are short, so that a row holds several."""
    arithmetic = batch_arithmetic(recipe)
    rows, rank_rows = recipe.train.micro_batch, arithmetic["rows_per_rank"]
    several = recipe.data.format == "chat"
    return Shapes(rows, recipe.data.seq, arithmetic["micro_batches"], rest=rank_rows % rows, packed=several)


def batch_arithmetic(recipe: Recipe) -> dict[str, int]:
    """How a step's rows are cut: rows a step, a rank and a micro batch, and tokens over the run."""
    train, dp = recipe.train, recipe.parallel.dp
    rank_rows = train.global_batch // dp
    tokens = train.global_batch * recipe.data.seq
    return {
        "global_batch": train.global_batch,
        "rows_per_rank": rank_rows,
        "micro_batch": train.micro_batch,
        "micro_batches": -(-rank_rows // train.micro_batch),
        "tokens_per_step": tokens,
        "steps": train.steps,
        "tokens": tokens * train.steps,
    }
