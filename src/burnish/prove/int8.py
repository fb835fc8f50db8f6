"""Claim: 8-bit weights and activations need no training but a set to calibrate on, and it matters which."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from burnish.compress.int8_model import compress_model
from burnish.compress.int8_table import Table
from burnish.compress.samples import Samples
from burnish.config import ModelConfig
from burnish.describe import Shapes, describe
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.ops.int8_linear import Int8Linear
from burnish.prove.awq import divergence, scores
from burnish.prove.claim import Verdict
from burnish.techniques import int8
from burnish.units import show
from burnish.work import state_bytes

VOCAB, PAD, HIDDEN, SEQ, ROWS = 211, 0, 256, 48, 16
LOUD, EVERY = 3.0, 16  # by how much, and every how many-th channel
BAR = 1.5  # times the loss of the real set
HALF = 0.5001  # a step, and what float32 adds


SHAPE = ModelConfig(
    vocab=VOCAB, hidden=HIDDEN, ffn=256, heads=4, kv_heads=2, layers=2, max_positions=256, tied=False, init_std=0.1
)


def loud_model() -> Decoder:
    """A random decoder in whose embedding a few channels are loud, and the padding's row in one other channel alone: what
    trained models are like (Dettmers et al. 2022, arXiv 2208.07339, section 4), and what no single matrix tells."""
    model = Decoder(SHAPE, torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        model.embed.weight[:, ::EVERY] *= LOUD
        model.embed.weight[PAD] = 0
        model.embed.weight[PAD, 1] = 1
    return model


def real_rows(seed: int) -> Samples:
    """Rows of unequal length without the padding's token."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(SEQ // 2, SEQ + 1, (ROWS,), generator=draw).tolist()
    return Samples.of([torch.randint(1, VOCAB, (n,), generator=draw).tolist() for n in lengths], PAD)


def counted_padding(samples: Samples) -> Samples:
    """The same rows, eight tokens of each, with padding that counts as real."""
    ids = torch.full_like(samples.ids, PAD)
    ids[:, :8] = samples.ids[:, :8]
    return Samples(ids, torch.ones_like(samples.mask))


@contextmanager
def noise(model: Decoder) -> Iterator[None]:
    """Gaussian noise in the place of embeddings."""
    draw = torch.Generator().manual_seed(0)

    def given(_: Any, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
        return torch.randn(out.shape, generator=draw)

    handle = model.embed.register_forward_hook(given)
    try:
        yield
    finally:
        handle.remove()


def tables(model: Decoder, config: int8.Config) -> dict[str, Table]:
    """What each set says."""
    real = real_rows(1)
    found = {"real": int8.search(config, model, real), "padding": int8.search(config, model, counted_padding(real))}
    with noise(model):
        found["noise"] = int8.search(config, model, real)
    return {name: table for name, table in found.items() if table is not None}


def losses() -> dict[str, float]:
    """For each set: divergence from the float model on rows that no set has."""
    return {name: lost for name, (lost, _) in _each(loud_model()).items()}


def _each(model: Decoder) -> dict[str, tuple[float, Decoder]]:
    """For each set: the divergence, and the model in integers."""
    config, judged = int8.Config(calibrator="max", smooth="off"), real_rows(2)
    base, found = scores(model, judged), {}
    for name, table in tables(model, config).items():
        made = copy.deepcopy(model)
        compress_model(made, config.scheme, (), table)
        found[name] = divergence(base, scores(made, judged)), made
    return found


def measure() -> Verdict:
    """The loss for each set, and every matrix against its integers."""
    model, work = loud_model(), describe(SHAPE, Shapes(rows=1, seq=SEQ))
    found = _each(model)
    real = found["real"][0]
    steps = max(furthest(model, made) for _, made in found.values())
    predicted = int(state_bytes(int8.predict(int8.Config(), work, Mesh()))["parameter"])
    made = found["real"][1]
    held = sum(t.nbytes for t in (*made.parameters(), *made.buffers()))
    times = {name: lost / real for name, (lost, _) in found.items() if name != "real"}
    before = sum(p.nbytes for p in model.parameters())
    return Verdict(
        claim="int8",
        statement="8-bit weights and activations are made after training, no weight is trained: each is within half a step of "
        "what it was. How far activations reach is told by no weight, so a set of real samples is needed; noise in their place, "
        "or padding that is counted, costs more.",
        varied="what is calibrated on: real rows, Gaussian noise, rows of mostly padding that is counted",
        held=f"a model of {sum(p.numel() for p in model.parameters()):,} parameters, settings, judged rows",
        expected=f"noise and padding lose >= {BAR:g}x what real rows lose; no weight moves more than half a step; "
        "bytes = predicted",
        measured=f"KL real {real:.2g}, noise {times['noise']:.1f}x, padding {times['padding']:.1f}x; {steps:.3f} steps; "
        f"{show(held, 'bytes')} in memory, predicted {show(predicted, 'bytes')}, was {show(before, 'bytes')}",
        holds=min(times.values()) >= BAR and steps <= HALF and held == predicted,
        why="The step of an activation's integers is its range / 127. A range that is too narrow clips what is larger; one that "
        "is too wide spends the integers on values that do not come.",
        source="Jacob et al. 2017, arXiv 1712.05877; Wu et al. 2020, arXiv 2004.09602",
        code="src/burnish/techniques/int8.py, src/burnish/compress/ranges.py, src/burnish/compress/calibrators.py",
    )


@torch.no_grad()
def furthest(model: Decoder, made: Decoder) -> float:
    """The largest distance of a weight from what its integer stands for, in steps of its output."""
    found = 0.0
    for name, module in made.named_modules():
        if isinstance(module, Int8Linear):
            apart = (module.dequantized() - model.get_parameter(f"{name}.weight")).abs() / module.weight_scale
            found = max(found, float(apart.max()))
    return found
