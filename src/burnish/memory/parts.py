"""Parts: what a decoder consists of, by what divides it over ranks; sums over its description.

Parameters in elements; what forward keeps in bytes a token. A class of either is divided as a whole, so that a mapping
costs a few divisions, however many operations a layer has.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from burnish.architecture import Architecture
from burnish.describe import Shapes, describe
from burnish.memory.sizes import Sizes
from burnish.mesh import N, pick
from burnish.stack import OURS
from burnish.work import COLUMN, EXPERT, HEADS, ROW, TOKENS, Block, Bytes, Op

# Classes: divided by tensor-parallel ranks; whole on each of them (or by tokens, with sequence parallelism); tokens sent
# to experts.
TENSOR, WHOLE, ROUTED = "tensor", "whole", "routed"
CLASS = {COLUMN: TENSOR, ROW: TENSOR, HEADS: WHOLE, TOKENS: WHOLE, EXPERT: EXPERT}
STATISTIC_BYTES = 4
ANY = replace(OURS, routing_kept=0)  # layers as every stack has them; what one keeps beside them stands in its `Sizes`


@dataclass(frozen=True)
class Part:
    """One kind of layer: `layers` of it in the model; dictionaries from class to elements or to bytes a token."""

    name: str
    layers: N
    parameters: dict[str, N]
    tables: N  # of them, elements that are no matrix of a product
    adapted: N  # inputs and outputs of the products that adapters sit beside
    kept: dict[str, N]
    products: dict[str, N]  # what is kept where every second product is run again
    scores: N  # stored attention scores of a token with one other
    entering: N  # elements a token of what enters a layer
    expert: N  # elements of one matrix of one expert


@dataclass(frozen=True)
class Parts:
    """The layers of a decoder, and its ends: elements of the embedding table, of positions and of the final norm."""

    layers: tuple[Part, ...]
    table: N
    positions: N
    final: N
    hidden: N
    tied: N
    further: N  # layers that predict further tokens


def parts_of(model: Architecture, sizes: Sizes) -> Parts:
    """The parts of a model under the sizes of a stack."""
    one = Shapes(1, 1, pairs=1, scores=1)
    work = describe(replace(model, mtp=0, positions=0, tied=0), one, ANY)
    bytes_ = Bytes(0, 0, 0, 0, 0, 1, statistic=STATISTIC_BYTES)
    layers = tuple(_part(block, model, sizes, bytes_) for block in work.blocks if block.entering is not None)
    return Parts(
        layers=layers,
        table=model.vocab * model.hidden,
        positions=model.positions * model.hidden,
        final=model.hidden * (1 + model.layer_norm),
        hidden=model.hidden,
        tied=model.tied,
        further=model.mtp,
    )


def _part(block: Block, model: Architecture, sizes: Sizes, width: Bytes) -> Part:
    parameters: dict[str, Any] = defaultdict(int)
    kept: dict[str, Any] = defaultdict(int)
    products: dict[str, Any] = defaultdict(int)
    tables: N = 0
    adapted: N = 0
    scores: N = 0
    for op in block.ops:
        for shape in op.shapes:
            where, count = _class_of(op, shape), _product(shape)
            parameters[where] = parameters[where] + count
            if op.group in ("matmul", "experts", "router") and len(shape) > 1:
                adapted = adapted + (shape[0] + shape[1]) * (op.group == "matmul")
            else:
                tables = tables + count
        for saved in op.saved:
            kind = ROUTED if saved.name == ROUTED else CLASS[saved.split]
            size = STATISTIC_BYTES if saved.role == "statistic" else sizes.activation
            low = sizes.low_inputs if op.group in ("matmul", "experts") else 1
            kept[kind] = kept[kind] + size * saved.elements * _needed(op, sizes) * low
        for name, count in _beside(op, sizes, model.layer_norm, model.gated).items():
            kept[name] = kept[name] + count
        for name, count in _outputs(op, sizes).items():
            products[name] = products[name] + count
        scores = scores + op.scores
    for name in (EXPERT, ROUTED):
        kept[name] = kept[name] * sizes.uneven
    assert block.entering is not None
    kept[WHOLE] = kept[WHOLE] + sizes.glue * block.entering.elements
    products[WHOLE] = products[WHOLE] + sizes.activation * block.entering.elements
    entering = block.entering.elements
    return Part(
        name=block.name,
        layers=block.layers,
        parameters=dict(parameters),
        tables=tables,
        adapted=adapted,
        kept=dict(kept),
        products=dict(products),
        scores=scores,
        entering=entering,
        expert=pick(model.routed_width > 0, model.routed_width, model.hidden) * model.expert_ffn,
    )


def _product(shape: tuple[N, ...]) -> N:
    count: N = 1
    for size in shape:
        count = count * size
    return count


def _class_of(op: Op, shape: tuple[N, ...]) -> str:
    """What divides a parameter; the bias of a product whose inputs are divided is whole on every rank."""
    if op.group == "experts":
        return EXPERT
    return WHOLE if op.split == ROW and len(shape) == 1 else CLASS[op.split]


def _needed(op: Op, sizes: Sizes) -> N:
    """Whether a product keeps its input: the gradient of a frozen weight is not asked for, adapters sit on attention."""
    return sizes.frozen_inputs if op.group in ("matmul", "experts") and op.name not in ("q", "o") else 1


def _outputs(op: Op, sizes: Sizes) -> dict[str, N]:
    """What choosing by operation keeps: the result of attention and of every second product, bytes a token."""
    if op.name == "attention":
        return {TENSOR: sum(sizes.activation * saved.elements for saved in op.saved if saved.name == "output")}
    if op.group == "matmul":
        return {TENSOR if op.split == COLUMN else WHOLE: sizes.activation * op.shapes[0][0] / 2}
    if op.group == "experts":
        return {EXPERT: sizes.activation * sum(saved.elements for saved in op.saved) / 2}
    return {}


def _beside(op: Op, sizes: Sizes, layer_norm: N, gated: N) -> dict[str, N]:
    """What code that does not fuse keeps beside an operation's own tensors, bytes a token."""
    if op.name.endswith("_norm"):  # LayerNorm is one kernel everywhere
        return {CLASS[op.saved[0].split]: sizes.norm * op.saved[0].elements * (1 - layer_norm)}
    if op.name.endswith("_sum"):  # Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1: one mask a residual sum
        return {WHOLE: sizes.mask * (op.moved // 3)}
    if op.name == "attention":
        output = next(saved.elements for saved in op.saved if saved.name == "output")
        return {TENSOR: sizes.twice * output}
    if op.name.endswith(("_silu", "_act")):
        return {CLASS[op.split]: sizes.act * gated * op.saved[0].elements + sizes.loose * op.loose}
    if op.group == "dispatch":
        return {ROUTED: sizes.dispatch * op.passed / 2}
    return {}
