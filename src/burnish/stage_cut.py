"""Where the stages of a pipeline are cut: between whole layers, or as shares that stand for them in a search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from burnish.mapping import CUT
from burnish.mesh import Mesh, N, pick
from burnish.work import Block, Work


def layers_of(work: Work) -> N:
    """Layers of all kinds."""
    return sum(block.layers for block in work.blocks if block.entering)


def chunks(layers: N, mesh: Mesh, head: N) -> Iterator[tuple[N, N]]:
    """First and last + 1 layer of each chunk of a stage, so that the longest takes least; `head` layers go with the last one.

    Where the others are uneven the late ones have one more, since the early ones hold more micro batches.
    """
    chunks = mesh.pp * mesh.vpp
    others = pick(chunks > 1, chunks - 1, 1)
    last = pick(chunks > 1, _last_layers(layers, others, head), layers)
    shorter = others - (layers - last) % others

    def begin(chunk: N) -> N:
        early = chunk * ((layers - last) // others)
        late = pick(chunk > shorter, chunk - shorter, 0)
        return pick(chunk < chunks, early + late, layers)

    for number in range(int(np.max(mesh.vpp))):
        chunk = number * mesh.pp + mesh.stage
        start, end = begin(chunk), begin(chunk + 1)
        yield start, pick(number < mesh.vpp, end, start)


def _last_layers(layers: N, others: N, head: N) -> N:
    """Layers beside the head: as many as the longest of the `others` allows, and as they leave; one at least."""
    even = np.floor(np.asarray(layers - head * others) / (others + 1)).astype(np.int64)
    most = layers - others

    def longest(last: N) -> N:
        rest = -(-(layers - last) // others)
        return pick(rest > last + head, rest, last + head)

    found = pick(longest(even + 1) <= longest(even), even + 1, even)
    found = pick(found > 1, least(found, most), 1)
    return found if np.ndim(found) else int(found)


def least(a: N, b: N) -> N:
    return pick(a < b, a, b)


def common(start: N, end: N, first: N, after: N) -> N:
    """How many layers two ranges have in common."""
    begin = pick(start > first, start, first)
    count = least(end, after) - begin
    return pick(count > 0, count, 0)


def stage_share(config: Any, work: Work, mesh: Mesh, first: Any, last: Any) -> N:
    """Share of all layers that a stage has.

    Where whole layers would be uneven, the embedding and the head count as one each if that makes chunks even (Llama 3,
    arXiv 2407.21783, section 3.3.2), else the fuller stages have one layer more. Cut by parameters they count as the layers
    that have as many.
    """
    layers = layers_of(work)
    cut = np.asarray(config.cut)
    chunks = mesh.pp * mesh.vpp
    whole = 1 * ((layers % chunks > 0) & ((layers + 2) % chunks == 0))
    ends = pick(cut == CUT.index("parameters"), end_layers(work), whole)
    each = (layers + 2 * ends) / chunks
    each = pick(cut == CUT.index("layers"), np.ceil(each), each)
    return np.maximum(each * mesh.vpp - ends * (1 * first + 1 * last), 0) / layers


def end_layers(work: Work) -> N:
    """Layers that have as many parameters as the embedding."""
    layers = [block for block in work.blocks if block.entering]
    inside = sum(block.layers * _elements(block) for block in layers)
    count = sum(block.layers for block in layers)
    return sum(_elements(block) for block in work.blocks if block.name == "embed") * count / np.maximum(inside, 1)


def _elements(block: Block) -> N:
    return sum((shape[0] * shape[1] for op in block.ops for shape in op.shapes if len(shape) > 1), 0)
