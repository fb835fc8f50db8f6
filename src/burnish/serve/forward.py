"""One pass of pieces of several sequences through a runner and its own pool of keys and values.

Shape letters: T packed tokens of a pass, R rows whose next token is asked for, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.serve.paged import Pool, runs_of
from burnish.serve.pages import Pages
from burnish.serve.reading import Reader, Reading
from burnish.serve.runners.runner import Runner
from burnish.serve.schedule import Piece


class Forward:
    """A model and the pool that its sequences' pages lie in."""

    def __init__(self, runner: Runner, pages: Pages) -> None:
        shape, slots = runner.config, pages.count * pages.size
        self.runner, self.pages = runner, pages
        self.pool = Pool(shape, slots, runner.dtype, runner.device, runner.threads, runner.exact, runner.scales)
        self._windows = [shape.window if shape.window and i >= shape.window_from else 0 for i in range(shape.layers)]

    def __call__(self, pieces: Sequence[Piece]) -> Tensor:
        """Scores [R, V] of the tokens of each piece that are asked what comes next, in their order."""
        if len(pieces) == 1 and (scores_RV := self._at_once(pieces[0])) is not None:
            return scores_RV
        device, size = self.runner.device, self.pages.size
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        readers = []
        for piece in pieces:
            start, end, pages = piece.start, piece.start + piece.count, piece.sequence.pages
            readers.append(Reader(len(ids), len(ids) + piece.count, runs_of(pages, size, 0, end)))
            ids += piece.tokens
            positions += range(start, end)
            slots += [pages[at // size] * size + at % size for at in range(start, end)]
            rows += range(len(ids) - piece.scored, len(ids))
        ids_T, positions_T, slots_T, rows_R = (torch.tensor(x, device=device) for x in (ids, positions, slots, rows))
        made = self.runner.begin(ids_T, positions_T)
        reading, last = Reading(self.pool, readers), len(self._windows) - 1
        for layer, window in enumerate(self._windows):
            self.pool.write(layer, slots_T, made.k, made.v)
            attended = reading.attend(layer, made.q, window)
            if layer < last:
                made = self.runner.go_on(layer, made, attended)
        return self.runner.scores(made, attended, rows_R) if rows else torch.empty(0, self.runner.config.vocab)

    def _at_once(self, piece: Piece) -> Tensor | None:
        """Scores of one piece by the graph of all layers; None where there is none, where it does not pay, or where the pages do
        not lie together."""
        whole, pages = self.runner.whole, piece.sequence.pages
        if whole is None or not whole.pays(piece.start, piece.count):
            return None
        pages = pages[: self.pages.needed(piece.start + piece.count)]
        if pages != list(range(pages[0], pages[0] + len(pages))):
            return None
        ids_T, rows_R = torch.tensor(piece.tokens), torch.arange(piece.count - piece.scored, piece.count)
        return whole(ids_T, piece.start, rows_R, (self.pool.keys, self.pool.values), pages[0] * self.pages.size)
