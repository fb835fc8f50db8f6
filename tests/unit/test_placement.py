"""Placements: what lies where, against numpy's own slicing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.placement import Placement, cut, whole


def put(placement: Placement, local: np.ndarray, full: np.ndarray) -> None:
    for piece in placement.pieces:
        there, here = (
            tuple(slice(a, a + n) for a, n in zip(at, piece.size, strict=True)) for at in (piece.there, piece.here)
        )
        full[there] = local[here]


@given(
    rows=st.integers(1, 9),
    cols=st.integers(1, 5),
    dim=st.integers(0, 1),
    cuts=st.lists(st.integers(0, 12), min_size=2, max_size=6),
    box=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 6), st.integers(0, 6)),
)
def test_a_box_of_runs_lands_where_slicing_says(rows, cols, dim, cuts, box):
    """Runs may lie beyond the whole tensor, which is padding; the box cuts what is left once more."""
    reference = np.arange(1, rows * cols + 1).reshape(rows, cols)
    padded = np.zeros((20, 20), dtype=int)
    padded[:rows, :cols] = reference
    padded = padded[:, :cols] if dim == 0 else padded[:rows]
    ends = sorted(cuts)[: len(cuts) // 2 * 2]
    runs = list(zip(ends[::2], ends[1::2], strict=True))
    local = np.concatenate([padded[a:b] if dim == 0 else padded[:, a:b] for a, b in runs], axis=dim)
    placement = cut("w", (rows, cols), dim, runs)
    found = np.zeros_like(reference)
    put(placement, local, found)
    covered = np.zeros(reference.shape[dim], dtype=bool)
    for a, b in runs:
        covered[a:b] = True
    mask = covered[:, None] if dim == 0 else covered[None, :]
    assert np.array_equal(found, np.where(mask, reference, 0))
    start, size = (min(box[0], local.shape[0]), min(box[1], local.shape[1])), box[2:]
    part = local[start[0] : start[0] + size[0], start[1] : start[1] + size[1]]
    found = np.zeros_like(reference)
    put(placement.within(start, part.shape), part, found)
    assert set(found[found > 0]) == set(part[part > 0])
    assert np.array_equal(found[found > 0], reference[found > 0])


def test_names_and_scalars():
    assert whole("w", (3, 2)).moved("v") == whole("v", [3, 2])
    assert whole("step", ()).within((), ()) == whole("step", ())
    with pytest.raises(ValueError, match=r"w: run 3\.\.2 of dimension 0"):
        cut("w", (4,), 0, [(3, 2)])
