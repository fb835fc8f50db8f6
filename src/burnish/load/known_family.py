"""What a family that can be loaded says of a checkpoint, decoders and encoders alike: its config, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.config import ModelConfig
from burnish.encoders.config import EncoderConfig
from burnish.errors import UserError
from burnish.load.checkpoint import Checkpoint
from burnish.tables.encoders import ENCODERS, POOLER
from burnish.tables.families import FAMILIES

if TYPE_CHECKING:
    from burnish.load.model import Comparison


@dataclass(frozen=True)
class Known:
    """The config as it is read, and the comparison of tensors, which loads torch; one of `decoder` and `encoder` is set."""

    compare: Callable[[], Comparison]
    decoder: ModelConfig | None = None
    encoder: EncoderConfig | None = None

    @property
    def config(self) -> ModelConfig | EncoderConfig:
        """Whichever it is."""
        found = self.decoder or self.encoder
        assert found is not None
        return found


def known_family(checkpoint: Checkpoint) -> Known:
    """Raises UserError where the family is not known, or a setting is one that it does not have here."""
    family = checkpoint.config.get("model_type")
    if family in tuple(ENCODERS):
        pooler = any(name.endswith(f"{POOLER}weight") for name in checkpoint.tensors)
        encoder = EncoderConfig.from_hf(checkpoint.config, checkpoint.where, pooler)
        return Known(lambda: _encoder(checkpoint, encoder), encoder=encoder)
    if family not in tuple(FAMILIES):
        both = ", ".join(sorted((*FAMILIES, *ENCODERS)))
        raise UserError(f"{checkpoint.where}: model_type {family!r} is not supported; known: {both}")
    decoder = ModelConfig.from_hf(checkpoint.config, checkpoint.where)
    return Known(lambda: _decoder(checkpoint, decoder), decoder=decoder)


def _decoder(checkpoint: Checkpoint, config: ModelConfig) -> Comparison:
    from burnish.load.model import compare

    return compare(checkpoint, config)


def _encoder(checkpoint: Checkpoint, config: EncoderConfig) -> Comparison:
    from burnish.load.encoder import compare_encoder

    return compare_encoder(checkpoint, config)
