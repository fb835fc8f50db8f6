"""Search bytes: what a search over scales holds beside the model, told before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.config import ModelConfig
from burnish.units import show

FLOAT, DOUBLE = 4, 8  # bytes


def search_bytes(config: ModelConfig, tokens: int) -> int:
    """The states of all tokens between two layers, and the sums (`compress.gram`) of what one layer's matrices read.

    Neither grows with the number of layers. Products and copies of one layer come on top while it is searched.
    """
    experts = max(config.experts, 1)
    widths = [config.hidden, config.heads * config.head_dim] + experts * [config.hidden, config.ffn]
    return FLOAT * config.hidden * tokens + sum(FLOAT * width**2 + DOUBLE * width for width in widths)


def told(settings: Sequence[Any], config: Any, tokens: int) -> str:
    """A clause on it for a decoder, where one of the techniques' settings asks for such a search; else nothing."""
    if not isinstance(config, ModelConfig) or not any(getattr(own, "method", "") == "awq" for own in settings):
        return ""
    return f", for which the search holds {show(search_bytes(config, tokens), 'bytes')} and one layer beside the model"
