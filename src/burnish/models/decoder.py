"""A decoder from token ids to logits: the whole architecture on one page, its kinds of layers chosen by traits.

ids -> embedding -> [ x + attention(norm(x)); x + mlp(norm(x)) ] for each layer -> norm -> head

Shape letters: B rows, S positions, L keys (cached and new), H hidden size, F feed-forward size, N query heads,
K key/value heads, D size of one head, V vocabulary.

Saved for the backward pass by one layer, in elements a token (each part's share is in its docstring in layers.py,
attention.py and experts.py):
    4 H  two norm inputs and two norm outputs (the latter read by q, k, v and by gate, up)
  + (2 N + 2 K) D  rotated q, rotated k, v, attention output (the latter read by o as well)
  + 3 F  gate, up, and their product (read by down); 2 F where nothing is gated
and 2 + N elements of statistics (float32 at least; 2 more with LayerNorm); normed queries and keys add (N + K) (D + 1), of
them N + K statistics; packed rows add N D. The model adds its ids (int64), D elements of angles a token (a position, if
rows share them; learned positions keep their number alone), H + 1 for the last norm, and H for its output once a loss
reads it. A window narrower than the rows adds S elements a position of a row, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from burnish.models.attention import Kernel, Pattern, attend
from burnish.models.cache import KVCache, LayerCache
from burnish.models.experts import Experts
from burnish.models.layers import Embedding, LayerNorm, Linear, RMSNorm, gated_silu, gelu_tanh
from burnish.models.rotary import Rotary, Scaling, rotary_angles, rotate
from burnish.models.view import mask_dtype, view


class Traits(Protocol):
    """What kind of layers a family has; `burnish.tables.families.Traits` has them."""

    @property
    def layer_norm(self) -> bool: ...
    @property
    def learned_positions(self) -> bool: ...
    @property
    def gated(self) -> bool: ...
    @property
    def qkv_bias(self) -> bool: ...
    @property
    def bias(self) -> bool: ...
    @property
    def qk_norm(self) -> bool: ...


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
    @property
    def rope_scaling(self) -> Scaling | None: ...
    @property
    def window(self) -> int: ...
    @property
    def window_from(self) -> int: ...
    @property
    def experts(self) -> int: ...
    @property
    def topk(self) -> int: ...
    @property
    def norm_topk(self) -> bool: ...
    @property
    def traits(self) -> Traits: ...


def make_norm(shape: Shape, size: int) -> RMSNorm | LayerNorm:
    """The family's kind of norm over `size` elements."""
    return (LayerNorm if shape.traits.layer_norm else RMSNorm)(size, shape.norm_eps)


class Attention(nn.Module):
    """Causal self-attention with grouped key/value heads (Ainslie et al. 2023), rotary positions unless learned ones were
    added to the embedding, and queries and keys normed head by head where the family does (Henry et al. 2020)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        traits = shape.traits
        self.head_dim = shape.head_dim
        self.q = Linear(shape.hidden, shape.heads * shape.head_dim, traits.qkv_bias)
        self.k = Linear(shape.hidden, shape.kv_heads * shape.head_dim, traits.qkv_bias)
        self.v = Linear(shape.hidden, shape.kv_heads * shape.head_dim, traits.qkv_bias)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps) if traits.qk_norm else None
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps) if traits.qk_norm else None
        self.o = Linear(shape.heads * shape.head_dim, shape.hidden, traits.bias)
        self.kernel: Kernel | None = None  # computes attention in place of `attend`; it knows windows without a mask

    def forward(
        self, x_BSH: Tensor, rotary: Rotary | None, pattern: Pattern, past: LayerCache | None, used: int
    ) -> Tensor:
        # The number of heads is read off the projections, so that a rank may hold only some of them.
        q_BSND = self.q(x_BSH).unflatten(-1, (-1, self.head_dim))
        k_BLKD = self.k(x_BSH).unflatten(-1, (-1, self.head_dim))
        v_BLKD = self.v(x_BSH).unflatten(-1, (-1, self.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            q_BSND, k_BLKD = self.q_norm(q_BSND), self.k_norm(k_BLKD)
        if rotary is not None:
            q_BSND, k_BLKD = rotate(q_BSND, rotary), rotate(k_BLKD, rotary)
        if past is not None:
            k_BLKD, v_BLKD = past.append(k_BLKD, v_BLKD, used)
        return self.o((self.kernel or attend)(q_BSND, k_BLKD, v_BLKD, pattern).flatten(-2))


class MLP(nn.Module):
    """Gated feed-forward layer: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = Linear(shape.hidden, shape.ffn)
        self.up = Linear(shape.hidden, shape.ffn)
        self.down = Linear(shape.ffn, shape.hidden)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.down(gated_silu(self.gate(x_BSH), self.up(x_BSH)))


class PlainMLP(nn.Module):
    """Feed-forward layer of two matrices: down(gelu(up(x)))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = Linear(shape.hidden, shape.ffn, shape.traits.bias)
        self.down = Linear(shape.ffn, shape.hidden, shape.traits.bias)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.down(gelu_tanh(self.up(x_BSH)))


def make_mlp(shape: Shape) -> nn.Module:
    """The feed-forward part of a layer of this shape."""
    if shape.experts:
        return Experts(shape)
    return MLP(shape) if shape.traits.gated else PlainMLP(shape)


class Block(nn.Module):
    """One layer: attention, then feed-forward, each added to its own input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = make_norm(shape, shape.hidden)
        self.attention = Attention(shape)
        self.mlp_norm = make_norm(shape, shape.hidden)
        self.mlp = make_mlp(shape)

    def forward(
        self, x_BSH: Tensor, rotary: Rotary | None, pattern: Pattern, past: LayerCache | None = None, used: int = 0
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
        learned = shape.traits.learned_positions
        self.positions = Embedding(shape.max_positions, shape.hidden) if learned else None
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = make_norm(shape, shape.hidden)
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
        """Norm weights 1, biases 0, every matrix normal(0, init_std), in the order of `named_parameters`."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
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
        window = self.shape.window
        x_BSH = self.embed(ids_BS)
        seen = view(ids_BS, segments, mask_BS, cache, window, mask_dtype(self.layers, x_BSH.dtype))
        positions_BS = seen.positions if positions_BS is None else positions_BS
        rotary = None
        if self.positions is not None:
            x_BSH = x_BSH + self.positions(positions_BS)
        else:
            shape = self.shape
            rotary = rotary_angles(positions_BS, shape.head_dim, shape.rope_theta, x_BSH.dtype, shape.rope_scaling)
        for index, block in enumerate(self.layers):
            pattern = seen.near if window and index >= self.shape.window_from else seen.whole
            if cache is None:
                x_BSH = block(x_BSH, rotary, pattern)
            else:
                x_BSH = block(x_BSH, rotary, pattern, cache.layers[index], cache.used - ids_BS.shape[1])
        return self.norm(x_BSH)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary: [.., H] -> [.., V]."""
        return self.head(hidden)
