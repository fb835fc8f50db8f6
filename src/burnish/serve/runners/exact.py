"""Exact: a runner whose rows have the same last digits whoever they run beside.

Products of one row and of many differ in how their sums are ordered, so each product here is of the same number of rows, filled
up with zeros; a row's sums then depend on nothing but the row. Attention over the pool does each query by itself (`exact`).
Shape letters: T packed tokens, R rows whose scores are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.graph_size import GraphBytes
from burnish.serve.rounding import Scales
from burnish.serve.runners.runner import Made, Runner

ROWS = 16  # of every product: a compromise between single tokens and prompts


class Exact:
    """Another runner in blocks of `ROWS` tokens. Raises UserError for a model with experts, where company decides who meets."""

    exact, whole = True, None

    def __init__(self, runner: Runner) -> None:
        if runner.config.experts:
            raise UserError("--exact: which tokens share an expert's product depends on the company; leave it out here")
        self.runner = runner

    @property
    def config(self) -> ModelConfig:
        return self.runner.config

    @property
    def dtype(self) -> torch.dtype:
        return self.runner.dtype

    @property
    def scales(self) -> Scales | None:
        return self.runner.scales

    @property
    def device(self) -> torch.device:
        return self.runner.device

    @property
    def threads(self) -> int:
        return self.runner.threads

    @property
    def bytes(self) -> int:
        return self.runner.bytes

    @property
    def held(self) -> GraphBytes | None:
        return self.runner.held

    def reserve(self, tokens: int) -> None:
        self.runner.reserve(ROWS)

    def begin(self, ids_T: Tensor, positions_T: Tensor) -> Made:
        blocks = zip(_blocks(ids_T), _blocks(positions_T), strict=True)
        return _joined(len(ids_T), (self.runner.begin(*block) for block in blocks))

    def go_on(self, layer: int, made: Made, attended_TND: Tensor) -> Made:
        blocks = zip(_blocks(made.hidden), made.places, _blocks(attended_TND), strict=True)
        opened = (self.runner.go_on(layer, made._replace(hidden=x, places=at), y) for x, at, y in blocks)
        return _joined(len(made.hidden), opened)

    def scores(self, made: Made, attended_TND: Tensor, rows_R: Tensor) -> Tensor:
        every = torch.arange(ROWS, device=rows_R.device)
        blocks = zip(_blocks(made.hidden[rows_R]), _blocks(attended_TND[rows_R]), strict=True)
        parts = [self.runner.scores(made._replace(hidden=own), attended, every) for own, attended in blocks]
        return torch.cat(parts)[: len(rows_R)]


def _blocks(x: Tensor) -> Iterator[Tensor]:
    """Rows of x in blocks of `ROWS`, the last one filled up with zeros."""
    filled = F.pad(x, (0, 0) * (x.dim() - 1) + (0, -len(x) % ROWS))
    return iter(filled.split(ROWS))


def _joined(count: int, blocks: Iterable[Made]) -> Made:
    """What blocks gave, as one; a block may write where the one before it wrote."""
    apart = []
    for made in blocks:
        places = made.places.clone() if isinstance(made.places, Tensor) else made.places
        apart.append(Made(made.hidden.clone(), made.q.clone(), made.k.clone(), made.v.clone(), places))
    hidden, q, k, v = (torch.cat([one[part] for one in apart])[:count] for part in range(4))
    return Made(hidden, q, k, v, [one.places for one in apart])
