"""A Llama-type decoder from token ids to logits: the whole architecture on one page.

ids -> embedding -> [ x + attention(norm(x)); x + mlp(norm(x)) ] for each layer -> norm -> head

Shape letters: B rows, S positions, L keys (cached and new), H hidden size, F feed-forward size, N query heads,
K key/value heads, D size of one head, V vocabulary.

Saved for the backward pass by one layer, in elements a token (each part's share is in its docstring in layers.py):
    4 H  two norm inputs and two norm outputs (the latter read by q, k, v and by gate, up)
  + (2 N + 2 K) D  rotated q, rotated k, v, attention output (the latter read by o as well)
  + 3 F  gate, up, and their product (read by down)
and 2 + N elements of statistics (float32 at least); packed rows add N D. The model adds its ids (int64), D elements of
angles a token (a position, if rows share them), H + 1 for the last norm, and H for its output once a loss reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from burnish.models.cache import KVCache, LayerCache
from burnish.models.layers import (
    Embedding,
    Linear,
    Pattern,
    RMSNorm,
    Rotary,
    attend,
    gated_silu,
    packed_runs,
    rotary_angles,
    rotate,
)


class Shape(Protocol):
    """The sizes a Decoder is built from; `burnish.config.ModelConfig` has them."""

    @property
    def vocab(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def tied(self) -> bool: ...
    @property
    def init_std(self) -> float: ...


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped key/value heads (Ainslie et al. 2023)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q = Linear(shape.hidden, shape.heads * shape.head_dim)
        self.k = Linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.v = Linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.o = Linear(shape.heads * shape.head_dim, shape.hidden)

    def forward(self, x_BSH: Tensor, rotary: Rotary, pattern: Pattern, past: LayerCache | None, used: int) -> Tensor:
        # The number of heads is read off the projections, so that a rank may hold only some of them.
        q_BSND = rotate(self.q(x_BSH).unflatten(-1, (-1, self.head_dim)), rotary)
        k_BLKD = rotate(self.k(x_BSH).unflatten(-1, (-1, self.head_dim)), rotary)
        v_BLKD = self.v(x_BSH).unflatten(-1, (-1, self.head_dim))
        if past is not None:
            k_BLKD, v_BLKD = past.append(k_BLKD, v_BLKD, used)
        return self.o(attend(q_BSND, k_BLKD, v_BLKD, pattern).flatten(-2))


class MLP(nn.Module):
    """Gated feed-forward layer: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = Linear(shape.hidden, shape.ffn)
        self.up = Linear(shape.hidden, shape.ffn)
        self.down = Linear(shape.ffn, shape.hidden)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.down(gated_silu(self.gate(x_BSH), self.up(x_BSH)))


class Block(nn.Module):
    """One layer: attention, then feed-forward, each added to its own input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.attention = Attention(shape)
        self.mlp_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = MLP(shape)

    def forward(
        self, x_BSH: Tensor, rotary: Rotary, pattern: Pattern, past: LayerCache | None = None, used: int = 0
    ) -> Tensor:
        """`past` is this layer's cache, of which the first `used` positions were written by earlier calls."""
        x_BSH = x_BSH + self.attention(self.attention_norm(x_BSH), rotary, pattern, past, used)
        return x_BSH + self.mlp(self.mlp_norm(x_BSH))


class Decoder(nn.Module):
    """The whole network. Weights are drawn at once, from `generator` or torch's own, except on the meta device."""

    def __init__(self, shape: Shape, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.embed = Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.head = Linear(shape.hidden, shape.vocab)
        self.tie()
        if not self.embed.weight.is_meta:
            self.initialise(generator)

    def tie(self) -> None:
        """Make the head read the embedding's matrix, where the shape says so; again after weights were replaced."""
        if self.shape.tied:
            self.head.weight = self.embed.weight

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Norm weights 1, every matrix normal(0, init_std), in the order of `named_parameters`."""
        for parameter in self.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, self.shape.init_std, generator=generator)

    def forward(
        self,
        ids_BS: Tensor,
        positions_BS: Tensor | None = None,
        segments: Sequence[Sequence[int]] | None = None,
        mask_BS: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Hidden states [B, S, H] after the last norm; `logits` turns them into scores.

        positions_BS: int64; default: counted from 0 over the real tokens of a row (or piece), after those in the cache.
        segments: a row's piece lengths, summing to S: documents packed into one row, which do not see each other.
        mask_BS: bool, True = real token; pads may be left or right, and what comes out at a pad means nothing.
        cache: appended to; its earlier positions are seen too. For use without gradients.
        Raises ValueError for pieces that do not sum to S, pieces together with a mask or cache, a full cache, a cache
        while gradients are on.
        """
        counted_BS, pattern = self._view(ids_BS, segments, mask_BS, cache)
        x_BSH = self.embed(ids_BS)
        positions_BS = counted_BS if positions_BS is None else positions_BS
        rotary = rotary_angles(positions_BS, self.shape.head_dim, self.shape.rope_theta, x_BSH.dtype)
        if cache is None:
            for block in self.layers:
                x_BSH = block(x_BSH, rotary, pattern)
        else:
            for block, past in zip(self.layers, cache.layers, strict=True):
                x_BSH = block(x_BSH, rotary, pattern, past, cache.used - ids_BS.shape[1])
        return self.norm(x_BSH)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary: [.., H] -> [.., V]."""
        return self.head(hidden)

    def _view(
        self,
        ids_BS: Tensor,
        segments: Sequence[Sequence[int]] | None,
        mask_BS: Tensor | None,
        cache: KVCache | None,
    ) -> tuple[Tensor, Pattern]:
        """The default positions [B or 1, S] and the attention pattern; a mask is made only where one is needed."""
        rows, length = ids_BS.shape
        steps = torch.arange(length, device=ids_BS.device)
        if segments is not None:
            if mask_BS is not None or cache is not None:
                raise ValueError("segments: packed rows take neither a mask nor a cache; pass one of the three")
            if len(segments) != rows:
                raise ValueError(f"segments: {len(segments)} rows of pieces for a batch of {rows}; give one a row")
            runs = packed_runs(tuple(tuple(pieces) for pieces in segments), length)
            if len(runs) == 1:
                return steps[None], Pattern()
            starts = torch.zeros(rows, length, dtype=torch.long)
            for row, row_end, start, end in runs:
                starts[row:row_end, start:end] = start
            return steps - starts.to(ids_BS.device), Pattern(runs=runs)
        if cache is not None:
            if torch.is_grad_enabled():
                raise ValueError("cache: keys and values kept in it carry no gradients; call under torch.no_grad()")
            positions_BS = cache.extend(length, mask_BS)
            causal, mask = cache.visible(length)
            return positions_BS, Pattern(causal, mask)
        if mask_BS is None:
            return steps[None], Pattern()
        positions_BS = (mask_BS.long().cumsum(1) - 1).clamp(min=0)
        if not torch.compiler.is_compiling() and not bool((mask_BS[:, 1:] & ~mask_BS[:, :-1]).any()):
            return positions_BS, Pattern()  # pads only at the end: no real token comes after one, so none is seen
        seen = steps[:, None] >= steps
        return positions_BS, Pattern(mask=(seen & mask_BS[:, None, None, :]) | (steps[:, None] == steps))
