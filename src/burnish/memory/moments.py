"""Moments: what a rank holds between steps, while the loss runs, while layers run again, and in the optimizer.

The peak of a step is the fullest of them. Bytes; a row for each of three stages, a column for each candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.mapping import OFFLOAD, RECOMPUTE, Mapping
from burnish.memory.allocator import held
from burnish.memory.parts import ROUTED, TENSOR, WHOLE, Part, Parts
from burnish.memory.sizes import Sizes
from burnish.memory.stages import Stage
from burnish.mesh import N, pick
from burnish.work import EXPERT

GRADIENTS_SPLIT, PARAMETERS_SPLIT = 2, 3  # ZeRO stages (Rajbhandari et al. 2020, arXiv 1910.02054, section 5)
WIDE = 4  # bytes of a float32
# Tensors of a layer's size that a pipeline stage holds to receive and send; an interleaved one has one more a chunk.
BOUNDARY = 3


@dataclass(frozen=True)
class Split:
    """Into how many parts a mapping divides each class, and the states of each."""

    tensor: N
    tokens: N  # of what tensor-parallel ranks repeat: their number with sequence parallelism, else 1
    experts: N
    shards: N
    expert_shards: N
    zero: N
    offload: N

    def states(self, dense: N, routed: N, from_stage: N) -> N:
        """Elements a rank holds of a state that is split from a ZeRO stage on."""
        split = np.asarray(self.zero) >= from_stage
        return dense / np.where(split, self.shards, 1) + routed / np.where(split, self.expert_shards, 1)


def split_of(mapping: Mapping) -> Split:
    """The divisors of a mapping; experts are laid over the ranks of a stage, `ep` times `etp` of them a copy."""
    ranks = np.asarray(mapping.dp) * mapping.cp
    shards = pick(np.asarray(mapping.shard) == 0, ranks, np.minimum(mapping.shard, ranks))
    return Split(
        tensor=mapping.tp,
        tokens=1 + (mapping.tp - 1) * mapping.sp,
        experts=mapping.ep * mapping.etp,
        shards=shards,
        expert_shards=np.maximum(shards * mapping.tp // (mapping.ep * mapping.etp), 1),
        zero=mapping.zero,
        offload=mapping.offload,
    )


@dataclass(frozen=True)
class Case:
    """Everything that decides what ranks hold; `micro` batches a step, `tokens` of one on a rank, `seq` tokens of a sequence."""

    parts: Parts
    stage: Stage
    split: Split
    sizes: Sizes
    mapping: Mapping
    micro: N
    tokens: N
    seq: N


def owned(part: Part, split: Split) -> tuple[N, N]:
    """(elements every data-parallel rank has, elements of its experts) of one layer on one rank."""
    dense = part.parameters.get(TENSOR, 0) / split.tensor + part.parameters.get(WHOLE, 0)
    return dense, part.parameters.get(EXPERT, 0) / split.experts


def counts(case: Case) -> tuple[N, N, N]:
    """(dense elements, experts' elements, of the dense ones those in tables and norms) of each stage on one rank."""
    parts, stage, split = case.parts, case.stage, case.split
    dense = stage.table * parts.table / split.tensor + stage.embedding * parts.positions + stage.head * parts.final
    tables, routed = dense, 0.0 * dense
    for part, layers in zip(parts.layers, stage.layers, strict=True):
        own, experts = owned(part, split)
        dense, routed = dense + layers * own, routed + layers * experts
        tables = tables + layers * part.tables
    # A layer for a further token joins two inputs, each with a norm (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    own, experts = owned(parts.layers[-1], split)
    joined = 2 * parts.hidden * parts.hidden / split.tensor + 3 * parts.final
    return dense + stage.further * (own + joined), routed + stage.further * experts, tables


def state_bytes(case: Case) -> dict[str, N]:
    """Bytes of parameters, gradients and optimizer between steps.

    Masters that are the parameters are split with the optimizer; the 16-bit copy made from them is whole below ZeRO-3.
    """
    sizes, split = case.sizes, case.split
    dense, routed, tables = counts(case)
    products = np.maximum(dense - tables, 0)
    stored = split.states(dense, routed, pick(np.asarray(sizes.copy) > 0, 1, PARAMETERS_SPLIT))
    copied = np.where(np.asarray(split.zero) >= PARAMETERS_SPLIT, 0, dense + routed) * sizes.copy
    cast = split.states(products, routed, PARAMETERS_SPLIT) * sizes.weight_casts
    away, optimizer_away = (np.asarray(split.offload) >= OFFLOAD.index(name) for name in ("states", "optimizer"))
    # In host memory is what is split; what computes from whole parameters keeps those.
    absent = away & ((np.asarray(sizes.copy) > 0) | (np.asarray(split.zero) >= PARAMETERS_SPLIT))
    trained = (stored * sizes.parameter + cast) * ~absent + copied
    of_tables = pick(np.asarray(sizes.whole_tensors) > 0, tables, split.states(tables, 0, 1)) * sizes.optimizer_table
    optimizer = split.states(products, routed, 1) * sizes.optimizer + of_tables
    return {
        "parameters": pick(np.asarray(sizes.trained) > 0, trained, frozen_bytes(case, away)),
        "gradients": sizes.trained * sizes.gradient * split.states(dense, routed, GRADIENTS_SPLIT) * ~away
        + flat_bytes(case),
        "optimizer": sizes.trained * optimizer * ~optimizer_away,
    }


def frozen_bytes(case: Case, away: Any) -> N:
    """Bytes of weights that are not trained, and of the adapters that are, with all their states."""
    sizes, split, layers = case.sizes, case.split, case.parts.layers
    dense, routed, tables = counts(case)
    matrices = split.states(np.maximum(dense - tables, 0), routed, PARAMETERS_SPLIT) * sizes.frozen
    rest = split.states(tables, 0 * routed, PARAMETERS_SPLIT) * sizes.frozen_table
    adapted = sum(n * part.adapted for n, part in zip(case.stage.layers, layers, strict=True)) / split.tensor
    there = ~(away & (np.asarray(split.zero) >= PARAMETERS_SPLIT))
    return (matrices + rest) * there + sizes.adapter * sizes.rank * adapted


def flat_bytes(case: Case) -> N:
    """Bytes of gradients of frozen weights under ZeRO-3 where a layer's weights and adapters are one flat parameter.

    Whole, as that parameter is: PyTorch's FSDP keeps unsharded gradients while micro batches accumulate (its no_sync).
    """
    dense, routed, _ = counts(case)
    flat = (np.asarray(case.split.zero) >= PARAMETERS_SPLIT) & (np.asarray(case.split.shards) > 1)
    return case.sizes.flat_gradient * (dense + routed) * flat


def piece_bytes(case: Case) -> N:
    """Bytes that the allocator holds beyond frozen experts whose matrices are tensors of their own."""
    sizes, split = case.sizes, case.split
    lost: N = 0.0
    for part, layers in zip(case.parts.layers, case.stage.layers, strict=True):
        size = np.maximum(np.asarray(part.expert) * sizes.frozen, 1.0)
        share = held(size) / size - 1
        lost = lost + layers * part.parameters.get(EXPERT, 0) / split.experts * sizes.frozen * share
    whole = (np.asarray(split.zero) < PARAMETERS_SPLIT) & (np.asarray(sizes.trained) == 0)
    return lost * whole * sizes.pieces


def update_bytes(case: Case) -> N:
    """Bytes that come and go while the optimizer runs: float32 gradients and what its arithmetic makes."""
    dense, routed, _ = counts(case)
    own = case.split.states(dense, routed, 1) * (np.asarray(case.split.offload) < OFFLOAD.index("optimizer"))
    return case.sizes.trained * (case.sizes.step_gradient + case.sizes.step_copy) * own


def buffer_bytes(case: Case) -> N:
    """Bytes of what gathers parameters and passes gradients on: whole layers and ends under ZeRO-3, buckets below."""
    sizes, split, stage = case.sizes, case.split, case.stage
    largest: N = 0.0
    for part, layers in zip(case.parts.layers, stage.layers, strict=True):
        largest = np.maximum(largest, sum(owned(part, split)) * (np.asarray(layers) > 0))
    whole = pick(np.asarray(sizes.copy) > 0, sizes.copy, sizes.parameter)
    form = pick(np.asarray(sizes.trained) > 0, whole, sizes.frozen)
    ends = stage.table * case.parts.table / split.tensor * form
    gathered = sizes.gathered * largest * form + ends + sizes.trained * largest * sizes.gradient
    zero, every = np.asarray(split.zero), sum(counts(case)[:2])
    # A pipeline would gather for each micro batch anew: there parameters, and gradients until the last, stay whole.
    staged = every * (form + sizes.trained * sizes.gradient)
    gathered = pick(np.asarray(case.mapping.pp) > 1, staged, gathered)
    passing = largest * sizes.gradient * (zero == GRADIENTS_SPLIT)
    flat = np.minimum(sizes.bucket, 4 * every) * ((zero > 0) & (zero < PARAMETERS_SPLIT))
    bucket = sizes.trained * np.maximum(passing, flat)
    apart = (np.asarray(split.shards) > 1) | (np.asarray(split.offload) >= OFFLOAD.index("states"))
    return pick((zero >= PARAMETERS_SPLIT) & apart, gathered, bucket)


def boundary_bytes(case: Case) -> N:
    """Bytes of the tensors that a stage holds to pass micro batches on."""
    mapping = case.mapping
    held = BOUNDARY + mapping.vpp * (np.asarray(mapping.vpp) > 1)
    size = case.tokens * case.parts.hidden * case.sizes.activation / case.split.tokens
    return (np.asarray(mapping.pp) > 1) * held * size


def layer_bytes(case: Case, kept: dict[str, N], scores: N) -> N:
    """Bytes of one layer of one micro batch: `kept` by class, bytes a token, and bytes of a token's stored scores."""
    split = case.split
    each = (
        kept.get(TENSOR, 0) / split.tensor
        + kept.get(WHOLE, 0) / split.tokens
        + kept.get(EXPERT, 0) / split.tensor
        + kept.get(ROUTED, 0) / split.tensor
        + scores * case.seq / split.tensor
    )
    return case.tokens * each


def activation_bytes(case: Case) -> tuple[N, N]:
    """(bytes kept for backward by all micro batches in flight, bytes one layer brings back when it runs again)."""
    kind = np.asarray(case.mapping.recompute)
    attention, products, full = (kind == RECOMPUTE.index(name) for name in ("attention", "products", "full"))
    kept: N = 0.0
    again: N = 0.0
    for part, layers in zip(case.parts.layers, case.stage.layers, strict=True):
        whole = layer_bytes(case, part.kept, case.sizes.score * part.scores * ~attention)
        least = case.tokens * part.entering * case.sizes.kept_input / case.split.tokens
        mine = np.where(full, least, np.where(products, layer_bytes(case, part.products, 0), whole))
        kept = kept + layers * mine * case.stage.flight
        again = np.maximum(again, np.where(full | products, whole, 0.0) * (np.asarray(layers) > 0))
    further = layer_bytes(case, case.parts.layers[-1].kept, 0) * case.stage.further
    return kept + further, again


def logit_bytes(case: Case) -> N:
    """Bytes at the head while the loss runs: its input before and after the norm, and logits.

    A chunked loss has logits of a few tokens; it makes the head's gradient at once, in the format of activations, and
    sums it in float32.
    """
    sizes, parts = case.sizes, case.parts
    chunked = np.asarray(sizes.chunk) > 0
    rows = pick(chunked, np.minimum(case.tokens, sizes.chunk), case.tokens)
    vocab = parts.table / np.maximum(parts.hidden, 1) / pick(np.asarray(sizes.logits_split) > 0, case.split.tensor, 1)
    summed = pick(np.asarray(sizes.activation) < WIDE, WIDE, 0)
    gradient = sizes.trained * (sizes.activation + summed) * parts.table * chunked
    entering = 2 * sizes.activation * case.tokens * parts.hidden / case.split.tokens
    return case.stage.head * (entering + rows * vocab * sizes.logit * (1 + case.stage.further) + gradient)
