"""Sizes: bytes of weights, of keys and values, and of what a step makes, on one of the chips that share a decoder."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from burnish.architecture import Architecture
from burnish.errors import UserError, nearest
from burnish.parameters import attending, parameters
from burnish.pool_size import position_bytes, step_bytes

HALF = 2  # bytes of a 16-bit element, in which embedding and head stay
BYTE = 8


@dataclass(frozen=True)
class Held:
    """The sizes that `burnish.pool_size` counts by, of one chip's share."""

    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int


@cache
def tables() -> dict[str, Any]:
    """Formats of weights and generations of engines."""
    path = Path(__file__).parents[1] / "tables" / "serving.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def weight_format(name: str) -> dict[str, Any]:
    """A format of weights. Raises UserError naming the known ones."""
    known = tables()["formats"]
    if name not in known:
        raise UserError(f"--weights {name!r}: unknown; {nearest(name, known)}")
    return dict(known[name])


def held(model: Architecture, tp: int) -> Held:
    """One chip's share: heads are split, and one that cannot be is on every chip."""
    wide = int(model.ffn) or int(model.topk) * int(model.expert_ffn) + int(model.shared_ffn)
    return Held(
        int(model.vocab),
        int(model.hidden),
        -(-wide // tp),
        int(attending(model)),
        -(-int(model.heads) // tp),
        max(1, -(-int(model.kv_heads) // tp)),
        int(model.head_dim),
        int(model.max_positions),
    )


def kv_bytes(model: Architecture, positions: int, element: int, tp: int = 1) -> int:
    """Bytes of keys and values of `positions` on each of `tp` chips.

    Latent attention keeps one compressed vector and a rotary part (DeepSeek-V2, arXiv 2405.04434, section 2.1), on every chip.
    """
    if model.kv_rank:
        return positions * int(attending(model)) * (int(model.kv_rank) + int(model.rope_dim)) * element
    return positions * position_bytes(held(model, tp), element)


def outer_parameters(model: Architecture) -> int:
    """Parameters of embedding, positions and head."""
    return int(model.vocab) * int(model.hidden) * (1 if model.tied else 2) + int(model.positions) * int(model.hidden)


def expert_parameters(model: Architecture) -> int:
    """Parameters of all routed experts."""
    width = int(model.routed_width) or int(model.hidden)
    return int(model.expert_layers) * int(model.experts) * (2 + int(model.gated)) * width * int(model.expert_ffn)


def weight_bytes(model: Architecture, name: str, tp: int = 1) -> int:
    """Bytes of the weights on each of `tp` chips; matrices of layers in the format, all else in 16 bits."""
    outer = outer_parameters(model)
    body = int(parameters(model)) - outer
    return -(-(int(body * weight_format(name)["bits"]) // BYTE + outer * HALF) // tp)


def read_bytes(model: Architecture, name: str, tokens: int, tp: int = 1) -> float:
    """Bytes of the weights that a pass of `tokens` reads on each chip: of experts, those that some token is sent to.

    With tokens sent evenly, an expert is spared with probability (1 - k/E)^tokens.
    """
    layers = int(parameters(model)) - outer_parameters(model)
    experts = expert_parameters(model)
    share = 1 - (1 - int(model.topk) / int(model.experts)) ** tokens if model.experts else 0.0
    body = (layers - experts + experts * share) * weight_format(name)["bits"] / BYTE
    return float((body + int(model.vocab) * int(model.hidden) * HALF) / tp)


def workspace_bytes(model: Architecture, tokens: int, rows: int, tp: int = 1) -> int:
    """Most bytes that a step of `tokens` makes and drops on one chip."""
    return step_bytes(held(model, tp), tokens, rows, HALF)
