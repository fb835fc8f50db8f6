"""Three ways to keep keys and values of sequences of varying lengths, driven alike: pages of a pool, a tensor of each sequence
that grows, and one as long as the longest. They write what a decoder would and compute nothing.

Shape letters: S positions written at once, L positions of a sequence, K key/value heads, D size of one head.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from burnish.models.cache import CacheShape
from burnish.serve.paged import Pool
from burnish.serve.pages import Pages

Trace = list[tuple[int, int]]  # positions of each prompt, and of what follows


class Way(Protocol):
    """Holds sequences by number."""

    @property
    def reserved(self) -> int:
        """Positions that memory is held for now."""
        ...

    def write(self, number: int, start: int, keys_SKD: Tensor) -> None:
        """Put positions of a sequence from `start` on, in every layer."""
        ...

    def drop(self, number: int) -> None:
        """A sequence is over."""
        ...


class Pooled:
    """Pages of one pool, made once."""

    def __init__(self, shape: CacheShape, pages: int, page: int) -> None:
        self.pages, self.pool = Pages(pages, page), Pool(shape, pages * page, torch.float32)
        self.layers, self._held = shape.layers, dict[int, list[int]]()

    @property
    def reserved(self) -> int:
        return sum(map(len, self._held.values())) * self.pages.size

    def write(self, number: int, start: int, keys_SKD: Tensor) -> None:
        held, size, end = self._held.setdefault(number, []), self.pages.size, start + len(keys_SKD)
        while len(held) < self.pages.needed(end):
            held.append(self.pages.take(held[-1] if held else None))
        slots_S = torch.tensor([held[at // size] * size + at % size for at in range(start, end)])
        for layer in range(self.layers):
            self.pool.write(layer, slots_S, keys_SKD, keys_SKD)

    def drop(self, number: int) -> None:
        self.pages.release(self._held.pop(number))


class Grown:
    """Tensors of each sequence and layer, made anew with every position."""

    def __init__(self, shape: CacheShape) -> None:
        self.layers, self._held = shape.layers, dict[int, list[Tensor]]()

    @property
    def reserved(self) -> int:
        return sum(len(held[0]) for held in self._held.values())

    def write(self, number: int, start: int, keys_SKD: Tensor) -> None:
        if start == 0:
            self._held[number] = [keys_SKD.clone() for _ in range(2 * self.layers)]
        else:
            self._held[number] = [torch.cat([before, keys_SKD]) for before in self._held[number]]

    def drop(self, number: int) -> None:
        del self._held[number]


class Padded:
    """Tensors of each sequence as long as the longest that may come."""

    def __init__(self, shape: CacheShape, longest: int) -> None:
        self.shape, self.longest, self._held = shape, longest, dict[int, list[Tensor]]()

    @property
    def reserved(self) -> int:
        return len(self._held) * self.longest

    def write(self, number: int, start: int, keys_SKD: Tensor) -> None:
        if start == 0:
            size = (self.longest, self.shape.kv_heads, self.shape.head_dim)
            self._held[number] = [torch.zeros(size) for _ in range(2 * self.shape.layers)]
        for whole in self._held[number]:
            whole[start : start + len(keys_SKD)] = keys_SKD

    def drop(self, number: int) -> None:
        del self._held[number]


def varied(count: int, longest: int, seed: int = 0) -> Trace:
    """Lengths of requests: most short, a few long, as texts are; prompt and rest together at most `longest`."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(longest / 6 * draw.lognormal(0, 0.8, (count, 2)), 1, longest // 2).astype(int)
    return [(int(prompt), int(rest)) for prompt, rest in lengths]


def drive(way: Way, shape: CacheShape, trace: Trace, rows: int) -> list[tuple[int, int]]:
    """Run a trace, `rows` sequences at once, each joining as soon as another is over; (reserved, used) positions a step."""
    waiting, running, seen = list(enumerate(trace)), dict[int, int](), []
    one = torch.ones(1, shape.kv_heads, shape.head_dim)
    while waiting or running:
        while waiting and len(running) < rows:
            number, (prompt, _) = waiting.pop(0)
            way.write(number, 0, one.expand(prompt, -1, -1))
            running[number] = prompt
        seen.append((way.reserved, sum(running.values())))
        for number, length in list(running.items()):
            if length == sum(trace[number]):
                way.drop(number)
                del running[number]
            else:
                way.write(number, length, one)
                running[number] += 1
    return seen
