"""Llama 3 8B on one node of eight H100: planned from any laptop, run where the node is."""

from burnish.config import ModelConfig
from burnish.recipe import Data, Machine, Memory, Optim, Parallel, Recipe, Schedule, Train
from burnish.techniques.checkpointing import Config as Checkpointing
from burnish.techniques.precision import Config as Precision
from burnish.techniques.zero import Config as Zero


def llama3_8b_h100() -> Recipe:
    """Llama 3 8B pre-training on 8 H100 80 GB: bf16, ZeRO-3, full checkpointing (planned only)."""
    return Recipe(
        name="llama3-8b-h100",
        about="Sizes of Dubey et al. 2024 (arXiv 2407.21783, table 3), 8,192 tokens a row.",
        model=ModelConfig(
            vocab=128_256,
            hidden=4096,
            ffn=14_336,
            layers=32,
            heads=32,
            kv_heads=8,
            max_positions=8192,
            rope_theta=500_000.0,
            tied=False,
            bos=128_000,
            eos=128_001,
        ),
        data=Data(train=("text",), seq=8192),
        optim=Optim(lr=3e-4),
        schedule=Schedule(kind="cosine", warmup_steps=2000, min_lr_ratio=0.1),
        parallel=Parallel(dp=8, zero=Zero(stage=3)),
        precision=Precision(compute="bf16"),
        memory=Memory(checkpointing=Checkpointing(mode="full")),
        train=Train(steps=100_000, global_batch=64, micro_batch=1, checkpoint_every=1000),
        machine=Machine(chip="h100-sxm"),
    )
