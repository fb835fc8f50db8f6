"""The memory model against published formulas, figures and its own description."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.architecture import Architecture
from burnish.hardware import chips
from burnish.job import Job
from burnish.mapping import RECOMPUTE, Mapping
from burnish.memory import KINDS, between_steps, case_of, peak, peaks, sizes_of, stage_memory
from burnish.memory.allocator import MIB, held
from burnish.memory.moments import Case, activation_bytes, counts
from burnish.parameters import parameters
from burnish.presets import preset
from burnish.price import layout, shapes_of
from burnish.stack import Stack, stacks
from burnish.work import Op, Work

H, SEQ, ROWS, HEADS = 1024, 512, 4, 16
GPT = Architecture(
    "gpt", vocab=50304, hidden=H, layers=8, heads=HEADS, kv_heads=HEADS, head_dim=64, ffn=4 * H, gated=0, layer_norm=1
)
LLAMA = Architecture("llama", vocab=32000, hidden=512, layers=8, heads=8, kv_heads=2, head_dim=64, ffn=1408)
ROUTED = replace(LLAMA, experts=8, topk=2, expert_ffn=256, expert_layers=8, ffn=0)
PLAIN = Stack("plain", "plain", "megatron", 2022, "a test", gradient=2, masks=1, base_gib=0, reserve=0, workspaces=0)
CHIP = chips()["a100-80gb"]


def case(
    model: Architecture,
    mapping: Mapping,
    stack: Stack = PLAIN,
    attention: str = "flash",
    batch: int = 64,
    **job: Any,
) -> Case:
    made = Job(model, SEQ, batch, attention=attention, **job)
    return case_of(model, (SEQ, batch), mapping, sizes_of(made, stack, CHIP))


def layer(mapping: Mapping, attention: str = "unfused") -> float:
    """Bytes one layer of one micro batch keeps."""
    kept, _ = activation_bytes(case(GPT, replace(mapping, micro_batch=ROWS), attention=attention))
    return float(np.ravel(kept)[0] / GPT.layers)


@pytest.mark.parametrize(
    ("tp", "sp", "scores", "factor"),
    [
        (1, 0, True, 34 + 5 * HEADS * SEQ / H),
        (4, 0, True, 10 + 24 / 4 + 5 * HEADS * SEQ / H / 4),
        (4, 1, True, (34 + 5 * HEADS * SEQ / H) / 4),
        (4, 1, False, 34 / 4),
    ],
)
def test_layer_of_korthikanti(tp: int, sp: int, scores: bool, factor: float) -> None:
    """Korthikanti et al. 2022, equations 1, 2, 4 and 6; norms keep two 4-byte statistics a token, flash one a head."""
    size = SEQ * ROWS
    statistics = 2 * 2 * 4 * size / (tp if sp else 1) + 4 * size * HEADS / tp
    assert layer(Mapping(tp=tp, sp=sp), "unfused" if scores else "flash") == pytest.approx(
        size * H * factor + statistics, rel=1e-9
    )


def test_a_recomputed_layer_keeps_its_input() -> None:
    full = Mapping(micro_batch=ROWS, recompute=RECOMPUTE.index("full"))
    assert layer(full) == 2 * SEQ * ROWS * H
    assert layer(replace(full, tp=4, sp=1)) == 2 * SEQ * ROWS * H / 4


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_states_of_zero(zero: int) -> None:
    """Rajbhandari et al. 2020, figure 1: 2 + 2 + 12 bytes a parameter, each part split from its stage on."""
    shards, count = 64, float(parameters(LLAMA))
    kinds = between_steps(case(LLAMA, Mapping(dp=shards, zero=zero), stack=replace(PLAIN, bucket_gib=0)))
    sizes = {name: float(np.ravel(kinds[name])[0]) for name in ("parameters", "gradients", "optimizer")}
    for (name, width), stage in zip((("parameters", 2), ("gradients", 2), ("optimizer", 12)), (3, 2, 1), strict=True):
        assert sizes[name] == pytest.approx(width * count / (shards if zero >= stage else 1), rel=1e-9)


def test_masters_that_are_the_parameters() -> None:
    """16 bytes split in all, and a whole 16-bit copy below ZeRO-3 (ZeRO on FSDP2)."""
    merged, count = replace(PLAIN, merged=1, gradient=4), float(parameters(LLAMA))
    three = between_steps(case(LLAMA, Mapping(dp=8, zero=3), stack=merged))
    two = between_steps(case(LLAMA, Mapping(dp=8, zero=2), stack=merged))
    assert float(np.ravel(sum(three.values()))[0]) == pytest.approx(16 * count / 8)
    assert float(np.ravel(sum(two.values()))[0]) == pytest.approx((2 + 16 / 8) * count)


@settings(max_examples=60, deadline=None)
@given(
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
    vpp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([4, 8]),
    sp=st.booleans(),
    recompute=st.sampled_from([0, 3]),
    routed=st.booleans(),
)
def test_sums_are_those_of_the_description(
    tp: int, pp: int, vpp: int, ep: int, dp: int, sp: bool, recompute: int, routed: bool
) -> None:
    """Parameters and what layers keep, stage by stage, as the techniques divide the description."""
    model = ROUTED if routed else LLAMA
    mapping = Mapping(
        tp=tp,
        pp=pp,
        vpp=vpp if pp > 1 else 1,
        dp=dp,
        ep=ep if routed else 1,
        sp=int(sp and tp > 1),
        recompute=recompute,
    )
    made = case(model, mapping, stack=replace(PLAIN, masks=0, dispatch_copies=0), batch=512)
    _, staged = layout(model, shapes_of(Job(model, SEQ, 512), mapping, PLAIN), mapping, PLAIN)
    dense, experts = (elements(staged, routed=kind) for kind in (False, True))
    mine, of_experts, _ = counts(made)
    assert np.allclose(np.ravel(mine), np.ravel(dense)[:3])
    assert np.allclose(np.ravel(of_experts + 0 * mine), np.ravel(experts + 0 * dense)[:3])
    kept, _ = activation_bytes(made)
    layers = [block for block in staged.blocks if block.entering is not None]
    saved = sum(block.layers * op_bytes(op) for block in layers for op in block.ops) * staged.flight
    assert np.allclose(np.ravel(kept), np.ravel(saved + 0 * kept), rtol=0.01)


def elements(work: Work, routed: bool) -> Any:
    """Parameters of a rank on each stage: those of experts, or the others."""
    total: Any = 0
    for block in work.blocks:
        for op in block.ops:
            if (op.group == "experts") == routed:
                for shape in op.shapes:
                    total = total + block.layers * (shape[0] * shape[1] if len(shape) > 1 else shape[0])
    return total


def op_bytes(op: Op) -> Any:
    """Bytes an operation keeps: two an element, four of a statistic."""
    return sum((4 if saved.role == "statistic" else 2) * saved.elements for saved in op.saved)


@pytest.mark.parametrize(("pp", "vpp", "stage", "chunks"), [(4, 3, 2, 9), (4, 1, 2, 1), (4, 3, 0, 15), (4, 1, 0, 4)])
def test_micro_batches_in_flight(pp: int, vpp: int, stage: int, chunks: int) -> None:
    """Chunks a stage holds: Megatron-LM warms up 2 (pp - 1 - rank) + (vpp - 1) pp of them and runs one more."""
    twelve = replace(GPT, layers=12)
    flight = case(twelve, Mapping(pp=pp, vpp=vpp, dp=1)).stage.flight
    assert float(np.ravel(flight)[stage]) * vpp == chunks


def test_the_optimizer_can_be_the_peak() -> None:
    """Pure 16-bit training of 7.24 billion parameters: 8 bytes each, and 2 while all moments are divided at once."""
    mistral = preset("mistral-7b")
    pure = replace(stacks()["hf-trainer"], gradient=2, optimizer=4, base_gib=0)
    job = Job(mistral, 4096, 4, precision="fp16")
    mapping = Mapping(micro_batch=4, recompute=RECOMPUTE.index("full"))
    made = stage_memory(mistral, (4096, 4), mapping, sizes_of(job, pure, CHIP))
    total = float(np.max(sum(made.values()))) / 2**30
    assert total == pytest.approx(67.96, rel=0.02)  # GiB allocated, measured with 4 and with 8 sequences
    assert np.max(made["activations"]) == 0


def test_gradients_made_anew_are_not_there_when_the_loss_is() -> None:
    wide = replace(LLAMA, vocab=512000)
    one = peak(case(wide, Mapping(micro_batch=64), batch=64))
    more = peak(case(wide, Mapping(micro_batch=64), batch=128))
    flat = peak(case(wide, Mapping(micro_batch=64), stack=replace(PLAIN, flat_gradients=1), batch=64))
    assert np.max(one["logits"]) > 0
    assert np.max(one["gradients"]) == 0
    assert np.max(more["gradients"]) == np.max(flat["gradients"]) == pytest.approx(2 * float(parameters(wide)))


def test_zero_3_in_a_pipeline_keeps_parameters_whole() -> None:
    alone = peak(case(LLAMA, Mapping(dp=8, zero=3)))
    staged = peak(case(LLAMA, Mapping(dp=8, pp=2, zero=3)))
    assert np.max(alone["buffers"]) < 4 * float(parameters(LLAMA)) / 2 < np.max(staged["buffers"])


def test_offloaded_states_leave_what_computes() -> None:
    count, states = float(parameters(LLAMA)), 2
    three, two = (
        between_steps(case(LLAMA, Mapping(dp=8, zero=zero, offload=states), stack=replace(PLAIN, merged=1)))
        for zero in (3, 2)
    )
    assert float(np.max(sum(three.values()))) == 0
    assert float(np.max(sum(two.values()))) == pytest.approx(2 * count)
    gathered = peak(case(LLAMA, Mapping(dp=8, zero=3, offload=states)))["buffers"]
    assert 0 < np.max(gathered) < 4 * count


def test_adapters_train_little_and_frozen_products_keep_no_input() -> None:
    whole = peak(case(LLAMA, Mapping(micro_batch=8)))
    lora = peak(case(LLAMA, Mapping(micro_batch=8), trained="lora", lora_rank=8))
    assert np.max(lora["gradients"]) == np.max(lora["optimizer"]) == 0
    assert np.max(lora["activations"]) < 0.9 * np.max(whole["activations"])
    quantized = peak(case(preset("llama-2-7b"), Mapping(), trained="qlora"))
    assert np.max(quantized["parameters"]) == pytest.approx((4 + 0.127) / 8 * 6.476e9 + 2 * 0.2625e9, rel=1e-3)
    plain = peak(case(preset("llama-2-7b"), Mapping(), stack=replace(PLAIN, double_quantized=0), trained="qlora"))
    assert np.max(plain["parameters"]) == pytest.approx((4 + 0.5) / 8 * 6.476e9 + 2 * 0.2625e9, rel=1e-3)


@pytest.mark.parametrize(("size", "blocks"), [(0.75, 1.0), (1.0, 1.0), (0.3, 2 / 6), (3.0, 20 / 6), (12.5, 14.0)])
def test_what_the_allocator_holds(size: float, blocks: float) -> None:
    assert float(held(size * MIB)) == pytest.approx(blocks * MIB)


def test_kinds_sum_to_the_peak_of_many() -> None:
    class Setting:
        def __init__(self, model: Architecture, mapping: Mapping) -> None:
            self.job, self.mapping, self.stack = Job(model, SEQ, 64), mapping, PLAIN
            self.cluster = type("C", (), {"chip": CHIP})()

    settings_ = [Setting(GPT, Mapping(tp=2)), Setting(ROUTED, Mapping(ep=4, dp=4)), Setting(LLAMA, Mapping(pp=2))]
    made = peaks(settings_)
    for setting, total in zip(settings_, made.peak, strict=True):
        kinds = stage_memory(setting.job.model, (SEQ, 64), setting.mapping, sizes_of(setting.job, PLAIN, CHIP))
        assert tuple(kinds) == KINDS
        assert total == pytest.approx(float(np.max(sum(kinds.values()))))
    assert np.all(made.capacity == CHIP.memory)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
def test_candidates_are_priced_alone_as_together(zero: int, tp: int, pp: int, micro: int) -> None:
    one = Mapping(tp=tp, pp=pp, dp=4, zero=zero, micro_batch=micro)
    both = Mapping(**{name: np.array([value, 1]) for name, value in vars(one).items() if name != "schedule"})
    alone, together = peak(case(LLAMA, one)), peak(case(LLAMA, both))
    for kind in KINDS:
        assert np.allclose(np.ravel(alone[kind]), np.broadcast_to(together[kind], (3, 2))[:, 0])


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_own_training_is_predicted_alike(zero: int, recompute: str) -> None:
    """The planner's sums for this package's stack against the exact description of a recipe's step."""
    from burnish import apply, simulate
    from burnish.architecture import architecture
    from burnish.describe import describe, shapes_of
    from burnish.recipe import replace as changed
    from burnish.recipe_files import load

    recipe = changed(
        load("llama3-8b-h100"),
        {"parallel.zero.stage": zero, "memory.checkpointing": recompute, "train.global_batch": 16},
    )
    work, _ = apply.predict(recipe, describe(recipe.model, shapes_of(recipe)))
    exact = simulate.step_bytes(work)
    model = architecture(recipe.model)
    sizes = sizes_of(Job(model, 8192, 16), replace(stacks()["burnish"], base_gib=0, reserve=0), chips()["h100-sxm"])
    mapping = Mapping(dp=8, zero=zero, recompute=RECOMPUTE.index(recompute))
    made = {kind: float(np.max(size)) for kind, size in stage_memory(model, (8192, 16), mapping, sizes).items()}
    for kind in ("parameters", "gradients", "optimizer"):
        assert made[kind] == pytest.approx(float(exact[kind]), rel=1e-3)
    # The description sums ceilings of moments.
    assert sum(made.values()) == pytest.approx(float(sum(exact.values())), rel=0.2)


@pytest.mark.parametrize(
    ("model", "mapping", "measured"),
    [
        ("llama-3.1-8b", Mapping(dp=4, cp=2, zero=1), 44_271_689_728),
        ("nemotron-4-15b", Mapping(dp=32, tp=2, sp=1, zero=1, micro_batch=2), 34_466_545_664),
    ],
)
def test_allocated_bytes_that_nemo_logs(model: str, mapping: Mapping, measured: int) -> None:
    """Two log lines of NeMo 25.04 recipes: gradients take two bytes."""
    made = preset(model)
    sizes = sizes_of(Job(made, 4096, 256), stacks()["nemo-25.04"], chips()["h100-sxm"])
    kinds = between_steps(case_of(made, (4096, 256), mapping, sizes))
    assert float(np.ravel(sum(kinds.values()))[-1]) == pytest.approx(measured, rel=0.015)
