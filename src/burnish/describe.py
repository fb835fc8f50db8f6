"""Describe: a decoder's sizes and a batch's shape -> the Work of one process, before any technique.

The saved tensors are those of `models/` under the torch version named in `SAVED_TABLE`; each line here is one line of
the decoder, so the two files are read side by side.

Letters: T tokens of a micro batch, H hidden, F feed-forward, V vocabulary, N query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.config import ModelConfig
from burnish.mesh import N, pick
from burnish.work import ACTIVATION, INDEX, ROUNDED, STATISTIC, WIDENED, Block, Op, Saved, Work

if TYPE_CHECKING:
    from burnish.recipe import Recipe

SAVED_TABLE = "torch 2.13"
CHUNK = 512  # tokens whose logits exist at a time, as in ops/cross_entropy.py


@dataclass(frozen=True)
class Shapes:
    """One micro batch: `rows` of `seq` tokens, `micro` of them a step on each rank, the last one of `rest` rows if not 0.

    `pairs` is the sum of squared piece lengths over all rows, the size of full attention; None means whole rows.
    """

    rows: N
    seq: int
    micro: N = 1
    rest: N = 0
    pairs: N | None = None
    packed: bool = False  # rows of several pieces, whose attention outputs are joined, and positions given per row

    @property
    def step_rows(self) -> N:
        """Rows of one step on one rank."""
        return self.rows * self.micro - pick(self.rest > 0, self.rows - self.rest, 0)


def shapes_of(recipe: Recipe) -> Shapes:
    """The micro batch of a recipe as the description needs it."""
    arithmetic = batch_arithmetic(recipe)
    rows, rank_rows = recipe.train.micro_batch, arithmetic["rows_per_rank"]
    return Shapes(rows, recipe.data.seq, arithmetic["micro_batches"], rest=rank_rows % rows)


def batch_arithmetic(recipe: Recipe) -> dict[str, int]:
    """How a step's rows are cut: rows a step, a rank and a micro batch, and tokens over the run."""
    train, dp = recipe.train, recipe.parallel.dp
    rank_rows = train.global_batch // dp
    tokens = train.global_batch * recipe.data.seq
    return {
        "global_batch": train.global_batch,
        "rows_per_rank": rank_rows,
        "micro_batch": train.micro_batch,
        "micro_batches": -(-rank_rows // train.micro_batch),
        "tokens_per_step": tokens,
        "steps": train.steps,
        "tokens": tokens * train.steps,
    }


def linear(name: str, tokens: N, inputs: int, outputs: int, keeps: str = "") -> Op:
    """y = x W^T: 2 T in out FLOPs, twice that backward. `keeps` names the saved input; layers that share it name it once."""
    flops = 2 * tokens * inputs * outputs
    saved = (Saved(keeps, ACTIVATION, tokens * inputs),) if keeps else ()
    return Op(name, ((outputs, inputs),), flops, 2 * flops, saved, group="matmul")


def norm(name: str, tokens: N, size: int) -> Op:
    """RMSNorm keeps its input and one statistic a token; its weight gradient is a vector-matrix product."""
    saved = (Saved("input", ACTIVATION, tokens * size), Saved("rstd", STATISTIC, tokens))
    return Op(name, ((size,),), backward=2 * tokens * size, saved=saved)


def attention(shapes: Shapes, tokens: N, heads: int, kv_heads: int, head_dim: int) -> Op:
    """Flash attention, full convention: 4 D FLOPs a pair and head forward, 10 D backward (five products, one repeated)."""
    pairs = shapes.rows * shapes.seq * shapes.seq if shapes.pairs is None else shapes.pairs
    output = tokens * heads * head_dim
    returned = (Saved("output", ACTIVATION, output), Saved("log-sum-exp", STATISTIC, tokens * heads))
    joined = (Saved("joined output", ACTIVATION, output),) if shapes.packed else ()
    saved = (Saved("q, k, v", ACTIVATION, tokens * (heads + 2 * kv_heads) * head_dim), *returned, *joined)
    flops = 4 * pairs * heads * head_dim
    return Op("attention", (), flops, flops // 2 * 5, saved, group="attention")


def describe(model: ModelConfig, shapes: Shapes) -> Work:
    """The work of one process training `model` on micro batches of `shapes`, with AdamW and chunked cross entropy."""
    T, H, F, V = shapes.rows * shapes.seq, model.hidden, model.ffn, model.vocab
    heads, kv_heads, dim = model.heads, model.kv_heads, model.head_dim
    angles = (T if shapes.packed else shapes.seq) * dim
    embed = Op("embed", ((V, H),), saved=(Saved("ids", INDEX, T), Saved("angles", ACTIVATION, angles)))
    layer = (
        norm("attention_norm", T, H),
        linear("q", T, H, heads * dim, keeps="normed"),
        linear("k", T, H, kv_heads * dim),
        linear("v", T, H, kv_heads * dim),
        attention(shapes, T, heads, kv_heads, dim),
        linear("o", T, heads * dim, H),
        norm("mlp_norm", T, H),
        linear("gate", T, H, F, keeps="normed"),
        linear("up", T, H, F),
        Op("gated_silu", saved=(Saved("gate, up", ACTIVATION, 2 * T * F),)),
        linear("down", T, F, H, keeps="product"),
    )
    blocks = (
        Block("embed", 1, (embed,)),
        Block("layer", model.layers, layer, entering=layer[0].saved[0]),
        Block("head", 1, (norm("norm", T, H), head(T, H, V, model.tied))),
    )
    return Work(blocks, shapes.micro, T, shapes.step_rows * shapes.seq)


def head(tokens: N, hidden: int, vocab: int, tied: bool) -> Op:
    """Chunked cross entropy makes its gradients in forward: three products there, none in backward.

    It keeps the gradients of the hidden states and of the weight; a tied weight is the embedding's and counted there.
    While it runs there are the float32 logits of one chunk and, in 16 bits, their rounded copy and the weight's gradient
    summed in float32.
    """
    flops = 3 * 2 * tokens * hidden * vocab
    logits = pick(tokens > CHUNK, CHUNK, tokens) * vocab
    transient = (
        Saved("logits", STATISTIC, logits),
        Saved("logits", ROUNDED, logits),
        Saved("weight gradient", WIDENED, vocab * hidden),
    )
    saved = (
        Saved("hidden gradient", ACTIVATION, tokens * hidden),
        Saved("weight gradient", ACTIVATION, vocab * hidden),
    )
    return Op("head", () if tied else ((vocab, hidden),), flops, 0, saved, transient, group="matmul")
