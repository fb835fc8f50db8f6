"""Packed rows: every token predicted once, no piece reaching past its document, padding that counts for nothing."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.data.batch import IGNORED, Batch
from burnish.data.packing import Corpus, Rows

EOS = 0
# Token 0 may occur inside a document too: boundaries must come from lengths, never from looking for eos.
documents = st.lists(st.lists(st.integers(0, 6), max_size=14), min_size=1, max_size=9)


def expected_pairs(docs):
    framed = [[EOS, *tokens, EOS] for tokens in docs]
    return Counter(pair for doc in framed for pair in pairwise(doc))


@settings(deadline=None)
@given(documents, st.integers(1, 9))
def test_every_token_but_a_leading_eos_is_predicted_once(docs, seq):
    rows = Rows(Corpus.of(docs, EOS), seq)
    found = Counter((int(a), int(b)) for row in rows for a, b in zip(row.ids, row.labels, strict=True) if b != IGNORED)
    assert found == expected_pairs(docs)
    assert sum(found.values()) == sum(len(tokens) + 1 for tokens in docs) == rows.corpus.predicted


@settings(deadline=None)
@given(documents, st.integers(1, 9))
def test_pieces_and_positions_follow_the_documents(docs, seq):
    stream = [(d, token) for d, tokens in enumerate(docs) for token in [EOS, *tokens, EOS]][:-1]
    rows = Rows(Corpus.of(docs, EOS), seq)
    assert len(rows) == -(-len(stream) // seq)
    for k, row in enumerate(rows):
        part = stream[k * seq : (k + 1) * seq]
        owners = [d for d, _ in part] + [-1] * (seq - len(part))  # the filling belongs to nobody
        assert row.ids.tolist() == [token for _, token in part] + [EOS] * (seq - len(part))
        assert sum(row.pieces) == seq
        assert list(row.pieces) == [owners.count(d) for d in dict.fromkeys(owners)]
        assert row.positions.tolist() == [i for n in row.pieces for i in range(n)]
        assert {row.ids.dtype, row.labels.dtype, row.positions.dtype} == {np.dtype(np.int64)}


def test_rows_written_out_by_hand():
    rows = Rows(Corpus.of([[5, 6, 7], [], [8, 9, 10, 11, 12, 13]], EOS), 4)
    assert [row.ids.tolist() for row in rows] == [[0, 5, 6, 7], [0, 0, 0, 0], [8, 9, 10, 11], [12, 13, 0, 0]]
    assert [row.labels.tolist() for row in rows] == [
        [5, 6, 7, 0],
        [IGNORED, 0, IGNORED, 8],
        [9, 10, 11, 12],
        [13, 0, IGNORED, IGNORED],
    ]
    assert [row.pieces for row in rows] == [(4,), (1, 2, 1), (4,), (2, 2)]
    assert [row.positions.tolist() for row in rows] == [[0, 1, 2, 3], [0, 0, 1, 0], [0, 1, 2, 3], [0, 1, 0, 1]]


@pytest.mark.parametrize("length", [0, 1, 6, 7, 8, 15])
def test_a_single_document_shorter_equal_and_longer_than_a_row(length):
    tokens = list(range(1, length + 1))
    rows = Rows(Corpus.of([tokens], EOS), 8)
    labels = np.concatenate([row.labels for row in rows])
    assert labels[labels != IGNORED].tolist() == [*tokens, EOS]
    assert len(rows) == -(-(length + 1) // 8)


def test_rows_are_made_on_demand_and_bounded():
    corpus = Corpus.of([[1, 2, 3]] * 5, EOS)
    rows = Rows(corpus, 4)
    corpus.stream[1] = 9
    assert rows[0].ids[1] == 9
    with pytest.raises(IndexError):
        rows[len(rows)]
    with pytest.raises(ValueError, match="at least one input"):
        Rows(corpus, 0)


def test_rows_of_chosen_documents_skip_the_others():
    corpus = Corpus.of([[1, 1], [2, 2, 2], [3]], EOS)
    chosen = Corpus(corpus.stream, corpus.begins[[0, 2]], corpus.lengths[[0, 2]], corpus.text_bytes[[0, 2]], EOS)
    same = Rows(Corpus.of([[1, 1], [3]], EOS), 3)
    for row, other in zip(Rows(chosen, 3), same, strict=True):
        assert [row.ids.tolist(), row.labels.tolist(), row.pieces] == [
            other.ids.tolist(),
            other.labels.tolist(),
            other.pieces,
        ]


def test_flt_043_packed_documents_do_not_see_each_other():
    """A piece never spans two documents, and changing one document changes nothing in another's pieces."""
    a, b = [[11, 12, 13], [21, 22]], [[14, 15, 16], [21, 22]]
    (first,), (second,) = Rows(Corpus.of(a, EOS), 8), Rows(Corpus.of(b, EOS), 8)
    assert first.pieces == second.pieces == (5, 3)
    start = first.pieces[0]
    for one, other in zip(first[:3], second[:3], strict=True):
        assert one[start:].tolist() == other[start:].tolist()
    assert first.labels[start - 1] == IGNORED
    assert first.positions[start] == 0


def test_flt_044_packing_keeps_each_pair_with_its_own_history():
    """Cutting a packed row at its pieces gives the rows the documents have alone: ids, labels and positions."""
    docs = [[1, 2, 3], [4, 5, 6, 7, 8]]
    (packed,) = Rows(Corpus.of(docs, EOS), 11)
    at = 0
    for doc, length in zip(docs, packed.pieces, strict=True):
        (alone,) = Rows(Corpus.of([doc], EOS), len(doc) + 1)
        piece = slice(at, at + len(doc) + 1)
        assert [part[piece].tolist() for part in packed[:3]] == [part.tolist() for part in alone[:3]]
        at += length


def test_batch_names_segments_only_where_a_row_has_several():
    rows = Rows(Corpus.of([[1] * 6, [2], [3]], EOS), 4)
    assert Batch.of([rows[0]]).segments is None
    mixed = Batch.of([rows[0], rows[1], rows[2]])
    assert mixed.segments == ((4,), (4,), (3, 1))
    assert mixed.ids.shape == mixed.labels.shape == mixed.positions.shape == (3, 4)
    assert mixed.label_count == 4 + 3 + 3
    with pytest.raises(ValueError, match="at least one row"):
        Batch.of([])
