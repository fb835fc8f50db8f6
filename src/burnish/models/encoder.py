"""An encoder from token ids to hidden states and classes: the whole architecture on one page.

ids -> embeddings -> norm -> [ norm(x + attention(x)); norm(x + mlp(x)) ] for each layer -> pooler and head, if it has them

Devlin et al. 2019, "BERT" (arXiv 1810.04805): every position sees every other, and norms stand behind the sums.

Shape letters: B rows, S positions, H hidden size, F feed-forward size, N heads, D size of one head, P pieces (texts; one a
row unless rows are packed), C classes.

Saved for the backward pass by one layer, in elements a token (each part's share is in its docstring in layers.py and
attention.py):
    4 H  the layer's input (read by q, k and v), the two norm inputs, and the first norm's output (read by up)
  + 4 N D  q, k, v, attention output (the latter read by o as well)
  + 2 F  up and its activation (read by down); F with relu, which keeps its result alone
and 4 + N elements of statistics (float32 at least); packed rows add N D. The model adds its ids (int64), their positions
(one row of them, or one a token if they are given) and types where they are given (int64 too), and H and 2 elements of
statistics for the norm of the embeddings. What the head keeps is a head's own: one number, 2 H and C elements a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from burnish.models.attention import Kernel, Pattern, attend, packed_runs
from burnish.models.layers import Embedding, LayerNorm, Linear, gelu, gelu_tanh

ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": torch.relu}
Pieces = Sequence[Sequence[int]]


class Shape(Protocol):
    """The sizes an Encoder is built from; `burnish.encoders.config.EncoderConfig` has them."""

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
    def head_dim(self) -> int: ...
    @property
    def table(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def types(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def act(self) -> str: ...
    @property
    def init_std(self) -> float: ...
    @property
    def pooler(self) -> bool: ...
    @property
    def head(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...


class Attention(nn.Module):
    """Self-attention over all positions of a piece (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q, self.k, self.v, self.o = (Linear(shape.hidden, shape.hidden, bias=True) for _ in range(4))
        self.kernel: Kernel | None = None  # computes attention in place of `attend`

    def forward(self, x_BSH: Tensor, pattern: Pattern) -> Tensor:
        q_BSND, k_BSND, v_BSND = (part(x_BSH).unflatten(-1, (-1, self.head_dim)) for part in (self.q, self.k, self.v))
        return self.o((self.kernel or attend)(q_BSND, k_BSND, v_BSND, pattern).flatten(-2))


class MLP(nn.Module):
    """Feed-forward layer of two matrices: down(activation(up(x)))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.act = ACTIVATIONS[shape.act]
        self.up = Linear(shape.hidden, shape.ffn, bias=True)
        self.down = Linear(shape.ffn, shape.hidden, bias=True)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.down(self.act(self.up(x_BSH)))


class Layer(nn.Module):
    """One layer: attention, then feed-forward, each added to its own input and normed after."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.attention_norm = LayerNorm(shape.hidden, shape.norm_eps)
        self.mlp = MLP(shape)
        self.mlp_norm = LayerNorm(shape.hidden, shape.norm_eps)

    def forward(self, x_BSH: Tensor, pattern: Pattern) -> Tensor:
        x_BSH = self.attention_norm(x_BSH + self.attention(x_BSH, pattern))
        return self.mlp_norm(x_BSH + self.mlp(x_BSH))


class Encoder(nn.Module):
    """The whole network. Weights are drawn at once, from `generator` or torch's own, except on the meta device."""

    def __init__(self, shape: Shape, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.embed = Embedding(shape.vocab, shape.hidden)
        self.positions = Embedding(shape.table, shape.hidden)
        self.types = Embedding(shape.types, shape.hidden)
        self.embed_norm = LayerNorm(shape.hidden, shape.norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.pooler = Linear(shape.hidden, shape.hidden, bias=True) if shape.pooler else None
        self.head = Linear(shape.hidden, len(shape.labels), bias=True) if shape.labels else None
        if not self.embed.weight.is_meta:
            self.initialise(generator)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Norm weights 1, biases 0, every matrix normal(0, init_std), in the order of `named_parameters`."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, self.shape.init_std, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)

    def forward(
        self,
        ids_BS: Tensor,
        positions_BS: Tensor | None = None,
        segments: Pieces | None = None,
        mask_BS: Tensor | None = None,
        types_BS: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [B, S, H] of the last layer; `logits` turns them into scores.

        positions_BS: int64; default: counted from 0 over the real tokens of a row (or piece).
        segments: a row's piece lengths, summing to S: texts packed into one row, which do not see each other.
        mask_BS: bool, True = real token; pads may be left or right, and what comes out at a pad means nothing.
        types_BS: int64, which text of a pair a token is of; None: all of the first.
        Raises ValueError for pieces that do not sum to S, pieces together with a mask, a text that is longer than the
        table of positions.
        """
        self._check_length(ids_BS.shape[1], segments)
        counted_BS, pattern = view(ids_BS, segments, mask_BS)
        at_BS = (counted_BS if positions_BS is None else positions_BS) + self.shape.offset
        types = self.types.weight[0] if types_BS is None else self.types(types_BS)
        x_BSH = self.embed_norm(self.embed(ids_BS) + types + self.positions(at_BS))
        for layer in self.layers:
            x_BSH = layer(x_BSH, pattern)
        return x_BSH

    def logits(self, hidden_BSH: Tensor, first_P: Tensor | None = None) -> Tensor:
        """Scores of the classes: [P, C] of the texts that begin at `first_P` (see `first_positions`), or [B, S, C] of every
        token. Raises ValueError for an encoder without a head."""
        if self.head is None:
            raise ValueError("this encoder has no head; its hidden states are all there is")
        if self.shape.head != "sequence":
            return self.head(hidden_BSH)
        if first_P is None:
            rows, length = hidden_BSH.shape[:2]
            first_P = torch.arange(rows, device=hidden_BSH.device) * length
        return self.head(self.pooled(hidden_BSH, first_P))

    def pooled(self, hidden_BSH: Tensor, first_P: Tensor) -> Tensor:
        """tanh of a dense layer of each text's first token, [P, H]. Raises ValueError for an encoder without a pooler."""
        if self.pooler is None:
            raise ValueError("this encoder has no pooler")
        return torch.tanh(self.pooler(hidden_BSH.flatten(0, 1).index_select(0, first_P)))

    def _check_length(self, length: int, segments: Pieces | None) -> None:
        longest = length if segments is None else max((n for pieces in segments for n in pieces), default=0)
        most = self.shape.table - self.shape.offset
        if longest > most:
            raise ValueError(
                f"positions: a text of {longest} tokens, the encoder has {most} positions; cut it to these"
            )


def view(ids_BS: Tensor, segments: Pieces | None, mask_BS: Tensor | None) -> tuple[Tensor, Pattern]:
    """Default positions [B or 1, S] and which keys each query may see; a mask is made only where one is needed.

    Raises ValueError as `Encoder.forward` does.
    """
    rows, length = ids_BS.shape
    steps = torch.arange(length, device=ids_BS.device)
    if segments is not None:
        if mask_BS is not None:
            raise ValueError("segments: packed rows take no mask; make the pads a piece of their own")
        if len(segments) != rows:
            raise ValueError(f"segments: {len(segments)} rows of pieces for a batch of {rows}; give one a row")
        runs = packed_runs(tuple(tuple(pieces) for pieces in segments), length)
        counted = [torch.cat([torch.arange(n) for n in pieces]) for pieces in segments]
        return torch.stack(counted).to(ids_BS.device), Pattern(causal=False, runs=runs)
    if mask_BS is None:
        return steps[None], Pattern(causal=False)
    seen_BS = mask_BS | ~mask_BS.any(1, keepdim=True)  # a row of pads alone sees itself: no row of the softmax is empty
    return (mask_BS.long().cumsum(1) - 1).clamp(min=0), Pattern(causal=False, mask=seen_BS[:, None, None, :])


def first_positions(ids_BS: Tensor, segments: Pieces | None = None, mask_BS: Tensor | None = None) -> Tensor:
    """Where each text begins in the flattened batch, int64 [P]: each row's first real token, or every piece's first."""
    rows, length = ids_BS.shape
    starts = torch.arange(rows) * length
    if segments is not None:
        begun = [sum(pieces[:k]) + row * length for row, pieces in enumerate(segments) for k in range(len(pieces))]
        starts = torch.tensor(begun, dtype=torch.long)
    starts = starts.to(ids_BS.device)
    return starts if mask_BS is None else starts + mask_BS.long().argmax(1)
