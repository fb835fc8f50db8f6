"""Products over a divided input keep of it what autograd saves, and nothing beside that."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

from burnish.ops import split_products
from burnish.ops.split_products import Kept, column


def check_nothing_else_is_kept() -> None:
    """The named check: where saved tensors are dropped, as a layer that is run again does, the input's part is gone."""
    weight, given = torch.randn(6, 4, requires_grad=True), torch.randn(2, 6, 4, requires_grad=True)
    whole: Tensor = given * 2
    part = whole.detach()[:, :3].clone()
    whole.part, whole.kept = part, Kept(None)  # type: ignore[attr-defined, arg-type]
    there = weakref.ref(part)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: None, lambda nothing: None):
        made = column(whole, weight, None)
    del part, whole
    gc.collect()
    assert made.requires_grad
    assert there() is None


def test_a_product_keeps_its_input_by_saved_tensors_alone():
    check_nothing_else_is_kept()


@pytest.mark.sabotage
def test_sabotage_a_part_held_beside_them(monkeypatch):
    plain = split_products._Column.forward

    def holding(ctx, x, weight, bias, part, kept):
        kept.part = part
        return plain(ctx, x, weight, bias, part, kept)

    monkeypatch.setattr(split_products._Column, "forward", staticmethod(holding))
    with pytest.raises(AssertionError):
        check_nothing_else_is_kept()
