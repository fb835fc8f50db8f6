"""Expert parts: the operations of a feed-forward part of which a token passes a few of many experts.

The saved tensors are those of `models/experts.py`, line by line. Letters as in decoder_parts.py.
"""

from __future__ import annotations

from dataclasses import replace

from burnish.architecture import Architecture
from burnish.decoder_parts import has, linear, norm, residual
from burnish.mesh import N, pick
from burnish.stack import Stack
from burnish.work import ACTIVATION, COLUMN, EXPERT, INDEX, ROW, STATISTIC, Op, Saved


def expert_part(model: Architecture, T: N, stack: Stack) -> tuple[Op, ...]:
    """Norm, router, `topk` of the experts for each token, what all tokens share, and residual sum (Shazeer et al. 2017)."""
    H, F, shared = model.hidden, model.expert_ffn, model.shared_ffn
    width = pick(model.routed_width > 0, model.routed_width, H)
    sent, wide = T * model.topk, 1 + model.gated
    latent = model.routed_width > 0

    narrowed: tuple[Op, ...] = ()
    widened: tuple[Op, ...] = ()
    beside: tuple[Op, ...] = ()
    if has(model.routed_width):
        narrowed = (linear("latent_down", T, H, width * latent, split="tokens"),)
        widened = (linear("latent_up", T, width * latent, H, split="tokens"),)
    if has(shared):
        beside = _shared_part(model, T)
    return (
        norm("mlp_norm", T, H),
        _router(model, T, stack),
        *narrowed,
        Op(
            "permute",
            saved=(Saved("order", INDEX, 2 * sent * stack.routing_kept, EXPERT),),
            moved=2 * sent * width,
            passed=sent * width,
            split=EXPERT,
            group="dispatch",
            launches=4,
        ),
        _grouped("expert_up", model, T, (width, wide * F), "routed"),
        Op(
            "expert_act",
            saved=(
                Saved("gate, up", ACTIVATION, sent * wide * F, EXPERT),
                Saved("weights", ACTIVATION, sent * stack.routing_kept, EXPERT),
            ),
            moved=sent * (wide + 1) * F,
            loose=sent * F * (1 - model.gated + model.clamped),
            split=EXPERT,
        ),
        _grouped("expert_down", model, T, (F, width), "product"),
        Op("unpermute", moved=2 * sent * width, passed=sent * width, split=EXPERT, group="dispatch", launches=4),
        *widened,
        *beside,
        residual("mlp_sum", T, H),
    )


def _grouped(name: str, model: Architecture, T: N, sizes: tuple[N, N], keeps: str) -> Op:
    """The product of every routed token with the matrix of its expert; `sizes` are its inputs and outputs."""
    inputs, outputs = sizes
    sent = T * model.topk
    flops = 2 * sent * inputs * outputs
    saved = (Saved(keeps, ACTIVATION, sent * inputs, EXPERT),)
    shape = ((model.experts * outputs, inputs),)
    made = sent * outputs
    return Op(name, shape, flops, 2 * flops, saved, group="experts", split=EXPERT, parts=model.experts, made=made)


def _shared_part(model: Architecture, T: N) -> tuple[Op, ...]:
    """What every token passes beside its experts (Dai et al. 2024, arXiv 2401.06066, section 3.2)."""
    width, wide = model.shared_ffn, 1 + model.gated
    gated = Op(
        "shared_act",
        saved=(Saved("gate, up", ACTIVATION, T * wide * width, COLUMN),),
        moved=T * (wide + 1) * width,
        split=COLUMN,
    )
    up = linear("shared_up", T, model.hidden, wide * width)
    return up, gated, linear("shared_down", T, width, model.hidden, keeps="product", split=ROW)


def _router(model: Architecture, T: N, stack: Stack) -> Op:
    """The product that chooses experts. What it makes of its result is kept: probabilities, the choice, and its shares."""
    one = linear("router", T, model.hidden, model.experts, keeps="normed", split="tokens")
    T = T * stack.routing_kept
    made = Saved("probabilities", STATISTIC, T * model.experts)
    chosen = Saved("choice", INDEX, T * model.topk), Saved("shares", STATISTIC, T * (model.topk + 1) * model.norm_topk)
    return replace(one, group="router", saved=(*one.saved, made, *chosen))
