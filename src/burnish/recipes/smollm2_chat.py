"""A chat model made to answer in its own field: SmolLM2 135M fine-tuned on sixty short conversations."""

from burnish.config import ModelConfig
from burnish.recipe import Data, Export, Optim, Recipe, Schedule, Train


def smollm2_chat() -> Recipe:
    """SmolLM2-135M-Instruct fine-tuned on questions about training models, in minutes on two CPU cores."""
    return Recipe(
        name="smollm2-chat",
        about="Full fine-tuning in float32; only what the assistant says is learned; a fifth of the conversations held out.",
        model=ModelConfig(
            vocab=49_152,
            hidden=576,
            ffn=1536,
            layers=30,
            heads=9,
            kv_heads=3,
            max_positions=8192,
            rope_theta=100_000.0,
            bos=1,
            eos=2,
            pad=2,
        ),
        data=Data(train=("asset:chat/training_questions",), heldout_fraction=0.2, format="chat", seq=128),
        optim=Optim(lr=1e-4, weight_decay=0.0),
        schedule=Schedule(kind="cosine", warmup_steps=2, min_lr_ratio=0.1),
        train=Train(
            init="smollm2", steps=24, global_batch=4, micro_batch=4, eval_every=12, checkpoint_every=12, keep=1
        ),
        export=Export(dtype="float32"),
    )
