"""The order of rows: a pure function of (seed, global sample index), so resuming needs one integer and ranks none.

There is no generator to save or restore: epoch e of n rows is one permutation drawn from a counter-based generator
keyed by (seed, e) (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", Philox-4x64), and sample g is
entry g mod n of epoch g // n.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from burnish.data.batch import Batch, Ids
from burnish.data.packing import Rows
from burnish.errors import UserError


@lru_cache(maxsize=2)  # a step may straddle two epochs; remembering them changes no result
def _permutation(seed: int, epoch: int, n: int) -> Ids:
    """The order of epoch `epoch`: ranks of raw generator words, which numpy keeps equal between its versions."""
    words = np.random.Philox(key=np.array([seed % 2**64, epoch], dtype=np.uint64)).random_raw(n)
    order = np.argsort(words, kind="stable")
    order.setflags(write=False)
    return order


def sample_ids(seed: int, start: int, count: int, n: int) -> Ids:
    """Row numbers of the global samples start .. start + count - 1 over `n` rows, int64 [count].

    Each epoch (n samples) visits every row once in a new order. Raises UserError when there are no rows.
    """
    if n < 1:
        raise UserError("the data holds no row to train on; give more text or a smaller data.seq")
    if start < 0 or count < 0:
        raise ValueError(f"start {start} and count {count} must not be negative")
    samples = np.arange(start, start + count, dtype=np.int64)
    picked = np.empty(count, dtype=np.int64)
    epochs = samples // n
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        picked[chosen] = _permutation(seed, int(epoch), n)[samples[chosen] % n]
    return picked


def rank_share(global_batch: int, world: int) -> int:
    """Rows a step that one of `world` ranks takes. Raises UserError naming legal values when they do not divide."""
    if global_batch < 1 or global_batch % world:
        below, above = global_batch // world * world, (global_batch // world + 1) * world
        legal = f"{below} or {above}" if below > 0 else f"{above}"
        raise UserError(f"train.global_batch {global_batch} is not a positive multiple of {world} ranks; try {legal}")
    return global_batch // world


def step_batches(
    rows: Rows, seed: int, step: int, global_batch: int, micro_batch: int, rank: int = 0, world: int = 1
) -> list[Batch]:
    """The micro batches of rank `rank` in step `step` (from 0): a contiguous slice of the step's rows.

    The ranks' slices in order are the step of one rank, for any `world`; the last micro batch may be smaller. Raises
    UserError when global_batch is no multiple of world, micro_batch is not positive, or there are no rows.
    """
    share = rank_share(global_batch, world)
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is outside 0..{world - 1}")
    picked = sample_ids(seed, step * global_batch + rank * share, share, len(rows))
    return list(_micro_batches(rows, picked, micro_batch))


def eval_batches(rows: Rows, micro_batch: int) -> Iterator[Batch]:
    """All rows once, in order; the last batch may be smaller. Raises UserError when micro_batch is not positive."""
    return _micro_batches(rows, np.arange(len(rows)), micro_batch)


def _micro_batches(rows: Rows, picked: Ids, micro_batch: int) -> Iterator[Batch]:
    if micro_batch < 1:
        raise UserError(f"train.micro_batch {micro_batch} is not positive; 1 and more work")
    return (
        Batch.of([rows[int(k)] for k in picked[at : at + micro_batch]]) for at in range(0, len(picked), micro_batch)
    )
