"""Arrange: the tensors of a checkpoint as ours and back, where a family joins, splits or turns them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from burnish.tables.families import Link


def to_ours(link: Link, read: Callable[[str], Tensor], rows: Mapping[str, int]) -> dict[str, Tensor]:
    """Our tensors of a link from a file's, each `read` once; `rows` of each of ours. One of theirs is held at a time."""
    if len(link.theirs) == 1:
        whole = _turned(read(link.theirs[0]), link)
        if len(link.ours) == 1:
            return {link.ours[0]: whole}
        parts = whole.split([rows[name] for name in link.ours])
        return {name: part.clone() for name, part in zip(link.ours, parts, strict=True)}
    (name,) = link.ours
    joined, start = None, 0
    for theirs in link.theirs:
        part = _turned(read(theirs), link)
        if joined is None:
            joined = part.new_empty((rows[name], *part.shape[1:]))
        joined[start : start + len(part)] = part
        start += len(part)
    assert joined is not None
    return {name: joined}


def to_theirs(link: Link, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A file's tensors of a link from ours; views of them where nothing has to be moved."""
    parts = [ours[name] for name in link.ours]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    pieces = whole.chunk(len(link.theirs)) if len(link.theirs) > 1 else (whole,)
    return {name: _turned(piece, link) for name, piece in zip(link.theirs, pieces, strict=True)}


def _turned(tensor: Tensor, link: Link) -> Tensor:
    return tensor.t().contiguous() if link.transposed and tensor.dim() == 2 else tensor
