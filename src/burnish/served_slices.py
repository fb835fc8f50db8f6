"""Served slices: what each card of a server holds of a compressed decoder's matrices, and whether groups and kernels divide it.

A server that divides a model over `tp` cards cuts q, k, v, gate and up along their outputs, o and down along their inputs
(Shoeybi et al. 2019, arXiv 1909.08053). A group of inputs must lie on one card.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.tables.kernels import KERNELS, Kernel
from burnish.weight_format import WORD, IntWeights, fits, legal_groups

CARDS = (1, 2, 4, 8, 16, 32, 64)  # numbers of them that a message names


class Slice(NamedTuple):
    """Matrices that a server multiplies as one, [outputs, inputs] a card."""

    names: tuple[str, ...]
    outputs: int
    inputs: int


def slices(config: ModelConfig, tp: int) -> tuple[Slice, ...]:
    """The matrices of a layer on one of `tp` cards; keys and values of fewer heads than cards are repeated."""
    heads, pairs, ffn = config.heads // tp, max(config.kv_heads // tp, 1), config.ffn // tp
    gated = config.traits.gated or bool(config.experts)
    up = ("mlp.gate", "mlp.up") if config.traits.gated and not config.experts else ("mlp.up",)
    return (
        Slice(("attention.q", "attention.k", "attention.v"), (heads + 2 * pairs) * config.head_dim, config.hidden),
        Slice(("attention.o",), config.hidden, heads * config.head_dim),
        Slice(up, (1 + gated) * ffn, config.hidden),
        Slice(("mlp.down",), config.hidden, ffn),
    )


class Wrong(NamedTuple):
    """What does not divide, as the beginning of a sentence, and the matrices it is about."""

    said: str
    names: tuple[str, ...]


def check_served(
    config: ModelConfig, scheme: IntWeights, keep: tuple[str, ...], tp: int = 1, reader: str | None = None
) -> tuple[str, ...]:
    """Notes on matrices that `reader`, a server of `tables.kernels`, multiplies slowly.

    Raises UserError, with values that work, where `tp` cards do not divide the model, or a group or a product not their slices.
    """
    if not _divides(config, tp):
        raise UserError(
            f"compress: {tp} cards of a server do not divide {config.heads} heads, {config.kv_heads} key-value heads and "
            f"{config.ffn} feed-forward channels; these do: {_listed(n for n in CARDS if _divides(config, n))}"
        )
    if wrong := _wrong(config, scheme, keep, tp, reader):
        fitting = _listed(n for n in CARDS if _divides(config, n) and not _wrong(config, scheme, keep, n, reader))
        kept = json.dumps(list(wrong.names), separators=(",", ":"))
        raise UserError(
            f"compress: {wrong.said}; numbers of cards that work: {fitting}; keep={kept} leaves it as it is"
        )
    if reader is None or not scheme.packed or config.experts:
        return ()
    kernel = KERNELS[reader]
    slow = [name for own in _left(config, keep, tp) if not _fast(own, kernel) for name in own.names]
    return (f"{kernel.name}'s fast product does not take {', '.join(slow)}; its slower one does",) if slow else ()


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _divides(config: ModelConfig, tp: int) -> bool:
    pairs = config.kv_heads
    return not (config.heads % tp or config.ffn % tp or (pairs % tp and tp % pairs))


def _left(config: ModelConfig, keep: tuple[str, ...], tp: int) -> list[Slice]:
    """The slices that become integers in some layer."""
    return [
        own
        for own in slices(config, tp)
        if not all(fits(f"layers.{number}.{name}", keep) for name in own.names for number in range(config.layers))
    ]


def _wrong(config: ModelConfig, scheme: IntWeights, keep: tuple[str, ...], tp: int, reader: str | None) -> Wrong | None:
    """The first slice that a group, a word or a product does not divide."""
    if not scheme.packed:
        return None
    left = _left(config, keep, tp)
    for own in left:
        where = f"{own.inputs} inputs of {own.names[0]}" + (f" on each of {tp} cards" if tp > 1 else "")
        if scheme.group > 0 and own.inputs % scheme.group:
            groups = legal_groups(tuple(one.inputs for one in left))
            return Wrong(f"group {scheme.group} does not divide {where}; {groups}", own.names)
        if tp > 1 and own.inputs * scheme.bits % WORD:
            return Wrong(f"{where} end within a word of {WORD} bits", own.names)
    for own in left:
        if reader is not None and (said := _no_product(config, own, scheme, KERNELS[reader])):
            return Wrong(said, own.names)
    return None


def _no_product(config: ModelConfig, own: Slice, scheme: IntWeights, kernel: Kernel) -> str:
    """Why a server has no product for a slice, "" where it has one."""
    where = (
        f"{kernel.name} has no product of {', '.join(own.names)}, {own.outputs} outputs of {own.inputs} inputs a card"
    )
    if config.experts and own.names[0].startswith("mlp."):
        channels = own.inputs if own.names == ("mlp.down",) else own.outputs // 2
        step = max(kernel.ffn, scheme.group)
        odd = config.hidden % kernel.hidden or channels % step
        return f"{where}: experts want a hidden size of {kernel.hidden}s and channels of {step}s" if odd else ""
    if _fast(own, kernel) or _slow(own, scheme, kernel):
        return ""
    return (
        f"{where}: the fast one wants outputs of {kernel.outputs}s and inputs of {kernel.inputs}s, the slow one outputs of "
        f"{kernel.slow_outputs}s, symmetric=true and dtype={kernel.slow_dtype}"
    )


def _fast(own: Slice, kernel: Kernel) -> bool:
    return own.outputs % kernel.outputs == 0 and own.inputs % kernel.inputs == 0


def _slow(own: Slice, scheme: IntWeights, kernel: Kernel) -> bool:
    return own.outputs % kernel.slow_outputs == 0 and scheme.symmetric and scheme.dtype == kernel.slow_dtype
