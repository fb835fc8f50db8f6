"""Published rows as settings: what their words mean and what stands in for blank cells."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_row import BASE, published

from burnish.mapping import OFFLOAD, RECOMPUTE
from burnish.rows.lint import lint
from burnish.rows.training import Setting, row_of


def setting(**changes: object) -> Setting:
    row = row_of(published(**changes))
    assert row.setting is not None, row.why_not
    return row.setting


def why_not(**changes: object) -> str:
    row = row_of(published(**changes))
    assert row.setting is None
    return row.why_not


def test_stated_cells_are_taken_as_they_are() -> None:
    made = setting()
    m, job = made.mapping, made.job
    assert (m.tp, m.pp, m.cp, m.dp, m.micro_batch, job.seq, job.global_batch) == (2, 2, 1, 4, 2, 4096, 64)
    assert (job.model.layers, job.model.hidden, job.model.kv_heads, job.model.head_dim) == (32, 4096, 8, 128)
    assert (made.cluster.gpus, made.cluster.per_node, made.stack_name) == (16, 8, "nemo-25.02")


BLANKS = [
    # changes, what is read, value
    ({}, "job.precision", "bf16"),
    ({"stack": "megatron-2021"}, "job.precision", "fp16"),
    ({}, "job.attention", "flash"),
    ({"stack": "megatron-2022"}, "job.attention", "unfused"),
    ({}, "mapping.recompute", RECOMPUTE.index("none")),
    ({"stack": "megatron-deepspeed-2021"}, "mapping.recompute", RECOMPUTE.index("full")),
    ({}, "mapping.zero", 1),
    ({"stack": "megatron-2021"}, "mapping.zero", 0),
    ({"stack": "fsdp2-torchao"}, "mapping.zero", 3),
    ({}, "mapping.sp", 1),
    ({"tp": 1, "dp": 8}, "mapping.sp", 0),
    ({"stack": "megatron-2022"}, "mapping.sp", 0),
    ({}, "mapping.vpp", 1),
    ({"stack": "meta-4d-2024"}, "mapping.vpp", 8),
    ({"stack": "meta-4d-2024", "pp": 1, "dp": 8}, "mapping.vpp", 1),
    ({"micro_batch": ""}, "mapping.micro_batch", 1),
    ({"micro_batch": "", "stack": "megatron-2021", "pp": 1, "dp": 8}, "mapping.micro_batch", 4),
    ({"micro_batch": "", "stack": "megatron-2021"}, "mapping.micro_batch", 1),
    ({"kv_heads": ""}, "job.model.kv_heads", 32),
    ({"heads": ""}, "job.model.heads", 32),
    ({"vocab": "50257"}, "job.model.vocab", 50432),  # a multiple of 128 * tp
    ({"vocab": "50257", "stack": "fsdp2-torchao", "tp": 1, "dp": 8}, "job.model.vocab", 50257),
    ({}, "job.filled", 1.0),
    ({"workload": "sft"}, "job.filled", 0.3),
    ({}, "job.trained", "all"),
    ({"workload": "lora"}, "job.trained", "lora"),
    ({"workload": "lora"}, "job.lora_rank", 16),
    ({"workload": "lora", "notes": "LoRA r=64"}, "job.lora_rank", 64),
    ({"workload": "finetune-lora", "precision": "bf16-true + bnb.nf4"}, "job.trained", "qlora"),
    ({"global_batch": ""}, "job.global_batch", 1024),  # 4 Mi tokens in rows of 4096
    ({"global_batch": "", "stack": "fsdp2-torchao"}, "job.global_batch", 8),
]


@pytest.mark.parametrize(("changes", "where", "value"), BLANKS, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_a_blank_cell_gets_its_default(changes: dict[str, Any], where: str, value: object) -> None:
    found: Any = setting(**changes)
    for name in where.split("."):
        found = getattr(found, name)
    assert found == value


WORDS = [
    ({"precision": "amp_bf16"}, "bf16"),
    ({"precision": "fp16 mixed"}, "fp16"),
    ({"precision": "fp8 (hybrid)"}, "fp8"),
    ({"precision": "fp8-cs"}, "fp8"),
    ({"precision": "fp8-mx"}, "mxfp8"),
    ({"precision": "mxfp8 cublas rceil"}, "mxfp8"),
    ({"precision": "fp8 blockwise"}, "fp8-block"),
    ({"precision": "nvfp4"}, "nvfp4"),
]


@pytest.mark.parametrize(("changes", "value"), WORDS)
def test_words_of_precision(changes: dict[str, str], value: str) -> None:
    assert setting(**changes).job.precision == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("flash_attentionv1.0.8", "flash-1"),
        ("flash_attention2 + RMS kernel", "flash-2"),
        ("sdpa flash2", "flash-2"),
        ("sdpa", "flash"),
        ("unfused(no flash)", "unfused"),
        ("torch", "unfused"),
        ("fused", "fused-softmax"),
    ],
)
def test_words_of_attention(text: str, value: str) -> None:
    assert setting(attention=text).job.attention == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("selective", "attention"), ("selective (per-op)", "products"), ("full", "full"), ("none", "none")],
)
def test_words_of_recompute(text: str, value: str) -> None:
    assert setting(recompute=text).mapping.recompute == RECOMPUTE.index(value)


@pytest.mark.parametrize(
    ("text", "zero", "shard"),
    [
        ("zero0", 0, 0),
        ("dist-opt(zero1)", 1, 0),
        ("fsdp(zero2: no reshard after forward)", 2, 0),
        ("fsdp(zero3)", 3, 0),
        ("hsdp", 3, 8),
    ],
)
def test_words_of_sharding(text: str, zero: int, shard: int) -> None:
    made = setting(sharding=text, tp=1, pp=1, dp=16).mapping
    assert (made.zero, made.shard) == (zero, shard)


def test_the_group_that_splits_the_states_stands_in_the_notes() -> None:
    made = setting(
        sharding="fsdp(zero3)", n_gpus=512, tp=1, pp=1, dp=512, notes="MaxText (JAX); FSDP group 128, pure DP"
    )
    assert (made.mapping.shard, made.stack.kind, made.stack_name) == (128, "jax", "maxtext")
    whole = setting(sharding="fsdp(zero3)", n_gpus=64, tp=1, pp=1, dp=64, notes="FSDP group 64")
    assert whole.mapping.shard == 0


def test_what_the_notes_say_of_the_software_changes_its_profile() -> None:
    widely = setting(stack="fsdp1-composer-2023", notes="MP mode DEFAULT; grad accum 1", tp=1, pp=1, dp=16)
    purely = setting(stack="fsdp1-composer-2023", notes="MP mode PURE; grad accum 1", tp=1, pp=1, dp=16)
    assert (widely.stack.gradient, purely.stack.gradient) == (4, 2)
    fused = setting(stack="aleph-3d-2023", attention="flash_attention2 + RMS kernel")
    assert (fused.stack.fused_norm, setting(stack="aleph-3d-2023", attention="flash_attention2").stack.fused_norm) == (
        1,
        0,
    )


def test_offload_needs_a_word_that_it_is_on() -> None:
    assert setting(notes="CPU offload False").mapping.offload == OFFLOAD.index("none")
    assert setting(notes="CPU offload True").mapping.offload == OFFLOAD.index("states")


def test_fast_links_of_a_rack_reach_beyond_its_nodes() -> None:
    rack = setting(gpu="GB200", gpu_mem_gb=186, gpus_per_node=4).cluster
    assert (rack.per_node, rack.domain) == (4, 72)
    assert setting().cluster.domain == 8


def test_experts_are_cut_as_the_release_cuts_them() -> None:
    grok = {
        "model": "Grok-1-314B",
        "layers": 4,
        "hidden": "",
        "heads": "",
        "kv_heads": "",
        "ffn_hidden": "",
        "vocab": "",
    }
    shape = {"n_gpus": 16, "tp": 4, "pp": 1, "dp": 4, "ep": 2}
    assert setting(**grok, **shape).mapping.etp == 4
    assert setting(**grok, **shape, stack="bridge-26.02").mapping.etp == 1
    model = setting(**grok, **shape).job.model
    assert (model.layers, model.expert_layers, model.experts) == (4, 4, 8)


def test_gated_or_not_and_tied_or_not_by_the_name_of_the_model() -> None:
    assert setting(model="GPT-9B").job.model.gated == 0
    assert setting(model="GPT-9B").job.model.tied == 1
    assert setting(model="MPT-9b").job.model.positions == 4096
    assert setting(model="Llama-9B").job.model.gated == 1
    assert setting(model="Nemotron-9B").job.model.gated == 0


def test_a_model_of_a_size_alone_gets_the_usual_shape() -> None:
    nothing = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab"), "")
    row = row_of(published(model="Unheard-of 12.9B", **nothing))
    assert row.setting is not None
    assert row.setting.job.model.hidden == 5120
    assert any("usual shape" in said for said in row.assumed)
    assert "no preset" in why_not(model="Unheard-of", **nothing)
    assert "no preset" in why_not(model="Unheard-of 8x7B", **nothing)


REFUSED = [
    ({"gpu": "TPU v5p"}, "gpu: "),
    ({"n_gpus": ""}, "n_gpus: blank"),
    ({"seq_len": ""}, "seq_len: blank"),
    ({"n_gpus": "many"}, "n_gpus: 'many' is not a number"),
    ({"dp": "3"}, "is not 16 chips"),
    ({"precision": "ternary"}, "precision: 'ternary' is not known"),
    ({"precision": "int8 weights eager"}, "8-bit integers"),
    ({"heads": "8192"}, "8192 heads in a width of 4096"),
    ({"model": "New-MoE-A3B"}, "its experts are not stated"),
    ({"outcome": "error", "notes": "run ended: Kernel not available; x"}, "Kernel not available"),
    ({"tp": "", "pp": "", "cp": "", "dp": ""}, "the mapping is not stated"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_cannot_be_expressed_has_its_reason(changes: dict[str, str], reason: str) -> None:
    assert reason in why_not(**changes)


@pytest.mark.parametrize("column", ["sharding", "recompute", "attention"])
def test_unknown_words_count_as_blank_and_are_noted(column: str) -> None:
    row = row_of(published(**{column: "somehow"}))
    assert row.setting == setting()
    assert f"{column}: 'somehow' is not known" in row.assumed


def test_experts_of_a_table_that_states_them() -> None:
    model = setting(model="New-MoE-A3B", num_experts=16, moe_topk=2, moe_ffn=1408, ep=4).job.model
    assert (model.experts, model.topk, model.expert_ffn, model.expert_layers) == (16, 2, 1408, 32)


ODD = st.sampled_from(
    ["", "0", "-1", "1", "2", "7", "1e9", "1e30", "nan", "x", "fp8", "full", "zero3", "yes", "MoE", "V100"]
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(BASE)), ODD | st.text(max_size=8), max_size=5))
def test_any_cells_make_a_row_or_a_reason(changes: dict[str, str]) -> None:
    row = row_of(published(**changes))
    assert (row.setting is None) == bool(row.why_not)
    assert all(finding.reason for finding in lint([row]))


def test_an_unknown_stack_is_priced_as_another_and_says_so() -> None:
    row = row_of(published(stack="newtool-2027"))
    assert row.setting is not None
    assert row.setting.stack_name == "newtool-2027"
    assert any("newtool-2027" in said for said in row.assumed)


def test_blank_degrees_are_what_is_left_of_the_chips() -> None:
    assert setting(dp="").mapping.dp == 4
    sharded = setting(tp="", pp="", cp="", dp="", sharding="fsdp(zero3)", stack="fsdp2-torchao")
    assert sharded.mapping.dp == 16


def test_a_layer_alone_has_no_head_and_no_optimizer() -> None:
    made = setting(
        workload="layer-microbench", layers=1, global_batch="", pp=1, dp=8, model="Megatron-22B single layer"
    )
    assert (made.job.model.vocab, made.job.optimizer, made.job.global_batch) == (0, "none", 16)
    assert made.job.model.layers == 1


def test_time_of_short_samples_and_memory_of_the_longest() -> None:
    row = row_of(published(notes="Alpaca, seq_len = longest sample", stack="litgpt-2023", sharding="zero0"))
    assert row.setting is not None
    assert row.fullest is not None
    assert (row.setting.job.seq, row.fullest.job.seq) == (192, 4096)  # 128 tokens, and the longer of two


def test_third_hand_and_suspicious_rows_are_told_apart() -> None:
    quoted = row_of(published(source="A paper as quoted by a page"))
    named = row_of(published(id="bridge-0228", source="NVIDIA-NeMo/Megatron-Bridge docs"))
    plain = row_of(dict(BASE))
    assert quoted.second_hand
    assert named.distrusted
    assert not plain.second_hand
    assert not plain.distrusted
