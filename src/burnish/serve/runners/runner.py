"""What a runner is: everything of a decoder but attention, which the engine computes over its pool.

Between the attentions of two layers lie products whose weights are all that matters for speed: one runner may compute them
with torch, another with a graph of quantized products. Shape letters: T packed tokens, H hidden size, N query heads, K
key/value heads, D size of one head, R rows whose scores are asked for, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from burnish.config import ModelConfig
from burnish.graph_size import GraphBytes
from burnish.ops.int4_linear import Integers
from burnish.serve.rounding import Scales


class Made(NamedTuple):
    """Hidden states [T, H] before a layer's attention, and its queries [T, N, D], keys and values [T, K, D], turned already.

    `places` is what the runner itself needs of the positions at every layer.
    """

    hidden: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    places: Any


class Whole(Protocol):
    """All of a decoder at once, for tokens of one sequence whose positions lie together in a pool."""

    def pays(self, start: int, count: int) -> bool:
        """Whether it is sooner done than layer by layer with `count` tokens from position `start` on."""
        ...

    def __call__(self, ids_T: Tensor, start: int, rows_R: Tensor, pool: tuple[Tensor, Tensor], slot: int) -> Tensor:
        """Scores [R, V] of tokens from position `start` on, the sequence's first position being at `slot` of a pool's keys
        and values, each [layers, K, slots, D]; theirs are put there."""
        ...


class Runner(Protocol):
    """One model on one device."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of queries, keys and values as they are made."""
        ...

    @property
    def scales(self) -> Scales | None:
        """Under which keys and values are held in 8 bits; None where they are held as they are made."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def threads(self) -> int:
        """Of a CPU that it computes with, and that attention may share."""
        ...

    @property
    def exact(self) -> bool:
        """Whether a token's last digits are the same in any company: attention then does each query by itself."""
        ...

    def reserve(self, tokens: int) -> None:
        """Make what a step of so many tokens needs, before the first one."""
        ...

    @property
    def bytes(self) -> int:
        """Of buffers that it holds beside the weights."""
        ...

    @property
    def held(self) -> GraphBytes | None:
        """Of weights that it holds beside the model it was made of; None where it computes with the model itself."""
        ...

    @property
    def whole(self) -> Whole | None:
        """What takes a step of one sequence by itself, where there is such a thing."""
        ...

    def begin(self, ids_T: Tensor, positions_T: Tensor) -> Made:
        """Embed tokens and open the first layer."""
        ...

    def go_on(self, layer: int, made: Made, attended_TND: Tensor) -> Made:
        """Close a layer with what its attention gave, and open the next one."""
        ...

    def scores(self, made: Made, attended_TND: Tensor, rows_R: Tensor) -> Tensor:
        """Close the last layer; logits [R, V] of some of the tokens, float32 at least."""
        ...


class Fitted(NamedTuple):
    """What a runner takes on after it was built plain: scales of keys and values, and another matrix of scores."""

    scales: Scales | None = None
    head: Integers | None = None


Fit = Callable[[Runner], Fitted]
