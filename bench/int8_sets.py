"""Sets to calibrate on that are not what will be read: random tokens, noise, padding that counts as real."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from burnish.compress.samples import Samples


def random_tokens(real: Samples, vocab: int, first: int = 1000) -> Samples:
    """Rows as long as the real ones, of any tokens but the first."""
    drawn = random.Random(0)
    return Samples.of([[drawn.randrange(first, vocab) for _ in range(int(row.sum()))] for row in real.mask])


def counted_padding(real: Samples, kept: int, width: int) -> Samples:
    """The first `kept` tokens of each row, and padding up to `width` that counts as real."""
    ids = torch.zeros(len(real.ids), width, dtype=torch.int64)
    ids[:, :kept] = real.ids[:, :kept]
    return Samples(ids, torch.ones_like(ids, dtype=torch.bool))


@contextmanager
def noise(model: Any) -> Iterator[None]:
    """Embeddings replaced by Gaussian noise of the table's own mean and deviation."""
    drawn, table = torch.Generator().manual_seed(0), model.embed.weight.detach()

    def given(_: Any, inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
        return torch.randn(out.shape, generator=drawn) * table.std() + table.mean()

    handle = model.embed.register_forward_hook(given)
    try:
        yield
    finally:
        handle.remove()
