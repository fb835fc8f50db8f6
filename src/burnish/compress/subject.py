"""Subject: the model that is to be compressed, loaded once, with what is refused before any work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from burnish.compress.fingerprint import unsound
from burnish.config import ModelConfig
from burnish.encoders.config import EncoderConfig
from burnish.errors import UserError
from burnish.load.checkpoint import Checkpoint
from burnish.load.encoder import is_encoder, load_encoder
from burnish.load.model import DTYPES, load_model


@dataclass(frozen=True)
class Subject:
    """`name` is what a user called it. The module is in float32 on a CPU; `stored` is the format its file has."""

    name: str
    checkpoint: Checkpoint
    model: nn.Module
    config: ModelConfig | EncoderConfig
    stored: str
    device: str
    notes: tuple[str, ...] = ()

    @property
    def decoder(self) -> bool:
        """Whether it predicts tokens."""
        return isinstance(self.config, ModelConfig)


def subject_of(name: str, checkpoint: Checkpoint, device: str) -> Subject:
    """Load it. Raises UserError for a model that is compressed already, for one without a tokenizer, and naming the first
    tensor with a value that is not finite."""
    refuse_compressed(checkpoint)
    if checkpoint.tokenizer is None:
        raise UserError(f"{checkpoint.where}: holds no tokenizer, so it can neither be calibrated nor judged on text")
    dtype = torch.float32 if device == "cpu" else None
    model: nn.Module
    config: ModelConfig | EncoderConfig
    if is_encoder(checkpoint):
        model, config = load_encoder(checkpoint, dtype=dtype, device=device)
    else:
        model, config = load_model(checkpoint, dtype=dtype, device=device)
    if (tensor := unsound(model)) is not None:
        raise UserError(
            f"{checkpoint.where}: {tensor} holds values that are not finite; nothing can be made of this model"
        )
    formats = {tensor.format for tensor in checkpoint.tensors.values()}
    blocks = sorted(name for name in formats if name[:1].isupper())  # GGUF's blocks of integers; an index is int64
    notes = (
        (f"the weights were {', '.join(blocks)} before: what they lost then is part of the baseline",) if blocks else ()
    )
    wide = [name for name in DTYPES if name in formats and name != "float64"]
    stored = wide[0] if wide and not blocks else "float32"
    return Subject(name, checkpoint, model.eval(), config, stored, device, notes)


def refuse_compressed(checkpoint: Checkpoint) -> None:
    """Raises UserError for a model whose config.json says that its weights are integers already."""
    said: Any = checkpoint.config.get("quantization_config")
    if said is not None:
        kind = said.get("format") or said.get("quant_method") if isinstance(said, dict) else said
        raise UserError(
            f"{checkpoint.where}: is compressed already ({kind}); compress the model that it was made from, in float numbers"
        )
