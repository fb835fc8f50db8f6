"""Stages: which layers, tables and micro batches in flight the first, second and last stage of a pipeline have.

Between them the three hold all that differs. Arrays have a row for each of the three and a column for each candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from burnish.mapping import Mapping
from burnish.memory.parts import Part, Parts
from burnish.mesh import Mesh, N
from burnish.stage_cut import stage_share
from burnish.techniques.pipeline import in_flight
from burnish.work import ACTIVATION, Block, Op, Saved, Work


@dataclass(frozen=True)
class Stage:
    """`layers` of each part; how many embeddings, heads and layers for further tokens; micro batches in flight.

    `table` counts copies of the embedding table, of which a head has one of its own unless it is tied on the same stage,
    and layers for further tokens another if they are not on the first. `flight` is in whole stages.
    """

    layers: tuple[N, ...]
    embedding: N
    head: N
    table: N
    further: N
    flight: N


def stages_of(parts: Parts, mapping: Mapping, micro: N, balanced: N = 0) -> Stage:
    """The three stages of each candidate; `balanced` says where they are cut (mapping.CUT)."""
    last = np.asarray(mapping.pp) - 1
    stage = np.stack([0 * last, np.minimum(last, 1), last])
    mesh = Mesh(pp=mapping.pp, vpp=mapping.vpp, stage=stage)
    is_first, is_last = stage == 0, stage == last
    cut = SimpleNamespace(schedule=mapping.schedule, cut=balanced)
    share = stage_share(cut, _outline(parts, micro), mesh, is_first, is_last)
    apart = np.asarray(mapping.pp) > 1
    own = is_last & (apart | (np.asarray(parts.tied) == 0))
    further = is_last * parts.further
    return Stage(
        layers=tuple(part.layers * share for part in parts.layers),
        embedding=is_first * 1,
        head=is_last * 1,
        table=is_first * 1 + own * 1 + (further > 0) * apart,
        further=further,
        flight=in_flight(mapping.schedule, micro, mesh),
    )


def _outline(parts: Parts, micro: N) -> Work:
    """Of a description, what decides where stages end: the matrices of layers and of the embedding."""
    entering = Saved("layer input", ACTIVATION, 1)

    def block(part: Part) -> Block:
        matrices: Any = sum(part.parameters.values()) - part.tables
        return Block(part.name, part.layers, (Op(part.name, ((matrices, 1),)),), entering=entering)

    table: Any = parts.table
    embedding = Block("embed", 1, (Op("embed", ((table, 1),)),))
    return Work((embedding, *map(block, parts.layers)), micro, 1, 1)
