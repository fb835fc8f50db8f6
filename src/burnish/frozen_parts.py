"""Frozen parts: what an operation costs and keeps where its parameters stay as they are, and where no gradient reaches.

An operation is `live` when its result has a gradient: it learns itself, or what it reads is live. Only live operations run
in backward and keep tensors; a product makes the gradient of its input only if that is live, of its weight only if that
learns, and keeps its input only for the latter. Saved tensors are those of the modules in `models/`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from burnish.work import Op, Saved

# Operation of a decoder -> those whose result it reads; the stream is what layers add to.
STREAM = "stream"
READS: dict[str, tuple[str, ...]] = {
    "embed": (),
    "attention_norm": (STREAM,),
    **dict.fromkeys(("q", "k", "v"), ("attention_norm",)),
    "q_norm": ("q",),
    "k_norm": ("k",),
    "rotary": ("q", "k"),
    "attention": ("q", "k", "v"),
    "o": ("attention",),
    "attention_sum": (STREAM, "o"),
    "mlp_norm": (STREAM,),
    **dict.fromkeys(("gate", "up", "router"), ("mlp_norm",)),
    "gated_silu": ("gate", "up"),
    "down": ("gated_silu",),
    "permute": ("mlp_norm", "router"),
    "expert_up": ("permute",),
    "expert_act": ("expert_up", "router"),
    "expert_down": ("expert_act",),
    "unpermute": ("expert_down",),
    "mlp_sum": (STREAM, "down", "unpermute"),
    "norm": (STREAM,),
    "head": ("norm",),
}
ONTO_STREAM = ("embed", "attention_sum", "mlp_sum")
NORMS = ("attention_norm", "q_norm", "k_norm", "mlp_norm", "norm")
PRODUCTS = ("matmul", "router", "experts")  # groups of operations that are products with a matrix
INPUTS = ("normed", "product", "routed")  # what such an operation saves for its weight's gradient
OUTPUTS = ("output", "joined output")  # what attention saves that the next product reads: of one run, of several
GIVEN = ("output", "log-sum-exp")  # what attention returns, of all that it saves
HELD = ("angles", "window")  # what the embedding holds for all layers


@dataclass(frozen=True)
class Reached:
    """Where gradients are: by operation, whether what it reads is live and whether it is; and the stream behind them."""

    entering: dict[str, bool]
    live: dict[str, bool]
    stream: bool


def reached(ops: Iterable[Op], stream: bool, learning: Iterable[str]) -> Reached:
    """Follow gradients through `ops`, whose stream is live or not; those named in `learning` have parameters that learn."""
    entering: dict[str, bool] = {}
    live = {STREAM: stream}
    for op in ops:
        entering[op.name] = any(live.get(source, False) for source in READS.get(op.name, ()))
        live[op.name] = entering[op.name] or op.name in learning
        if op.name in ONTO_STREAM:
            live[STREAM] = live[STREAM] or live[op.name]
    return Reached(entering, live, live[STREAM])


def frozen(op: Op, entering: bool, live: bool, learns: bool, input_read: bool) -> Op:
    """`op` where its input is live or not (`entering`), its result is or not (`live`), and its own weights learn or not.

    `input_read`: a gradient beside its own needs the input that it names as saved; of attention, the output.
    """
    if op.group in PRODUCTS:
        kept = tuple(s for s in op.saved if (input_read or learns if s.name in INPUTS else live))
        return replace(op, trained=learns, backward=op.flops * (entering + learns), saved=kept)
    if op.group == "attention":
        return op if live and input_read else _attention(op, live, input_read)
    if op.name == "head":
        return _head(op, learns)
    if op.name == "embed":
        return replace(op, trained=learns, saved=tuple(s for s in op.saved if learns or s.name in HELD))
    if op.name in NORMS:
        return replace(op, trained=learns, backward=op.backward * learns, saved=op.saved if live else ())
    return op if live else replace(op, saved=())


def _attention(op: Op, live: bool, output_read: bool) -> Op:
    """Without gradients it keeps nothing of its own, but what it gives may be read by the next product's adapter."""
    last = [s for s in op.saved if s.name in OUTPUTS][-1].name
    own = () if output_read else ("joined output",)
    if live:
        return replace(op, saved=tuple(s for s in op.saved if s.name not in own))
    saved = tuple(s for s in op.saved if output_read and s.name == last)
    return replace(op, backward=0, saved=saved, gives=op.gives or tuple(s for s in op.saved if s.name in GIVEN))


def _head(op: Op, learns: bool) -> Op:
    """The loss in chunks makes logits and the hidden states' gradient; the third product is that of the weight's."""

    def kept(tensors: tuple[Saved, ...]) -> tuple[Saved, ...]:
        return tuple(s for s in tensors if learns or s.name != "weight gradient")

    products = op.flops // 3 * (2 + learns)
    return replace(op, trained=learns, flops=products, saved=kept(op.saved), transient=kept(op.transient))


def without_held(op: Op, names: Iterable[str]) -> Op:
    """The embedding without what no layer needs of that which it holds for all of them."""
    return replace(op, saved=tuple(s for s in op.saved if s.name not in names))
