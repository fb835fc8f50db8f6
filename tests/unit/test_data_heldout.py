"""Held-out splits share no token with the training part, and count the bytes of what they judge."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from burnish.data.batch import IGNORED
from burnish.data.heldout import split
from burnish.data.packing import Corpus, Rows
from burnish.errors import UserError


def numbered(sizes):
    """Documents whose tokens are all different, each 'spelling' two bytes, so that overlap and loss can be seen."""
    ids = iter(range(1, 10_000))
    return Corpus.of([[next(ids) for _ in range(n)] for n in sizes], 0, [2 * n for n in sizes])


def two_bytes(ids):
    return 2 * int((np.asarray(ids) > 0).sum())


def tokens(corpus):
    return [int(t) for d in range(corpus.documents) for t in corpus.document(d) if t]


def predicted(corpus):
    return [int(b) for row in Rows(corpus, 5) for b in row.labels if b != IGNORED]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=12), st.floats(0.02, 0.95), st.sampled_from(["document", "tail"])
)
def test_no_token_is_on_both_sides_and_none_is_lost(sizes, fraction, by):
    corpus = numbered(sizes)
    try:
        train, heldout = split(corpus, fraction, two_bytes, by)
    except UserError:
        assume(False)
    assert sorted(tokens(train) + tokens(heldout)) == tokens(corpus)
    assert train.documents
    assert heldout.documents
    assert min(train.lengths.min(), heldout.lengths.min()) >= 2
    for side in (train, heldout):
        assert side.total_bytes == two_bytes(predicted(side))
        assert len(predicted(side)) == side.predicted
    assert not Counter(t for t in predicted(train) if t) & Counter(t for t in predicted(heldout) if t)
    if by == "document":
        whole = {tuple(corpus.document(d).tolist()) for d in range(corpus.documents)}
        assert {tuple(heldout.document(d).tolist()) for d in range(heldout.documents)} <= whole
    else:
        assert tokens(train) + tokens(heldout) == tokens(corpus)


def test_a_cut_inside_a_document():
    train, heldout = split(numbered([10]), 0.25, two_bytes)  # 12 framed tokens, 9 of them to learn
    assert [train.document(0).tolist(), heldout.document(0).tolist()] == [[0, *range(1, 9)], [9, 10, 0]]
    assert predicted(train) == list(range(1, 9))
    assert predicted(heldout) == [10, 0]
    assert (train.total_bytes, heldout.total_bytes) == (16, 2)


def test_many_documents_are_held_out_whole_and_near_the_fraction():
    corpus = numbered([7] * 200)
    train, heldout = split(corpus, 0.1, two_bytes)
    assert (heldout.documents, train.documents) == (20, 180)
    assert tokens(heldout) != tokens(corpus)[-len(tokens(heldout)) :]  # chosen at random, not the tail
    again, other = split(corpus, 0.1, two_bytes), split(corpus, 0.1, two_bytes, seed=1)
    assert tokens(again[1]) == tokens(heldout) != tokens(other[1])


def test_what_cannot_be_split_says_so():
    with pytest.raises(UserError, match=r"heldout_fraction is 0; values above 0 and below 1"):
        split(numbered([9, 9]), 0, two_bytes)
    with pytest.raises(UserError, match="one document cannot be held out by document"):
        split(numbered([9]), 0.5, two_bytes, "document")
    with pytest.raises(UserError, match="leaves one side empty"):
        split(numbered([1]), 0.1, two_bytes, "tail")
    with pytest.raises(UserError, match="'document', 'tail' and 'auto' work"):
        split(numbered([9]), 0.5, two_bytes, "middle")
