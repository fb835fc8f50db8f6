"""What a runner is fitted to before it serves: scales of keys and values in 8 bits, and a vocabulary's matrix in 4.

Both are found on texts. Without any the model writes some by itself: what it will hold when it is asked is like that (the idea of
Liu et al. 2023, "LLM-QAT", arXiv 2305.17888, section 3.1). Random tokens do not serve: their keys and values are smaller than
those of any text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from burnish.compress.gptq import gptq
from burnish.compress.gram import Gram
from burnish.compress.samples import Samples
from burnish.errors import UserError
from burnish.models.decoder import Decoder
from burnish.ops.int4_linear import Integers
from burnish.serve.engine import Engine, Limits, Output, Request
from burnish.serve.rounding import Scales, scales_of
from burnish.serve.runners.runner import Fit, Fitted, Runner
from burnish.serve.sampling import Sampling
from burnish.weight_format import IntWeights

TEXTS, LENGTH, SEED = 8, 96, 0  # that the model writes
ROWS, LONGEST = 16, 256  # of texts that are given, and their tokens
HEAD = IntWeights(4, 32, symmetric=False, dtype="float32")
Texts = Sequence[list[int]]  # token ids


def fit_to(model: Decoder, kv: bool, head: bool, texts: Texts | None = None) -> Fit | None:
    """How a runner of `model` is fitted; None where nothing is asked for. Raises UserError for a head that groups do not fit."""
    if head:
        width = model.shape.hidden
        if width % HEAD.group:
            raise UserError(f"--head int4: {width} is no multiple of {HEAD.group}; int8 or float32 works")
    return partial(_fitted, model, kv, head, texts) if kv or head else None


def _fitted(model: Decoder, kv: bool, head: bool, texts: Texts | None, runner: Runner) -> Fitted:
    read, scales = list(texts or ()), None
    if kv or not texts:
        passes = list(_read(runner, texts))
        read = [row for rows, _ in passes for row in rows]
        scales = Scales(*(torch.stack(parts).amax(0) for parts in zip(*(own for _, own in passes), strict=True)))
    return Fitted(scales if kv else None, _head(model, read, runner.threads) if head else None)


def _read(runner: Runner, texts: Texts | None) -> Iterator[tuple[Texts, Scales]]:
    """Let a runner go through texts, some at once, over a pool of its own type: what was read and written, and how large that
    was. Without texts it writes them, each from a token drawn at random on."""
    shape = runner.config
    drawn = [[int(token)] for token in np.random.default_rng(SEED).integers(shape.vocab, size=TEXTS)]
    rows = [list(row) for row in texts or drawn]
    length = min(shape.max_positions, max(map(len, rows)) + 1 if texts else LENGTH)
    engine = Engine(runner, Limits(pages=TEXTS, page=length, rows=TEXTS, tokens=max(TEXTS, length)))
    for first in range(0, len(rows), TEXTS):
        part = rows[first : first + TEXTS]
        for number, row in enumerate(part):
            new = 1 if texts else length - 1
            asked = Request(tuple(row[: length - new]), Sampling(new, temperature=1.0, seed=SEED + number))
            engine.submit(asked, partial(_written, row))
        while engine.busy:
            engine.step()
        turned = not shape.traits.learned_positions
        yield part, scales_of(engine.pool.keys, engine.pool.values, turned)


def _written(row: list[int], output: Output) -> None:
    if output.reason == "error":
        raise UserError("the model's scores are not finite; its weights may be damaged or its dtype too narrow")
    row.extend(output.ids)


@torch.inference_mode()
def _head(model: Decoder, texts: Texts, threads: int) -> Integers:
    """The vocabulary's matrix of scores, rounded for the hidden states of these texts."""
    seen, before = Gram(model.shape.hidden), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        samples = Samples.of([row[: model.shape.max_positions] for row in texts])
        for ids, mask in samples.batches(TEXTS):
            seen.add(model(ids)[mask])
        weight: Tensor = model.head.weight
        return gptq(weight, seen.mean, HEAD)
    finally:
        torch.set_num_threads(before)
