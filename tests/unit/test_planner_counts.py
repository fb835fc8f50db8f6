"""How many GPUs are used: all, or fewer where that is allowed; numbers that hold no divisors are told of, and bounded."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import UserError
from burnish.planner import plan_model, request
from burnish.planner.candidates import chunks
from burnish.planner.counts import divisors, fewer, gpu_counts
from burnish.planner.legal import Degrees, degrees, fixed_degrees, why_illegal
from burnish.planner.request import MOST_LAYERS, MOST_SEQUENCES, MOST_TOKENS

RACK = request("llama3-8b", "gb200:72", 1048576, 8)


@given(st.integers(1, 10**7))
def test_divisors_are_those_of_a_plain_loop(number: int) -> None:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    assert list(divisors(number)) == sorted({*small, *(number // n for n in small)})


@pytest.mark.parametrize("number", [MOST_SEQUENCES, MOST_SEQUENCES - 35, 735134400])
def test_divisors_of_the_largest_numbers_are_found_soon(number: int) -> None:
    found = divisors(number)
    assert all(number % n == 0 for n in found)
    assert [number // n for n in found] == list(reversed(found))


def test_counts_that_suit_a_model_are_tried_beside_the_divisors_of_the_cluster() -> None:
    assert {1, 8, 36, 64, 72} <= set(gpu_counts(replace(RACK, fewer_gpus=True)))
    nodes = request("llama3-70b", "h100-sxm:15x8", 8192, 128, fewer_gpus=True)
    assert {8, 40, 64, 96, 120} <= set(gpu_counts(nodes))
    assert all(count % 8 == 0 or count < 8 for count in gpu_counts(nodes))
    assert gpu_counts(RACK) == [72]


def test_counts_stay_few_on_large_clusters() -> None:
    large = request("llama3-70b", "h100-sxm:2047x8", 8192, 128, fewer_gpus=True)
    found = gpu_counts(large)
    assert max(found) == large.cluster.gpus
    assert 1024 * 8 in found
    assert len(found) < 40


def test_fewer_gpus_that_suit_better_are_picked_where_that_is_allowed_and_told_of_where_not() -> None:
    free = plan_model(replace(RACK, fewer_gpus=True))
    every = plan_model(RACK)
    assert free.pick is not None
    assert every.pick is not None
    assert free.pick.mapping.gpus == 64
    assert free.pick.seconds < every.pick.seconds / 1.5
    assert any(note.startswith("64 of the 72 GPUs would take") and "--gpus-free" in note for note in every.notes)
    assert not any("--gpus-free" in note for note in free.notes)


def test_where_all_gpus_suit_only_the_next_power_of_two_is_looked_at() -> None:
    assert fewer(request("llama3-70b", "h100-sxm:8x8", 8192, 128)) == (32,)
    assert fewer(request("llama3-70b", "h100-sxm:9x8", 8192, 9 * 16)) == (64,)
    assert fewer(request("llama3-70b", "h100-sxm:1x1", 8192, 9)) == ()
    assert fewer(request("llama3-70b", "h100-sxm:9x8", 8192, 9, fewer_gpus=True)) == ()
    assert 64 in fewer(request("llama3-8b", "h100-sxm:9x8", 8192, 128))


def test_a_degree_that_the_cluster_cannot_be_filled_with_is_refused_by_a_rule_that_holds() -> None:
    said = why_illegal(RACK, {"cp": 64})
    assert said is not None
    assert "is the 72 GPUs; legal: 1, 2, 4, 8" in said
    free = replace(RACK, fewer_gpus=True, fix={"cp": 64})
    assert {d.cp for d in fixed_degrees(free)} == {64}
    assert why_illegal(free, free.fix) is None


def test_context_parallelism_leaves_a_rank_enough_tokens_unless_it_is_fixed() -> None:
    asked = request("deepseek-v3", "h100-sxm:64x8", 4096, 127)
    assert all(asked.seq // d.cp >= 2048 for d in degrees(asked, every=True))
    assert {d.cp for d in fixed_degrees(replace(asked, fix={"cp": 64}))} == {64}


def test_a_batch_without_divisors_is_told_of() -> None:
    asked = request("llama3-70b", "h100-sxm:8x8", 8192, 131)
    assert any("--batch 128 could" in note for note in plan_model(asked).notes)
    assert not any("could" in note for note in plan_model(replace(asked, batch=128)).notes)


def test_chunks_of_many_layers_are_not_counted_one_by_one() -> None:
    asked = request("llama3-8b", "h100-sxm:1x8", 8192, 64)
    deep = replace(asked, model=replace(asked.model, layers=10**12))
    assert chunks(deep, Degrees(1, 2, 4, 1, 1, 1)) == [1, 2, 4, 5, 8]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seq": MOST_TOKENS + 1}, "--seq"),
        ({"batch": MOST_SEQUENCES + 1}, "--batch"),
    ],
)
def test_the_largest_numbers_are_named(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=f"{words} .*: at most [0-9]+"):
        plan_model(replace(RACK, **changes))


@pytest.mark.parametrize("sizes", [{"layers": 10**12}, {"hidden": 10**12}, {"hidden": 2**31, "ffn": 2**31}])
def test_a_model_of_impossible_sizes_is_refused_in_one_line(sizes: dict[str, int]) -> None:
    asked = request("llama3-8b", "h100-sxm:1x8", MOST_LAYERS, 64)
    refused, plan = "", None
    try:
        plan = plan_model(replace(asked, model=replace(asked.model, **sizes)))
    except UserError as error:
        refused = str(error)
    assert len(refused.splitlines()) == (plan is None)
    assert "llama-3-8b" in refused if plan is None else plan.pick is None
