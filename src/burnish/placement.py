"""Placement: where a tensor of this rank lies in the whole model, as plain numbers; checkpoints are written and read by it.

The whole model is the one-process one. A technique that cuts, moves or repeats parameters says so in `Trainable.placements`,
by the name that the parameter or saved buffer has here: `<number of the part>.<name in its state_dict>`. What is not named
there is whole and has its own name. Splitting by ZeRO on top of that is found from the distributed tensors themselves.

    tensor parallel   rows 512..1023 of a matrix   cut("model.layers.3.mlp.up.weight", (1024, 256), 0, [(512, 1024)])
    fused matrices    two runs of rows             cut("...", (2048, 256), 0, [(512, 1024), (1536, 2048)])
    padding           local rows beyond the runs   nothing to say: what no piece covers is neither stored nor read
    copies            the same rows on many ranks  the same placement on each; they are stored once
    pipeline          its second layer is the 8th  whole("model.layers.7.norm.weight", (256,))
    a tied head       on another rank              whole("model.embed.weight", (1024, 256)), the name of the first
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A box of `size` elements, which begins at `here` in the tensor of this rank and at `there` in the whole one."""

    here: Sizes
    there: Sizes
    size: Sizes


@dataclass(frozen=True)
class Placement:
    """`name` in the one-process model, the `shape` it has there, and the pieces of it that this rank's tensor holds."""

    name: str
    shape: Sizes
    pieces: tuple[Piece, ...]

    def within(self, start: Sizes, size: Sizes) -> Placement:
        """The placement of a tensor that holds only the box `size` at `start` of this one."""
        kept = (_common(piece, start, size) for piece in self.pieces)
        return Placement(self.name, self.shape, tuple(piece for piece in kept if piece is not None))

    def moved(self, name: str) -> Placement:
        """The same piece of a parameter of another name."""
        return Placement(name, self.shape, self.pieces)


def whole(name: str, shape: Iterable[int]) -> Placement:
    """A tensor that is all there is of `name`."""
    size = tuple(shape)
    start = (0,) * len(size)
    return Placement(name, size, (Piece(start, start, size),))


def cut(name: str, shape: Iterable[int], dim: int, runs: Iterable[tuple[int, int]]) -> Placement:
    """A tensor that holds `runs`, each from its first to before its last index along `dim`, one after the other.

    What a run has beyond the whole is padding. Raises ValueError for a run that ends before it begins.
    """
    size, pieces, at = tuple(shape), [], 0
    for first, last in runs:
        if not 0 <= first <= last:
            raise ValueError(f"{name}: run {first}..{last} of dimension {dim}")
        if (count := min(last, size[dim]) - first) > 0:
            start = (0,) * len(size)
            pieces.append(Piece(_put(start, dim, at), _put(start, dim, first), _put(size, dim, count)))
        at += last - first
    return Placement(name, size, tuple(pieces))


def _put(sizes: Sizes, dim: int, value: int) -> Sizes:
    dim %= len(sizes)
    return (*sizes[:dim], value, *sizes[dim + 1 :])


def _common(piece: Piece, start: Sizes, size: Sizes) -> Piece | None:
    """The part of a piece in the box `size` at `start` of this rank's tensor, counted from that box; None where it is empty."""
    first = tuple(max(a, b) for a, b in zip(piece.here, start, strict=True))
    ends = zip(piece.here, piece.size, start, size, strict=True)
    kept = tuple(min(a + n, b + m) - at for (a, n, b, m), at in zip(ends, first, strict=True))
    if any(n <= 0 for n in kept):
        return None
    moved = tuple(at - a for at, a in zip(first, piece.here, strict=True))
    there = tuple(a + by for a, by in zip(piece.there, moved, strict=True))
    return Piece(tuple(at - b for at, b in zip(first, start, strict=True)), there, kept)
