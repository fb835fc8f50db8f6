"""What may be drawn is the same whether all tokens are put in order or only the likeliest."""

from __future__ import annotations

import pytest
import torch

from burnish.serve.sampling import Sampling, kept, likeliest


@pytest.mark.parametrize("spread", [0.1, 3.0, 20.0])
@pytest.mark.parametrize(
    "options",
    [{"top_p": 0.9}, {"top_k": 5}, {"top_k": 30, "top_p": 0.7}, {"min_p": 0.2}, {"top_k": 90}, {"top_p": 0.999}],
)
def test_the_likeliest_of_many_are_kept_as_if_all_had_been_put_in_order(options, spread, monkeypatch):
    logits = (torch.randn(3, 100, generator=torch.Generator().manual_seed(0)) * spread).round(
        decimals=1
    )  # with equal ones
    asked = Sampling(temperature=0.8, **options)
    every, cumulative = kept(logits, asked)
    monkeypatch.setattr("burnish.serve.sampling.LIKELIEST", 16)
    ids, weights = kept(logits, asked)
    weight = weights.diff(dim=1, prepend=torch.zeros(3, 1))
    wanted = cumulative.diff(dim=1, prepend=torch.zeros(3, 1))
    count = ids.shape[1]
    torch.testing.assert_close(weight, wanted[:, :count])
    assert not wanted[:, count:].any()
    assert torch.equal(ids[weight > 0], every[:, :count][weight > 0])


def test_fewer_than_all_are_put_in_order_where_they_are_enough(monkeypatch):
    monkeypatch.setattr("burnish.serve.sampling.LIKELIEST", 16)
    logits = -torch.arange(100.0)[None]
    assert kept(logits, Sampling(temperature=1.0, top_p=0.9))[0].shape == (1, 16)
    assert kept(logits * 1e-3, Sampling(temperature=1.0, top_p=0.9))[0].shape == (1, 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_of_equal_scores_the_first_is_likeliest(dtype):
    assert likeliest(torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 2.0]], dtype=dtype)) == [1, 0]
