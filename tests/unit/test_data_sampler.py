"""The order of rows depends on the seed and the global sample index, and on nothing else."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.data.batch import IGNORED
from burnish.data.packing import Corpus, Rows
from burnish.data.sampler import eval_batches, sample_ids, step_batches
from burnish.errors import UserError


def small_rows():
    return Rows(Corpus.of([list(range(1, n + 1)) for n in (9, 3, 0, 14, 5, 1, 7)], 0), 5)


def content(batches):
    return [(b.ids.tolist(), b.labels.tolist(), b.positions.tolist(), b.segments) for b in batches]


def stacked(batches):
    return np.concatenate([b.ids for b in batches]).tolist()


@settings(deadline=None)
@given(st.integers(0, 2**63), st.integers(1, 40), st.integers(0, 4))
def test_each_epoch_visits_every_row_once(seed, n, epoch):
    assert sorted(sample_ids(seed, epoch * n, n, n)) == list(range(n))


def test_epochs_and_seeds_have_different_orders():
    orders = {tuple(sample_ids(seed, epoch * 50, 50, 50)) for seed in range(3) for epoch in range(4)}
    assert len(orders) == 12


def test_the_order_is_fixed_for_good():
    """Written out, so that a change of numpy or of this code that would break resuming is seen."""
    assert sample_ids(7, 0, 12, 6).tolist() == [4, 1, 3, 2, 5, 0, 3, 1, 2, 5, 4, 0]


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 13), st.integers(1, 11))
def test_flt_013_resume_anywhere_continues_the_uninterrupted_order(stop, chunk, n):
    whole = sample_ids(3, 0, 80, n).tolist()
    resumed = [i for start in range(stop, 80, chunk) for i in sample_ids(3, start, min(chunk, 80 - start), n)]
    assert whole[:stop] + resumed == whole


def test_flt_013_steps_after_resume_equal_the_uninterrupted_run():
    rows = small_rows()
    whole = [content(step_batches(rows, 5, step, 4, 3)) for step in range(9)]
    assert len(rows) == 11  # so the nine steps of four cross three epochs
    for stop in range(9):
        fresh = Rows(rows.corpus, rows.seq)
        assert [content(step_batches(fresh, 5, step, 4, 3)) for step in range(stop, 9)] == whole[stop:]


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_the_order_does_not_depend_on_ranks(world):
    rows = small_rows()
    for step in range(4):
        ranks = [stacked(step_batches(rows, 1, step, 6, 2, rank, world)) for rank in range(world)]
        assert [row for rank in ranks for row in rank] == stacked(step_batches(rows, 1, step, 6, 6))


def test_flt_015_batches_ignore_every_global_random_state():
    """Nothing is drawn from a hidden generator, so no state has to be restored before the first batch."""
    rows = small_rows()

    def drawn(seed):
        random.seed(seed)
        np.random.seed(seed)
        before = (random.getstate(), np.random.get_state()[1].tolist())
        batches = content(step_batches(rows, 2, 3, 6, 2)) + content(eval_batches(rows, 4))
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
        return batches

    assert drawn(1) == drawn(2)


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 5, 6, 32])
def test_flt_023_micro_batches_cut_the_same_rows_and_labels(micro_batch):
    rows = small_rows()
    micros = step_batches(rows, 0, 1, 6, micro_batch)
    assert [len(b.ids) for b in micros] == [len(c) for c in np.split(np.arange(6), range(micro_batch, 6, micro_batch))]
    assert stacked(micros) == stacked(step_batches(rows, 0, 1, 6, 6))
    assert sum(b.label_count for b in micros) == step_batches(rows, 0, 1, 6, 6)[0].label_count


def test_flt_026_the_last_partial_batch_is_kept_and_a_row_without_labels_counts_none():
    rows = Rows(
        Corpus.of([[], [4]], 0), 1
    )  # eos | eos 4, one input a row: the row of the first closing eos has no label
    batches = list(eval_batches(rows, 3))
    assert [len(b.ids) for b in batches] == [3, 1]
    assert stacked(batches) == [[0], [0], [0], [4]]
    assert [row.labels.tolist() for row in rows] == [[0], [IGNORED], [4], [0]]
    assert [b.label_count for b in eval_batches(rows, 1)] == [1, 0, 1, 1]


def test_evaluation_reads_all_rows_once_in_order():
    rows = small_rows()
    batches = list(eval_batches(rows, 4))
    assert [len(b.ids) for b in batches] == [4, 4, 3]
    assert stacked(batches) == [row.ids.tolist() for row in rows]
    assert sum(b.label_count for b in batches) == rows.corpus.predicted


def test_a_step_larger_than_the_data_goes_on_into_the_next_epoch():
    rows = small_rows()
    ids = stacked(step_batches(rows, 0, 0, 2 * len(rows), 4))
    assert sorted(ids) == sorted([row.ids.tolist() for row in rows] * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 2, 0, 4), r"global_batch 10 is not a positive multiple of 4 ranks; try 8 or 12"),
        ((3, 2, 0, 4), r"global_batch 3 is not a positive multiple of 4 ranks; try 4$"),
        ((0, 2, 0, 1), r"global_batch 0 is not a positive multiple of 1 ranks; try 1$"),
        ((4, 0, 0, 1), r"micro_batch 0 is not positive"),
    ],
)
def test_bad_batch_sizes_name_legal_values(arguments, message):
    global_batch, micro_batch, rank, world = arguments
    with pytest.raises(UserError, match=message):
        step_batches(small_rows(), 0, 0, global_batch, micro_batch, rank, world)


def test_bad_ranks_starts_and_empty_data_are_refused():
    with pytest.raises(ValueError, match="rank 2 is outside"):
        step_batches(small_rows(), 0, 0, 4, 2, 2, 2)
    with pytest.raises(ValueError, match="negative"):
        sample_ids(0, -1, 2, 3)
    with pytest.raises(UserError, match="no row to train on"):
        sample_ids(0, 0, 2, 0)
