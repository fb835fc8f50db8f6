"""Lanes: many small pieces of work shared out to a few threads, each of which runs torch's operators by itself.

Threads within an operator would have to meet at the end of each one; when another process holds a core, every such meeting
costs a turn of the system's clock. Lanes meet once for all their pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch


class Piece(NamedTuple):
    """Something to do, and how long it takes beside others."""

    cost: int
    do: Callable[[], None]


class Lanes:
    """`count` threads, of which the calling one is the first. Under `least` units of cost it does everything by itself."""

    def __init__(self, count: int, least: int) -> None:
        self.count, self.least = count, least
        others = count - 1
        self._others = ThreadPoolExecutor(others, "lane", torch.set_num_threads, (1,)) if others > 0 else None

    def run(self, pieces: Sequence[Piece]) -> None:
        """Do all pieces, in any order; returns when they are done. Raises what a piece raises."""
        if self._others is None or sum(piece.cost for piece in pieces) < self.least:
            return _alone(pieces)
        own, *shares = shared(pieces, self.count)
        waiting = [self._others.submit(_alone, share) for share in shares]
        _alone(own)
        for other in waiting:
            other.result()


def shared(pieces: Sequence[Piece], count: int) -> list[list[Piece]]:
    """`count` shares of nearly equal cost: the dearest piece first, each to the share that has least (Graham 1969)."""
    shares: list[list[Piece]] = [[] for _ in range(count)]
    costs = [0] * count
    for piece in sorted(pieces, key=lambda piece: -piece.cost):
        least = costs.index(min(costs))
        shares[least].append(piece)
        costs[least] += piece.cost
    return shares


@torch.inference_mode()
def _alone(pieces: Sequence[Piece]) -> None:
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        for piece in pieces:
            piece.do()
    finally:
        if before > 1:
            torch.set_num_threads(before)
