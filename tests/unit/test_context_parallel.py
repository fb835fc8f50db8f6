"""Context parallelism as predicted: the bytes of the ring, what is divided and what is not, arrays like ints."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_work import (
    ELEMENT,
    MICRO,
    SIZES,
    TOKENS,
    check_arrays,
    described,
    figures,
    in_layer,
    model,
    parameters,
    sent,
    split,
)

from burnish.describe import describe
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.shapes import Shapes
from burnish.techniques import context, tensor
from burnish.work import flops, fold, saved_bytes, transient_bytes


def check_ring(cp: int, tp: int = 1) -> None:
    """Liu et al. 2023, section 3.2: keys and values of a rank's tokens visit the others; gradients come with them back."""
    own = SIZES["kv_heads"] // tp * SIZES["head_dim"] * 2 * (TOKENS // cp) * ELEMENT
    found = sent(split(described(model()), Mesh(tp=tp, cp=cp)), "cp")
    steps = SIZES["layers"] * MICRO * (cp - 1)
    assert found == {("forward", "p2p"): (steps, steps * own), ("backward", "p2p"): (steps, steps * 2 * own)}


@pytest.mark.parametrize("cp", [2, 3, 8])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_keys_and_values_go_round(cp, tp):
    check_ring(cp, tp)


def check_sums(cp: int) -> None:
    alone, both = (in_layer(split(described(model()), Mesh(tp=2, cp=n))) for n in (1, cp))
    for key in alone:
        assert both[key] == (alone[key][0], alone[key][1] // cp)


def test_tensor_parallel_ranks_sum_fewer_tokens():
    check_sums(4)


@pytest.mark.parametrize("tied", [True, False])
def test_all_but_parameters_is_divided(tied):
    config = model(tied=tied)
    whole, part = described(config), split(described(config), Mesh(cp=4))
    assert parameters(part) == parameters(whole) == config.parameters
    assert tuple(4 * count for count in flops(part)) == flops(whole)
    head = config.vocab * config.hidden * ELEMENT  # the gradient of the head's weight, whole on each rank
    assert 4 * (saved_bytes(part) - head) == saved_bytes(whole) - head


def check_chunk() -> None:
    """1,200 tokens on a rank of two are 600: the loss still makes logits of 512 at a time, in float32."""
    work = describe(model(), Shapes(rows=2, seq=600))
    part = split(work, Mesh(cp=2))
    assert transient_bytes(part) == transient_bytes(work) == 512 * 331 * 4
    assert transient_bytes(split(work, Mesh(cp=4))) == 300 * 331 * 4


def test_the_loss_keeps_its_chunks():
    check_chunk()


def test_full_recompute_sends_the_ring_again():
    found = sent(split(described(model()), Mesh(cp=2), mode="full"), "cp")
    assert found["recompute", "p2p"] == found["forward", "p2p"]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 5)), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_arrays_give_what_ints_give(points):
    cp, micro = (np.array(column) for column in zip(*points, strict=True))

    def predicted(cp, micro):
        return figures(context.predict(context.Config(), described(model(), micro), Mesh(cp=cp)))

    check_arrays(predicted(cp, micro), [predicted(*point) for point in points])


def test_one_rank_changes_nothing():
    assert fold(split(described(model()), Mesh())) == fold(described(model()))


def test_tokens_that_do_not_divide_are_refused():
    with pytest.raises(
        UserError, match=r"96 tokens do not divide into 2 x 5 chunks; data\.seq must be a multiple of 10"
    ):
        context.check(context.Config(), described(model()), Mesh(cp=5))


@pytest.mark.sabotage
def test_sabotage_no_ring():
    with mock.patch.object(context, "_ring", return_value=()), pytest.raises(AssertionError):
        check_ring(2)


@pytest.mark.sabotage
def test_sabotage_a_ring_of_all_heads():
    def whole(block, divided, *rest):
        keys = (
            next(op.passed for op in block.ops if op.name == "attention") if "k" in {o.name for o in block.ops} else 0
        )
        ops = tuple(replace(op, passed=keys) if op.name == "attention" else op for op in divided.ops)
        return replace(divided, ops=ops)

    with mock.patch.object(tensor, "_righted", whole), pytest.raises(AssertionError):
        check_ring(2, tp=2)
