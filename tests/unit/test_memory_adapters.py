"""The memory of adapters beside frozen weights, in 16 and in 4 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from burnish.architecture import Architecture
from burnish.hardware import chips
from burnish.job import Job
from burnish.mapping import RECOMPUTE, Mapping
from burnish.memory import between_steps, case_of, sizes_of, stage_memory
from burnish.memory.moments import Case
from burnish.parameters import parameters
from burnish.presets import preset
from burnish.stack import Stack, stacks

LLAMA = Architecture("llama", vocab=32000, hidden=512, layers=8, heads=8, kv_heads=2, head_dim=64, ffn=1408)
PLAIN = Stack("plain", "plain", "fsdp", 2022, "a test", gradient=2, base_gib=0, reserve=0, workspaces=0)


def case(model: Architecture, mapping: Mapping, stack: Stack = PLAIN, **job: Any) -> Case:
    """A step of 64 rows of 512 tokens on a card of 80 GB."""
    return case_of(model, (512, 64), mapping, sizes_of(Job(model, 512, 64, **job), stack, chips()["a100-80gb"]))


@pytest.mark.parametrize(("rank", "fits"), [(64, True), (128, False)])
def test_a_model_of_65b_is_tuned_on_one_card_of_48_gb(rank: int, fits: bool) -> None:
    """Dettmers et al. 2023 (arXiv 2305.14314): rank 64, one row of 512 tokens, layers run again, on one card of 48 GB."""
    model, chip = preset("llama-65b"), chips()["a6000"]
    job = Job(model, 512, 1, trained="qlora", lora_rank=rank)
    mapping = Mapping(recompute=RECOMPUTE.index("full"))
    made = stage_memory(model, (512, 1), mapping, sizes_of(job, stacks()["torch"], chip))
    assert (float(np.max(sum(made.values()))) <= chip.memory) == fits


def test_adapters_in_one_flat_buffer_with_frozen_weights_make_all_gradients() -> None:
    flat, count = replace(PLAIN, flat_frozen=1), float(parameters(LLAMA))
    three, alone = (
        between_steps(case(LLAMA, Mapping(dp=ranks, zero=3), stack=flat, trained="lora", lora_rank=8))["gradients"]
        for ranks in (2, 1)
    )
    assert np.max(three) == pytest.approx(2 * count)
    assert np.max(alone) == 0
    assert np.max(between_steps(case(LLAMA, Mapping(dp=2, zero=3), trained="lora", lora_rank=8))["gradients"]) == 0
    assert np.max(between_steps(case(LLAMA, Mapping(dp=2, zero=3), stack=flat))["gradients"]) == pytest.approx(count)


def test_adapters_of_a_stack_without_32_bits_are_in_16() -> None:
    def adapters(stack: Stack) -> float:
        eight, none = (between_steps(case(LLAMA, Mapping(), stack, trained="lora", lora_rank=r)) for r in (8, 0))
        return float(np.max(eight["parameters"]) - np.max(none["parameters"]))

    assert adapters(PLAIN) == pytest.approx(2 * adapters(replace(PLAIN, optimizer=4)))
