"""Packing: documents laid end to end and cut into rows, so that no position is wasted and no document sees another.

A document of text is [eos] + tokens + [eos], one of a chat what its template wrote. The stream of all documents is cut
every `seq` inputs; labels are the inputs moved by one. The label that would be the next document's first token is IGNORED,
so each token but a first one is predicted exactly once; where a corpus says which tokens are learned, all other labels are
IGNORED too. Positions restart at 0 in every piece (the part of one document that lies in one row).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.data.batch import IGNORED, Ids, Row


@dataclass(frozen=True, eq=False)
class Corpus:
    """Framed documents inside one token stream (often a memory map); nothing is copied to select some of them.

    Document d is `stream[begins[d] : begins[d] + lengths[d]]`. `text_bytes[d]` is the UTF-8 length of the text that its
    predicted tokens spell. `learned`, as long as the stream, says which tokens are labels; None says all but first ones.
    """

    stream: NDArray[np.unsignedinteger]
    begins: Ids
    lengths: Ids
    text_bytes: Ids
    eos: int
    learned: NDArray[np.bool_] | None = None

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.begins)

    @property
    def predicted(self) -> int:
        """Tokens that are a label in one epoch."""
        if self.learned is None:
            return int((self.lengths - 1).sum())
        spans = zip(self.begins, self.lengths, strict=True)
        return sum(int(np.count_nonzero(self.learned[at + 1 : at + length])) for at, length in spans)

    @property
    def total_bytes(self) -> int:
        """UTF-8 bytes of the text, the denominator of bits per byte."""
        return int(self.text_bytes.sum())

    def document(self, d: int) -> NDArray[np.unsignedinteger]:
        """The framed tokens of document `d`, a view."""
        return self.stream[self.begins[d] : self.begins[d] + self.lengths[d]]

    @classmethod
    def of(cls, documents: Iterable[Iterable[int]], eos: int, text_bytes: Iterable[int] | None = None) -> Corpus:
        """Frame token lists held in memory (tests, small data); the cache builds large ones on disk."""
        framed = [np.array([eos, *tokens, eos], dtype=np.uint32) for tokens in documents]
        lengths = np.array([len(tokens) for tokens in framed], dtype=np.int64)
        stream = np.concatenate(framed) if framed else np.empty(0, dtype=np.uint32)
        sizes = np.zeros(len(framed), dtype=np.int64) if text_bytes is None else np.array([*text_bytes], dtype=np.int64)
        return cls(stream, np.cumsum(lengths) - lengths, lengths, sizes, eos)


class Rows:
    """The rows of a corpus, made on demand: `len(rows)`, `rows[k] -> Row`, iteration in order.

    The last token of the stream is a label but never an input, so a corpus of T framed tokens fills (T - 1) / seq rows,
    rounded up. The last row is filled with eos inputs and IGNORED labels; that filling is a piece of its own.
    """

    def __init__(self, corpus: Corpus, seq: int) -> None:
        if seq < 1:
            raise ValueError(f"seq is {seq}; a row needs at least one input")
        self.corpus = corpus
        self.seq = seq
        # Where each document ends, were the chosen ones laid end to end; and how far its tokens lie from there on disk.
        self._bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(corpus.lengths)])
        self._shift = corpus.begins - self._bounds[:-1]
        self._inputs = max(int(self._bounds[-1]) - 1, 0)

    def __len__(self) -> int:
        return -(-self._inputs // self.seq)

    def __iter__(self) -> Iterator[Row]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, k: int) -> Row:
        """Row `k`: ids, labels, positions of length seq, and piece lengths. Raises IndexError outside 0..len-1."""
        if not 0 <= k < len(self):
            raise IndexError(f"row {k} of {len(self)}")
        low = k * self.seq
        high = min(low + self.seq, self._inputs)
        first = int(np.searchsorted(self._bounds, low, side="right")) - 1
        last = int(np.searchsorted(self._bounds, high, side="left"))
        edges = np.clip(self._bounds[first : last + 1], low, high)
        lengths = np.diff(edges)
        spots = np.arange(low, high)
        where = spots + np.repeat(self._shift[first:last], lengths)

        filled = high - low
        ids = np.full(self.seq, self.corpus.eos, dtype=np.int64)
        labels = np.full(self.seq, IGNORED, dtype=np.int64)
        positions = np.arange(self.seq, dtype=np.int64) - filled
        ids[:filled] = self.corpus.stream[where]
        labels[: filled - 1] = ids[1:filled]
        positions[:filled] = spots - np.repeat(edges[:-1], lengths)
        ends = self._bounds[first + 1 : last + 1]
        if ends[-1] > high:  # the row's last document goes on
            labels[filled - 1] = self.corpus.stream[where[-1] + 1]
        labels[ends[ends <= high] - 1 - low] = IGNORED
        if self.corpus.learned is not None:  # the token after `where` is its label unless its document ends there
            counted = np.append(where[1:], where[-1] + 1) if ends[-1] > high else where[1:]
            labels[: len(counted)][~self.corpus.learned[counted]] = IGNORED
        pieces = tuple(int(n) for n in lengths)
        return Row(ids, labels, positions, pieces if filled == self.seq else (*pieces, self.seq - filled))
