"""Small models and samples for tests of 8-bit integers: unequal rows, an odd size, grouped heads, a tied head."""

from __future__ import annotations

import torch

from burnish.compress.samples import Samples
from burnish.config import ModelConfig
from burnish.encoders.config import EncoderConfig
from burnish.models.decoder import Decoder
from burnish.models.encoder import Encoder

LENGTHS = (11, 3, 17, 8, 1)


def decoder(family: str = "llama", **sizes: object) -> tuple[Decoder, ModelConfig]:
    """Weights large enough that activations differ from channel to channel."""
    own = {"vocab": 97, "hidden": 48, "ffn": 77, "layers": 2, "heads": 6, "kv_heads": 2, "head_dim": 8, "tied": True}
    config = ModelConfig.model_validate({"family": family, "init_std": 0.15} | own | sizes)
    return Decoder(config, torch.Generator().manual_seed(0)).eval(), config


def encoder() -> tuple[Encoder, EncoderConfig]:
    """Two layers and a pooler."""
    config = EncoderConfig(vocab=97, hidden=48, ffn=77, layers=2, heads=6, table=64, init_std=0.15)
    return Encoder(config, torch.Generator().manual_seed(0)).eval(), config


def samples(seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> Samples:
    """Random tokens."""
    drawn = torch.Generator().manual_seed(seed)
    return Samples.of([torch.randint(1, 97, (n,), generator=drawn).tolist() for n in lengths])
