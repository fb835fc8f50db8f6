"""Slices of a server's cards, as users of other tools met them: groups, words and kernels that do not divide them."""

from __future__ import annotations

import pytest
import torch

from burnish.compress import rtn
from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.ops.int4_linear import Int4Linear, dequantize
from burnish.served_slices import check_served
from burnish.weight_format import IntWeights

QWEN = ModelConfig(family="qwen2", vocab=152064, hidden=5120, ffn=27392, layers=64, heads=40, kv_heads=40, tied=False)
DEEPSEEK = ModelConfig(
    family="qwen3_moe",
    vocab=102400,
    hidden=2048,
    ffn=1536,
    layers=26,
    heads=16,
    head_dim=128,
    experts=64,
    topk=6,
    tied=False,
)
FALCON = ModelConfig(vocab=65024, hidden=4544, ffn=18176, layers=32, heads=71, kv_heads=1)


def test_056_a_group_that_does_not_divide_the_slice_of_a_card() -> None:
    """27392 channels on 4 cards are 6848, and 128 is no divisor of them."""
    said = (
        r"group 128 does not divide 6848 inputs of mlp\.down on each of 4 cards; these do: 32, 64, -1; .* work: 1, 2;"
    )
    with pytest.raises(UserError, match=said):
        check_served(QWEN, IntWeights(4, 128), (), 4)
    assert check_served(QWEN, IntWeights(4, 128), (), 2) == ()
    assert check_served(QWEN, IntWeights(4, 128), ("mlp.down",), 4) == ()
    (note,) = check_served(QWEN, IntWeights(4, 64), (), 4, "vllm")
    assert "fast product does not take mlp.down" in note
    with pytest.raises(UserError, match=r"vLLM has no product of mlp\.down, 5120 outputs of 6848 inputs"):
        check_served(QWEN, IntWeights(4, 64, symmetric=False), (), 4, "vllm")
    with pytest.raises(UserError, match=r"3 cards of a server do not divide 40 heads.*; these do: 1, 2, 4, 8"):
        check_served(QWEN, IntWeights(4, 128), (), 3)


def test_057_any_number_of_outputs_is_packed_and_multiplied() -> None:
    """A fused matrix of 4672 outputs: here the last word of 8 zero points may be part empty; a server's kernel is asked for."""
    scheme, draw = IntWeights(4, 32, False, "float32"), torch.Generator().manual_seed(0)
    weight, x = torch.randn(73, 64, generator=draw), torch.randn(2, 3, 64, generator=draw)
    module = Int4Linear(scheme, 64, rtn.integers(weight, scheme))
    assert module.weight_zero_point is not None
    assert module.weight_zero_point.shape == (10, 2)
    torch.testing.assert_close(module(x), x @ dequantize(rtn.integers(weight, scheme)).t())
    (note,) = check_served(FALCON, IntWeights(4, 64), (), 1, "vllm")
    assert "attention.q" in note
    with pytest.raises(UserError, match=r"attention\.v, 4672 outputs of 4544 inputs a card: .*symmetric=true"):
        check_served(FALCON, IntWeights(4, 64, False), (), 1, "vllm")


def test_058_the_slice_of_an_expert_is_held_against_the_group() -> None:
    with pytest.raises(UserError, match=r"group 128 does not divide 192 inputs of mlp\.down on each of 8 cards"):
        check_served(DEEPSEEK, IntWeights(4, 128), (), 8)
    assert check_served(DEEPSEEK, IntWeights(4, 64), (), 8, "vllm") == ()
    with pytest.raises(UserError, match=r"experts want a hidden size of 128s and channels of 64s"):
        check_served(DEEPSEEK, IntWeights(4, 32), (), 16, "vllm")
