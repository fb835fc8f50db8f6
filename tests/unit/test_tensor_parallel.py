"""Tensor and sequence parallelism as predicted: the papers' counts and bytes, parameters of all ranks, arrays like ints."""

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

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.techniques import tensor
from burnish.work import flops, saved_bytes

INPUT = TOKENS * SIZES["hidden"] * ELEMENT  # bytes of a layer's input
LAYERS = SIZES["layers"]


def check_sums_of_a_layer(tp: int) -> None:
    """Shoeybi et al. 2019, section 3: two all-reduces in forward and two in backward, each of tokens x hidden."""
    found = in_layer(split(described(model()), Mesh(tp=tp), sequence=False))
    assert found == {("forward", "all_reduce"): (2, 2 * INPUT), ("backward", "all_reduce"): (2, 2 * INPUT)}


@pytest.mark.parametrize("tp", [2, 4])
def test_four_all_reduces_a_layer_and_micro_batch(tp):
    check_sums_of_a_layer(tp)


def test_full_recompute_repeats_those_of_forward_but_the_last():
    """A second forward ends before the last product, whose result is what the second sum is of."""
    work = split(described(model()), Mesh(tp=2), sequence=False, mode="full")
    assert sent(work, "tp")["recompute", "all_reduce"] == (LAYERS * MICRO, LAYERS * MICRO * INPUT)


def check_halves(tp: int) -> None:
    """Korthikanti et al. 2022, section 4.2.2: as many bytes in halves, and two inputs gathered again for their weights."""
    found = in_layer(split(described(model()), Mesh(tp=tp)))
    assert found == {
        ("forward", "all_gather"): (2, 2 * INPUT),
        ("forward", "reduce_scatter"): (2, 2 * INPUT),
        ("backward", "all_gather"): (4, 4 * INPUT),
        ("backward", "reduce_scatter"): (2, 2 * INPUT),
    }


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallel_sends_the_same_in_halves(tp):
    check_halves(tp)


def check_vocabulary() -> None:
    """One sum of what the embedding gives, one of the head's input gradient (which a chunked loss makes in forward), and
    three numbers a token for the loss in two calls, the maximum before the others."""
    work = split(described(model(layers=1)), Mesh(tp=2), sequence=False)
    calls, size = sent(work, "tp")["forward", "all_reduce"]
    assert (calls, size) == (MICRO * (2 + 2 + 2), MICRO * (4 * INPUT + 3 * 4 * TOKENS))


def test_the_vocabulary_is_summed_too():
    check_vocabulary()


