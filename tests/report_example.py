"""A plan and its records with every part filled, for the tests of the report and its page."""

from __future__ import annotations

import math
import random

from burnish.records import Evaluation, Pass, Plan, Records, Sample, SavedFile, Step

HOSTILE = "<script>alert(1)</script> & \"quotes\" 'single' </style>"

RECIPE = """\
model: {family: llama, vocab: 1024, hidden: 128, ffn: 352, layers: 5, heads: 4, kv_heads: 2, tied: true}
data:
  train: [asset:austen/prideprejudice, asset:austen/sensesensibility, asset:austen/mansfieldpark]
  heldout: [asset:austen/persuasion]
  seq: 256
optim: {lr: 0.003, betas: [0.9, 0.95], eps: 1.0e-08, weight_decay: 0.1, clip: 1.0}
schedule: {kind: cosine, warmup_steps: 40, min_lr_ratio: 0.1}
train: {steps: 1200, global_batch: 16, micro_batch: 16, eval_every: 100, seed: 7}
precision: {compute: fp32}
machine: {device: cpu, threads: 2}
"""

MEASURED = {
    "parameters": 1_075_072,
    "memory.parameters": 4_300_288,
    "memory.gradients": 4_300_288,
    "memory.optimizer": 8_600_768,
    "memory.saved": 173_015_040,
    "memory.peak": 219_676_672,
    "flops.step": 3.07e10,
    "seconds.step": 0.1014,
    "tokens_per_second": 40_394,
    "mfu": 0.2987,
    "comm.count": 0,
    "file.bytes": 4_303_712,
}


def plan() -> Plan:
    """A plan with two passes, a mapping and a prediction for every shared quantity."""
    return Plan(
        recipe="quickstart",
        machine="AMD EPYC 9534",
        passes=(
            Pass(
                technique="precision", reason="fp32 throughout: the model is small and the processor has no fast bf16."
            ),
            Pass(
                technique="checkpointing",
                reason="None needed: saved activations take 0.4 GiB of 23 GiB, recomputing costs a third more time.",
            ),
            Pass(technique="zero", reason="One rank: nothing to shard.", plan_only=True),
        ),
        mapping={"dp": 1, "tp": 1, "pp": 1},
        batch={"global batch": 16, "micro batch": 16, "sequence": 256},
        predicted={
            "parameters": 1_075_072,
            "memory.parameters": 4_300_288,
            "memory.gradients": 4_300_288,
            "memory.optimizer": 8_600_768,
            "memory.saved": 172_490_752,
            "memory.peak": 201_326_592,
            "flops.step": 3.07e10,
            "seconds.step": 0.098,
            "tokens_per_second": 41_800,
            "mfu": 0.31,
            "comm.count": 0,
            "file.bytes": 4_303_712,
        },
        capacity=23.4 * 2**30,
        fits=True,
        notes=("No published measurement of this processor: its speed was taken from a 2 s probe.",),
    )


def curve(steps: int) -> tuple[Step, ...]:
    """A noisy falling loss."""
    noise = random.Random(3)
    return tuple(
        Step(
            step=k,
            tokens=4096,
            loss=2.95
            + 4.0 * math.exp(-k / (0.07 * steps))
            + 0.55 * math.exp(-k / (0.5 * steps))
            + noise.gauss(0, 0.05),
            lr=0.003 * min(1.0, k / 40),
            grad_norm=0.8 + noise.random(),
            seconds=0.101,
        )
        for k in range(1, steps + 1)
    )


def records(steps: int = 1200) -> Records:
    """A finished run of `steps` steps with a noisy falling loss."""
    steps_run = curve(steps)
    evals = tuple(
        Evaluation(step=k, loss=steps_run[k - 1].loss + 0.08, bits_per_byte=(steps_run[k - 1].loss + 0.08) / 1.66)
        for k in range(max(1, steps // 12), steps + 1, max(1, steps // 12))
    )
    return Records(
        status="done",
        started="2026-03-14T09:26:53+00:00",
        seconds={
            "data": 6.4,
            "plan": 0.2,
            "train": 121.7,
            "evaluate": 9.8,
            "export": 0.6,
            "verify": 1.9,
            "generate": 2.3,
        },
        machine={"processor": "AMD EPYC 9534", "threads": 2, "memory": 25_276_510_208.0, "device": "cpu"},
        versions={"burnish": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6", "tokenizers": "0.23.3"},
        measured=MEASURED,
        curve=steps_run,
        evals=evals,
        quality={
            "bits_per_byte": 1.8734,
            "baseline_bits_per_byte": 2.1317,
            "baseline": "Kneser-Ney bigram, same tokenizer, same text",
            "accuracy": 0.4127,
        },
        samples=(
            Sample(
                prompt="Anne had not",
                text=" been long enough in the room to feel the comfort of it, before Captain Wentworth, who had been "
                "standing by the window with Mrs. Croft, turned towards her with a look of such serious attention as "
                "made her cheeks glow.\n\n“You are very good,” said she, “but I have no wish of going.”",
            ),
        ),
        files=(
            SavedFile(name="config.json", bytes=611, sha256="4f" * 32),
            SavedFile(name="model.safetensors", bytes=4_303_712, sha256="a09c37d1" * 8),
            SavedFile(name="tokenizer.json", bytes=61_440, sha256="be" * 32),
        ),
        checks={"weights_equal": True, "tensors": 47.0, "tie_kept": True, "logits_max_abs_difference": 0.0},
        notes=("The compiled step was not faster here (0.97x), so the plain one ran.",),
    )
