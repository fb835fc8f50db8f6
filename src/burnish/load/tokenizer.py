"""The tokenizer of a checkpoint, and the tokens that end what its model writes."""

from __future__ import annotations

from typing import Any

from burnish.config import ModelConfig
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError
from burnish.load.checkpoint import Checkpoint


def tokenizer_of(checkpoint: Checkpoint, config: ModelConfig) -> Tokenizer:
    """Raises UserError where there is none, it cannot be read, or it has tokens that the model has no row for."""
    files = checkpoint.tokenizer
    if files is None:
        raise UserError(
            f"{checkpoint.where}: has no tokenizer (tokenizer.json); put the model's own beside its weights"
        )
    tokenizer = Tokenizer.read(files.tokenizer, checkpoint.where, config.eos, files.settings or None)
    tokenizer.check_vocab(config.vocab)
    return tokenizer


def ends_of(checkpoint: Checkpoint, config: ModelConfig) -> tuple[int, ...]:
    """Every token that ends a text: chat models have one for a turn beside the one for a document."""
    ends = [*_ids(checkpoint.generation.get("eos_token_id")), *_ids(checkpoint.config.get("eos_token_id"))]
    return tuple(dict.fromkeys([*ends, *_ids(config.eos)]))


def _ids(value: Any) -> list[int]:
    return [token for token in (value if isinstance(value, list) else [value]) if type(token) is int]
