"""Space: from a file's own grid to the network's (right, front, top; one spacing; slices first) and back.

Voxels are boxes: the field of view stays exactly what it was, and the centre of the first new voxel lies half a new voxel
inside its edge. Axes are resampled one by one with a triangle that is widened where an axis shrinks, so that nothing aliases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Space:
    """How indices of a file become those of the network.

    `order[k]` is the file's axis that the network's axis k runs along, `flipped[k]` whether backwards; `shape` is the file's,
    `size` the network's.
    """

    shape: tuple[int, int, int]
    affine: NDArray[np.float64]
    order: tuple[int, int, int]
    flipped: tuple[bool, bool, bool]
    size: tuple[int, int, int]

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        affine: NDArray[np.float64],
        spacing: tuple[float, ...] | None = None,
        slices: int | None = None,
    ) -> Space:
        """The space of a file of `shape`, brought to `spacing` (right, front, top; None as it is), axis `slices` first."""
        from nibabel.orientations import io_orientation

        turned = io_orientation(affine)  # a file's axis -> the patient's, and its sign
        missing = [k for k in range(3) if k not in turned[:, 0]]
        found = [int(axis) if np.isfinite(axis) else missing.pop() for axis in turned[:, 0]]
        order = [found.index(axis) for axis in range(3)]
        flipped = [bool(turned[axis, 1] < 0) for axis in order]
        lengths = np.linalg.norm(affine[:3, :3], axis=0)[order] * [shape[axis] for axis in order]
        size = [shape[axis] for axis in order]
        if spacing is not None:
            size = [max(1, round(float(length) / step)) for length, step in zip(lengths, spacing, strict=True)]
        first = [0, 1, 2] if slices is None else [slices, *(axis for axis in range(3) if axis != slices)]
        return cls(
            (shape[0], shape[1], shape[2]),
            affine,
            (order[first[0]], order[first[1]], order[first[2]]),
            (flipped[first[0]], flipped[first[1]], flipped[first[2]]),
            (size[first[0]], size[first[1]], size[first[2]]),
        )

    @property
    def turned(self) -> tuple[int, int, int]:
        """The file's sizes in the network's order of axes."""
        a, b, c = (self.shape[axis] for axis in self.order)
        return a, b, c

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between neighbours along the network's axes."""
        lengths = np.linalg.norm(self.affine[:3, :3], axis=0)[list(self.order)] * self.turned
        a, b, c = lengths / self.size
        return float(a), float(b), float(c)

    @property
    def network_affine(self) -> NDArray[np.float64]:
        """From the network's indices to RAS millimetres."""
        made = np.eye(4)
        for axis, (own, back) in enumerate(zip(self.order, self.flipped, strict=True)):
            ratio = self.turned[axis] / self.size[axis]
            start, step = (self.shape[own] - 1, -1.0) if back else (0, 1.0)
            made[:3, axis] = self.affine[:3, own] * ratio * step
            made[:3, 3] += self.affine[:3, own] * (start + step * (ratio - 1) / 2)
        made[:3, 3] += self.affine[:3, 3]
        return made

    def turn(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """[C, *shape] -> [C, *turned], a view."""
        moved = array.transpose(0, *(axis + 1 for axis in self.order))
        return moved[:, *(slice(None, None, -1) if back else slice(None) for back in self.flipped)]

    def unturn(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """[*turned] -> [*shape], a view."""
        straight = array[*(slice(None, None, -1) if back else slice(None) for back in self.flipped)]
        return straight.transpose(*(self.order.index(axis) for axis in range(3)))

    def image(self, array: NDArray[np.generic]) -> Floats:
        """An image [C, *shape] as the network sees it: float32 [C, *size]."""
        found = np.asarray(self.turn(array), np.float32)
        for axis, (old, new) in enumerate(zip(self.turned, self.size, strict=True)):
            if old != new:
                found = along(weights(old, new), found, axis + 1)
        return np.ascontiguousarray(found)

    def labels(self, array: NDArray[np.generic]) -> NDArray[np.int64]:
        """Labels [*shape] as the network learns them: int64 [*size], each of the nearest voxel."""
        found = self.turn(array[None])[0]
        for axis, (old, new) in enumerate(zip(self.turned, self.size, strict=True)):
            if old != new:
                found = np.take(found, ((np.arange(new) + 0.5) * old / new).astype(np.int64), axis=axis)
        return np.ascontiguousarray(found.astype(np.int64))


def weights(old: int, new: int) -> Floats:
    """Matrix [new, old] that resamples an axis; its rows sum to 1."""
    scale = old / new
    centres = (np.arange(new) + 0.5) * scale - 0.5
    apart = np.abs(np.arange(old)[None, :] - np.clip(centres, 0, old - 1)[:, None])
    found = np.maximum(0.0, 1.0 - apart / max(scale, 1.0))
    return (found / found.sum(axis=1, keepdims=True)).astype(np.float32)


def along(matrix: Floats, array: Floats, axis: int) -> Floats:
    """`array` with `matrix` [new, old] applied along an axis."""
    return np.moveaxis(np.tensordot(matrix, array, axes=(1, axis)), 0, axis)
