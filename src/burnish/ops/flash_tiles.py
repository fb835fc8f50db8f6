"""Tiles: which rows of queries and keys belong to one sequence, which keys a query sees, and how large a tile is.

Sequences stand one after another without padding, as cumulative lengths say it elsewhere: queries [T, N, D], keys and values
[U, K, D], with sequence number i in rows of both. Where a sequence has more keys than queries, its last query stands at its last
key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from burnish.models.attention import Pattern

HEADER = 5  # numbers of a written `Tiles` ahead of the lengths
ALL = -1  # keys before or behind its own that a query sees: all of them


class Group(NamedTuple):
    """Neighbouring sequences of the same lengths, how many they are, and the rows they begin at."""

    sequences: int
    queries: int
    keys: int
    query_row: int
    key_row: int


class Tiles(NamedTuple):
    """Lengths of the sequences; keys seen before and behind the query's own, `ALL` or a number; rows of a tile."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    before: int = ALL
    behind: int = 0
    block_q: int = 64
    block_k: int = 128

    def check(self, query_rows: int, key_rows: int) -> None:
        """Raises ValueError when the sequences do not fill tensors of so many rows exactly, or a size means nothing."""
        if len(self.queries) != len(self.keys):
            raise ValueError(f"pack: {len(self.queries)} sequences of queries, {len(self.keys)} of keys; give as many")
        for name, lengths, rows in (("queries", self.queries, query_rows), ("keys", self.keys, key_rows)):
            if min(lengths, default=0) < 0 or sum(lengths) != rows:
                ends = ", ".join(map(str, accumulate(lengths[-3:], initial=sum(lengths[:-3]))))
                raise ValueError(
                    f"pack: the last cumulative length of {name} is {sum(lengths)} (.., {ends}), the tensor has {rows} rows; "
                    f"cut it to {sum(lengths)}, or make the rest a sequence of its own"
                )
        if min(self.block_q, self.block_k) < 1 or min(self.before, self.behind) < ALL:
            raise ValueError(f"tiles: {self[2:]} are no sizes; a window is {ALL} (all) or from 0, a block from 1")

    @property
    def pairs(self) -> int:
        """Query-key pairs of all sequences, hidden ones too: by the full convention all are counted."""
        return sum(q * k for q, k in zip(self.queries, self.keys, strict=True))

    def groups(self) -> Iterator[Group]:
        """Neighbouring sequences of the same lengths, to be computed at once."""
        query_row = key_row = 0
        found: Group | None = None
        for q, k in zip(self.queries, self.keys, strict=True):
            if found is not None and (q, k) == (found.queries, found.keys):
                found = found._replace(sequences=found.sequences + 1)
            else:
                if found is not None:
                    yield found
                found = Group(1, q, k, query_row, key_row)
            query_row, key_row = query_row + q, key_row + k
        if found is not None:
            yield found

    def seen(self, group: Group, first: int, end: int) -> tuple[int, int]:
        """The keys [from, to) that any of the queries [first, end) of a sequence sees."""
        shift = group.keys - group.queries
        start = 0 if self.before == ALL else max(first + shift - self.before, 0)
        stop = group.keys if self.behind == ALL else min(end + shift + self.behind, group.keys)
        return min(start, group.keys), max(stop, 0)

    def whole(self, group: Group, queries: tuple[int, int], keys: tuple[int, int]) -> bool:
        """Whether each of the queries [first, end) sees each of the keys [first, end)."""
        shift = group.keys - group.queries
        low = self.before == ALL or queries[1] - 1 + shift - self.before <= keys[0]
        return low and (self.behind == ALL or keys[1] - 1 <= queries[0] + shift + self.behind)

    def written(self) -> list[int]:
        """As plain integers, which an operation of torch can be given."""
        return [*self[2:], len(self.queries), *self.queries, *self.keys]


def read(numbers: Sequence[int]) -> Tiles:
    """What `Tiles.written` wrote."""
    before, behind, block_q, block_k, count = numbers[:HEADER]
    lengths = tuple(numbers[HEADER:])
    return Tiles(lengths[:count], lengths[count:], before, behind, block_q, block_k)


def tiles_of(pattern: Pattern, rows: int, queries: int, keys: int, blocks: tuple[int, int]) -> Tiles:
    """The tiles of `rows` rows under a pattern without a mask."""
    assert pattern.mask is None, "a mask is not tiled"
    before = pattern.window - 1 if pattern.causal and pattern.window else ALL
    behind = 0 if pattern.causal else ALL
    pieces = [run.end - run.start for run in pattern.runs for _ in range(run.row, run.row_end)]
    if pieces:
        return Tiles(tuple(pieces), tuple(pieces), before, behind, *blocks)
    return Tiles((queries,) * rows, (keys,) * rows, before, behind, *blocks)
