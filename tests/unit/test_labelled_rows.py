"""Labelled texts packed into rows: every text whole, in its order, with its class at its first position and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.data.batch import IGNORED, Batch
from burnish.data.encoder_texts import EncoderText
from burnish.data.labelled import labelled_rows
from burnish.errors import UserError

LENGTH, PAD = 16, 99


@given(st.lists(st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=LENGTH), st.integers(0, 4)), min_size=1))
def test_every_text_comes_back_with_its_class(given_texts):
    texts = [EncoderText(ids, [0] * len(ids)) for ids, _ in given_texts]
    rows = labelled_rows(texts, [label for _, label in given_texts], LENGTH, PAD)
    found = []
    for ids, labels, positions, pieces in rows:
        assert sum(pieces) == LENGTH
        start = 0
        for size in pieces:
            own = slice(start, start + size)
            assert positions[own].tolist() == list(range(size))
            assert (labels[own][1:] == IGNORED).all()
            if labels[start] == IGNORED:
                assert own.stop == LENGTH
                assert set(ids[own]) == {PAD}
            else:
                found.append((ids[own].tolist(), int(labels[start])))
            start += size
    assert found == given_texts
    # No text could have gone into the row before it.
    firsts = [next(size for size in row.pieces) for row in rows[1:]]
    rests = [row.pieces[-1] if row.labels[LENGTH - row.pieces[-1]] == IGNORED else 0 for row in rows[:-1]]
    assert all(first > rest for first, rest in zip(firsts, rests, strict=True))
    assert Batch.of(rows).label_count == len(given_texts)


@pytest.mark.parametrize("size", [0, LENGTH + 1])
def test_a_text_that_is_no_text_of_a_row_is_refused(size):
    with pytest.raises(UserError, match=f"text 1: {size} tokens, a row holds 1 to {LENGTH}"):
        labelled_rows([EncoderText([1], [0]), EncoderText([1] * size, [0] * size)], [0, 1], LENGTH)
