"""Users' reports as rows: words of precision, sharding, LoRA, offload, and what is no language model."""

from __future__ import annotations

from typing import Any

import pytest

from burnish.mapping import OFFLOAD
from burnish.rows.reports import LORA, OUTCOME, report_of
from burnish.rows.training import Setting

BASE = {
    "id": "FIT-1",
    "repo": "a/b",
    "tool": "HF Trainer+DeepSpeed",
    "model": "Llama-2-7B",
    "params_b": "6.74",
    "n_gpus": "8",
    "gpu": "A100",
    "gpu_mem_gb": "80",
    "seq_len": "2048",
    "micro_batch": "2",
    "grad_accum": "4",
    "precision": "bf16 mixed",
    "optimizer": "AdamW",
    LORA: "no",
    "sharding": "ZeRO-3",
    "tp": "1",
    "pp": "1",
    "recompute": "yes (default)",
    "flash": "yes",
    "offload": "none",
    OUTCOME: "fits",
    "observed_mem_gb": "40",
    "notes": "[user report] [complete]",
}


def setting(**changes: str) -> Setting:
    row = report_of({**BASE, **changes})
    assert row.setting is not None, row.why_not
    return row.setting


def test_a_report_is_a_job_on_a_cluster() -> None:
    row = report_of(BASE)
    made = setting()
    assert (made.mapping.dp, made.mapping.zero, made.mapping.micro_batch, made.job.global_batch) == (8, 3, 2, 64)
    assert (made.stack.name, made.job.trained, made.job.attention) == ("deepspeed", "all", "flash")
    assert (row.complete, row.measured.outcome, row.measured.memory) == (True, "ok", 40e9)


READ: list[tuple[dict[str, str], str, Any]] = [
    ({"n_gpus": "256 (GB200)"}, "mapping.dp", 256),
    ({LORA: "yes (QLoRA r=16 qkvo)"}, "job.trained", "qlora"),
    ({LORA: "yes (r=8 q,v)"}, "job.trained", "lora"),
    ({LORA: "yes (r=8 q,v)"}, "job.lora_rank", 8),
    ({LORA: "yes", "precision": "4-bit nf4, fp16"}, "job.trained", "qlora"),
    ({"precision": "4-bit nf4, fp16"}, "job.precision", "fp16"),
    ({"sharding": "FSDP full shard", "tool": "TRL"}, "mapping.zero", 3),
    ({"sharding": "FSDP full shard", "tool": "TRL"}, "stack.name", "torch"),
    ({"sharding": "ZeRO-2"}, "mapping.zero", 2),
    ({"sharding": "none (DDP)", "tool": "TRL"}, "mapping.zero", 0),
    ({"sharding": "distributed optimizer dp8", "tool": "Megatron-LM"}, "mapping.zero", 1),
    ({"sharding": "FSDP + EP2, PP off"}, "mapping.ep", 2),
    ({"tool": "torchtitan", "notes": "CP 4, FSDP 2"}, "mapping.cp", 4),
    ({"offload": "optimizer to CPU"}, "mapping.offload", OFFLOAD.index("optimizer")),
    ({"offload": "optimizer+params to CPU"}, "mapping.offload", OFFLOAD.index("states")),
    ({"flash": "no"}, "job.attention", "unfused"),
    ({"optimizer": "paged AdamW 8-bit"}, "job.optimizer", "adamw-8bit"),
    ({"gpu": "Ascend 910B", "gpu_mem_gb": "64"}, "cluster.chip.memory", pytest.approx(64 * 2**30, rel=0.02)),
    (
        {"tool": "torchtitan", "pp": "4", "micro_batch": "32", "notes": "split in micro batches"},
        "mapping.micro_batch",
        1,
    ),
]


@pytest.mark.parametrize(("changes", "where", "value"), READ)
def test_words_of_reports(changes: dict[str, str], where: str, value: object) -> None:
    found: Any = setting(**changes)
    for name in where.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seq_len": "128x128x128"}, "not a language model"),
        ({"tool": "nnU-Net v2"}, "not a language model"),
        ({"seq_len": ""}, "seq_len: blank"),
        ({"n_gpus": ""}, "n_gpus: blank"),
        ({"gpu": "", "gpu_mem_gb": ""}, "gpu: "),
    ],
)
def test_what_cannot_be_expressed_has_its_reason(changes: dict[str, str], reason: str) -> None:
    row = report_of({**BASE, **changes})
    assert row.setting is None
    assert reason in row.why_not


def test_a_report_that_leaves_something_out_is_not_complete() -> None:
    assert not report_of({**BASE, "notes": "[user report] [missing: recompute]"}).complete


def test_memory_held_when_it_ran_out_is_not_a_peak() -> None:
    row = report_of({**BASE, OUTCOME: "oom", "observed_mem_gb": "79"})
    assert (row.measured.outcome, row.measured.memory) == ("oom", None)
