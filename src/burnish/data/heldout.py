"""Held-out split: part of a corpus set aside for judging, by whole documents or as the tail of the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from burnish.data.batch import Ids
from burnish.data.packing import Corpus
from burnish.errors import UserError


def split(
    corpus: Corpus, fraction: float, count_bytes: Callable[[Ids], int], by: str = "auto", seed: int = 0
) -> tuple[Corpus, Corpus]:
    """(train, heldout) views of one corpus that share no token; `fraction` of the tokens are held out.

    `by` is "document" (a random choice, fixed by `seed`), "tail" (the end of the text, inside a document if need be) or
    "auto": by document unless a single one is larger than the share. `count_bytes` gives the UTF-8 bytes of token ids,
    needed where a document is cut. Raises UserError when either side would be empty.
    """
    if not 0.0 < fraction < 1.0:
        raise UserError(f"data.heldout_fraction is {fraction}; values above 0 and below 1 hold text out")
    total = int(corpus.lengths.sum())
    if by == "auto":
        by = "document" if int(corpus.lengths.max(initial=0)) <= fraction * total else "tail"
    if by == "document":
        return _by_document(corpus, fraction, seed)
    if by == "tail":
        return _by_tail(corpus, fraction, count_bytes)
    raise UserError(f"held out by {by!r}; 'document', 'tail' and 'auto' work")


def _by_document(corpus: Corpus, fraction: float, seed: int) -> tuple[Corpus, Corpus]:
    if corpus.documents < 2:
        raise UserError("one document cannot be held out by document; give more documents or hold out the tail")
    words = np.random.Philox(key=np.array([seed % 2**64, 0], dtype=np.uint64)).random_raw(corpus.documents)
    order = np.argsort(words, kind="stable")
    reached = np.cumsum(corpus.lengths[order])
    number = int(np.searchsorted(reached, fraction * reached[-1])) + 1
    held = np.zeros(corpus.documents, dtype=bool)
    held[order[: min(number, corpus.documents - 1)]] = True
    return _chosen(corpus, ~held), _chosen(corpus, held)


def _chosen(corpus: Corpus, mask: np.ndarray) -> Corpus:
    return replace(corpus, begins=corpus.begins[mask], lengths=corpus.lengths[mask], text_bytes=corpus.text_bytes[mask])


def _by_tail(corpus: Corpus, fraction: float, count_bytes: Callable[[Ids], int]) -> tuple[Corpus, Corpus]:
    """Cut after the first (1 - fraction) of the tokens. The token at a cut inside a document is context only: the part
    after it is judged, the part before it is learned, and it is predicted on neither side."""
    bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(corpus.lengths)])
    cut = round(float(bounds[-1]) * (1.0 - fraction))
    d = int(np.searchsorted(bounds, cut, side="right")) - 1  # the document that the cut falls in
    if d == corpus.documents or cut - bounds[d] < 2 or bounds[d + 1] - cut < 2:  # a side too short to predict anything
        edge = int(np.argmin(np.abs(bounds - cut)))
        left, right = np.arange(corpus.documents) < edge, np.arange(corpus.documents) >= edge
        train, heldout = _chosen(corpus, left), _chosen(corpus, right)
    else:
        inside = cut - int(bounds[d])
        ids = np.asarray(corpus.document(d)[inside:], dtype=np.int64)
        after = count_bytes(ids[1:])
        before = int(corpus.text_bytes[d]) - count_bytes(ids)
        train, heldout = (
            _chosen(corpus, np.arange(corpus.documents) <= d),
            _chosen(corpus, np.arange(corpus.documents) >= d),
        )
        train.lengths[-1], train.text_bytes[-1] = inside, before
        heldout.begins[0] += inside
        heldout.lengths[0], heldout.text_bytes[0] = len(ids), after
    if not train.documents or not heldout.documents:
        raise UserError(f"data.heldout_fraction {fraction} leaves one side empty; give more text or another fraction")
    return train, heldout
