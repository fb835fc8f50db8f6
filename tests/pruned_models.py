"""Small decoders of every family, settings that prune them, and samples of unequal length, for the tests of pruning."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent / "parity"))
from families import FAMILIES, config_of, random_decoder

from burnish.compress.samples import Samples
from burnish.config import ModelConfig
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.techniques import prune

NAMES = tuple(FAMILIES)
DENSE = tuple(name for name in NAMES if not config_of(name).traits.routed)
KINDS = ("norm", "activation", "first-order")
ROWS = [[5, 9, 9, 2, 71, 3, 8, 30, 44, 6, 1], [17, 2], [96, 4, 4, 8, 0, 12, 7, 50], [61]]


def samples() -> Samples:
    """The last row has no next token."""
    return Samples.of(ROWS)


def settings(config: ModelConfig, **changes: object) -> prune.Config:
    """A third of everything that the family lets go, rounded as little as there is."""
    grouped = config.kv_heads > 1 and not config.traits.learned_positions
    base = {
        "channels": 0.0 if config.traits.routed else 0.3,
        "groups": 0.34 if grouped and config.kv_heads > 2 else 0.5 if grouped else 0.0,
        "layers": 0.34,
        "multiple": 4,
        "importance": "norm",
    }
    return prune.Config(**base | changes)


def pruned(name: str, kind: str = "norm", dtype: torch.dtype = torch.float32) -> tuple[Decoder, Decoder, object]:
    """(the model, the smaller one, the table of what stays)."""
    config = config_of(name)
    model = random_decoder(config).to(dtype)
    asked = settings(config, importance=kind)
    table = prune.search(asked, model, samples())
    return model, prune.apply(asked, model, Mesh(), table), table