def rank_parameters(config: ModelConfig, tp: int) -> int:
    """Worked out apart: rows of the vocabulary are padded, key-value heads repeated, norms whole."""
    kv = max(config.kv_heads // tp, 1) * config.head_dim
    queries = config.heads // tp * config.head_dim
    layer = config.hidden * (2 * queries + 2 * kv + 3 * (config.ffn // tp) + 2)
    tables = -(-config.vocab // tp) * config.hidden * (1 if config.tied else 2)
    return config.layers * layer + tables + config.hidden


def check_parameters(tp: int, **sizes: int) -> None:
    config = model(**sizes)
    assert parameters(split(described(config), Mesh(tp=tp))) == rank_parameters(config, tp)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_parameters_of_a_rank(tp, kv_heads, tied):
    check_parameters(tp, kv_heads=kv_heads, tied=tied)


@pytest.mark.parametrize("tied", [True, False])
def test_ranks_hold_the_whole_and_their_norms_each(tied):
    config = model(vocab=332, tied=tied)
    norms = (2 * config.layers + 1) * config.hidden
    assert 4 * (parameters(split(described(config), Mesh(tp=4))) - norms) + norms == config.parameters


@pytest.mark.parametrize("tp", [2, 4])
def test_products_are_divided(tp):
    config = model(vocab=332)
    whole, part = described(config), split(described(config), Mesh(tp=tp))
    assert tuple(tp * count for count in flops(part)) == flops(whole)


def test_products_follow_padding_and_repetition():
    """331 words over 4 ranks are 83 rows each; one key-value head of 8 numbers is on every rank."""
    config = model(kv_heads=1)
    whole, part = described(config), split(described(config), Mesh(tp=4))
    names = {op.name: op.flops for block in part.blocks for op in block.ops}
    before = {op.name: op.flops for block in whole.blocks for op in block.ops}
    assert names["head"] == 3 * 2 * TOKENS * config.hidden * 83
    assert names["k"] == before["k"] == 2 * TOKENS * config.hidden * 8
    assert 4 * names["q"] == before["q"]


def test_what_is_saved():
    """With sequence parallelism all of it is divided but ids (8 bytes a token) and angles (a head for each position)."""
    config = model(vocab=332)
    whole, part = described(config), split(described(config), Mesh(tp=4))
    everywhere = TOKENS * 8 + 48 * config.head_dim * ELEMENT
    assert 4 * (saved_bytes(part) - everywhere) == saved_bytes(whole) - everywhere
    inputs = (config.layers * 4 + 1) * TOKENS * config.hidden * ELEMENT  # two norms and two products a layer, the head
    roots = (2 * config.layers + 1) * TOKENS * 4
    plain = split(described(config), Mesh(tp=4), sequence=False)
    assert saved_bytes(plain) - saved_bytes(part) == (inputs + INPUT + roots) * 3 // 4


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.integers(1, 5)), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_arrays_give_what_ints_give(kv_heads, points):
    config = model(kv_heads=kv_heads)
    tp, sequence, micro = (np.array(column) for column in zip(*points, strict=True))

    def predicted(tp, sequence, micro):
        made = tensor.Config.model_construct(sequence=sequence)
        return figures(tensor.predict(made, described(config, micro), Mesh(tp=tp)))

    check_arrays(predicted(tp, sequence, micro), [predicted(*point) for point in points])


@pytest.mark.parametrize(
    ("tp", "sizes", "said"),
    [
        (3, {}, "cannot split 8 query heads, 4 key-value heads and a feed-forward part of 96 evenly; use 1, 2, 4 or 8"),
        (16, {}, "use 1, 2, 4 or 8"),
        (8, {"ffn": 100}, "use 1, 2 or 4"),
        (6, {"heads": 12, "kv_heads": 4}, "use 1, 2, 4 or 12"),
    ],
)
def test_what_does_not_divide_is_refused_with_what_does(tp, sizes, said):
    with pytest.raises(UserError, match=said):
        tensor.check(tensor.Config(), described(model(**sizes)), Mesh(tp=tp))


def test_tokens_must_divide_only_where_they_are_split():
    work = described(model(), rows=1)
    with pytest.raises(UserError, match="48 tokens of a micro batch do not divide into 32 parts"):
        tensor.check(tensor.Config(), work, Mesh(tp=4, cp=8))
    tensor.check(tensor.Config(sequence=False), work, Mesh(tp=4, cp=8))


@pytest.mark.sabotage
@pytest.mark.parametrize("forgotten", ["OPENS", "CLOSES"])
def test_sabotage_half_of_the_sums_forgotten(forgotten):
    with mock.patch.object(tensor, forgotten, {}), pytest.raises(AssertionError):
        check_sums_of_a_layer(2)


@pytest.mark.sabotage
def test_sabotage_inputs_not_gathered_again():
    def without(whole, divided, *rest):
        return divided

    with mock.patch.object(tensor, "_righted", without), pytest.raises(AssertionError):
        check_halves(2)
    with mock.patch.object(tensor, "_righted", without), pytest.raises(AssertionError):
        check_vocabulary()


@pytest.mark.sabotage
def test_sabotage_key_value_heads_not_repeated():
    with mock.patch.object(tensor, "_repeated", lambda op, *rest: op), pytest.raises(AssertionError):
        check_parameters(8, kv_heads=1)
