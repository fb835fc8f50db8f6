"""Samples: padding is masked, batches are whole, and the fingerprint is of real tokens alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from burnish.compress.fingerprint import model_fingerprint, unsound
from burnish.compress.samples import Samples
from burnish.errors import UserError

ROWS = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=7)


@given(ROWS, st.integers(1, 4), st.integers(0, 5))
def test_batches_hold_every_real_token_once(rows, size, pad):
    samples = Samples.of(rows, pad)
    seen = [ids[k][mask[k]].tolist() for ids, mask in samples.batches(size) for k in range(len(ids))]
    assert seen == rows
    assert samples.tokens == sum(map(len, rows))
    assert all(mask.any(0)[-1] for _, mask in samples.batches(size)), "a column of padding at the end of a batch"


@given(ROWS)
def test_the_fingerprint_does_not_see_padding(rows):
    one = Samples.of(rows, 0)
    wider = torch.nn.functional.pad(one.ids, (0, 3), value=7)
    other = Samples(wider, torch.nn.functional.pad(one.mask, (0, 3)))
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != Samples.of([*rows, [1]]).fingerprint
    assert Samples.of([[1, 2], [3]]).fingerprint != Samples.of([[1], [2, 3]]).fingerprint


@pytest.mark.parametrize(
    ("ids", "mask", "said"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 2, dtype=torch.bool), "both are [N, S]"),
        (torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, 3, dtype=torch.bool), "int64"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[True] * 3, [False] * 3]), "row 1"),
        (torch.zeros(0, 3, dtype=torch.int64), torch.ones(0, 3, dtype=torch.bool), "no row"),
    ],
)
def test_what_is_no_sample_is_refused(ids, mask, said):
    with pytest.raises(UserError, match=said.replace("[", r"\[")):
        Samples(ids, mask)


def test_a_model_is_known_by_its_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3, bias=False))
    one = model_fingerprint(model)
    assert one == model_fingerprint(model)
    with torch.no_grad():
        model[1].weight[2, 1] += 1e-6
    assert one != model_fingerprint(model)
    assert unsound(model) is None
    with torch.no_grad():
        model[1].weight[2, 1] = float("nan")
    assert unsound(model) == "1.weight"
    assert model_fingerprint(model.to(torch.bfloat16)) != one
