"""Claim: AWQ keeps weights alone in 4 bits, and a few rows of text, without training, find the channels that matter."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import Tensor

from burnish.compress.fold import apply_fold, folds_of
from burnish.compress.samples import Samples
from burnish.config import ModelConfig
from burnish.describe import Shapes, describe
from burnish.export.compressed_tensors import save_compressed
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.ops.int4_linear import Int4Linear
from burnish.prove.claim import Verdict
from burnish.techniques import awq
from burnish.units import show
from burnish.weight_format import file_bytes
from burnish.work import state_bytes

SEQ, FEW, MANY, JUDGED = 64, 8, 128, 16  # tokens a row, rows
LOUD, EVERY = 50.0, 16  # by how much, and every how many-th channel
GROUP: Literal[64] = 64
BAR, GAIN_BAR = 0.25, 0.9


def outlier_model() -> Decoder:
    """A random decoder whose norms make a few channels loud, while their weights are as much smaller: the same function as
    without, and what trained models are like (Dettmers et al. 2022, arXiv 2208.07339, section 4)."""
    shape = ModelConfig(
        vocab=211, hidden=128, ffn=256, heads=4, kv_heads=2, layers=2, max_positions=SEQ, tied=False, init_std=0.1
    )
    model = Decoder(shape, torch.Generator().manual_seed(0)).eval()
    quiet = torch.ones(shape.hidden)
    quiet[::EVERY] = 1 / LOUD
    for block in model.layers:
        for fold in folds_of(shape):
            if fold.source.endswith("norm"):
                apply_fold(block, fold, quiet)
    return model


def random_rows(model: Decoder, rows: int, seed: int) -> Samples:
    """Rows of random tokens of unequal length."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(SEQ // 2, SEQ + 1, (rows,), generator=draw).tolist()
    return Samples.of([torch.randint(model.shape.vocab, (n,), generator=draw).tolist() for n in lengths])


@torch.no_grad()
def scores(model: Decoder, samples: Samples) -> Tensor:
    """Log probabilities of the real tokens [T, V], float64."""
    found = [model.logits(model(ids, mask_BS=mask))[mask] for ids, mask in samples.batches(4)]
    return torch.cat(found).double().log_softmax(-1)


def divergence(base: Tensor, found: Tensor) -> float:
    """Mean Kullback-Leibler divergence from one to the other, nats a token."""
    return float((base.exp() * (base - found)).sum(-1).mean())


def compressed(model: Decoder, config: awq.Config, samples: Samples | None) -> Decoder:
    """A copy with integers."""
    table = awq.search(config, model, samples)
    made: Decoder = awq.apply(config, copy.deepcopy(model), Mesh(), table)
    return made


def sizes(model: Decoder, made: Decoder, config: awq.Config) -> tuple[tuple[int, int], tuple[int, int]]:
    """(bytes in memory, bytes of files), predicted from the description and as they are."""
    work = awq.predict(config, describe(model.shape, Shapes(rows=1, seq=SEQ)), Mesh())  # type: ignore[arg-type]
    predicted = int(state_bytes(work)["parameter"]), file_bytes(model.shape, config.scheme, 2**40)  # type: ignore[arg-type]
    held = sum({t.data_ptr(): t.nbytes for t in (*made.parameters(), *made.buffers())}.values())
    with TemporaryDirectory() as scratch:
        save_compressed(made, model.shape, Path(scratch) / "model")  # type: ignore[arg-type]
        written = sum(file.stat().st_size for file in (Path(scratch) / "model").glob("*.safetensors"))
    return predicted, (held, written)


def measure() -> Verdict:
    """Round to nearest, and with scales from few and from many rows, and set the divergences beside each other."""
    model, config = outlier_model(), awq.Config(group=GROUP)
    judged = random_rows(model, JUDGED, seed=9)
    base, before = scores(model, judged), copy.deepcopy(model.state_dict())
    rounded = compressed(model, config.model_copy(update={"method": "rtn"}), None)
    many = random_rows(model, MANY, seed=1)
    made = {rows: compressed(model, config, many.first(rows)) for rows in (FEW, MANY)}
    plain, few, lots = (divergence(base, scores(one, judged)) for one in (rounded, *made.values()))
    untouched = all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    integers = [module for module in made[FEW].modules() if isinstance(module, Int4Linear)]
    trained = sum(p.requires_grad for module in integers for p in module.parameters())
    predicted, measured = sizes(model, made[FEW], config)
    gain = (plain - few) / (plain - lots)
    return Verdict(
        claim="awq",
        statement="AWQ is weight-only: matrices become 4-bit integers, activations stay as they are. It scales the channels "
        "that activations show to matter, found by a search over a few rows of text, and trains nothing.",
        varied=f"no scales; scales from {FEW} rows and from {MANY}",
        held=f"{sum(t.numel() for t in before.values()):,} parameters, groups of {GROUP}, every {EVERY}th channel {LOUD:g} "
        f"times louder with weights as much smaller; {JUDGED} rows to judge by",
        expected=f"divergence <= {BAR:g}x of rounding alone; {FEW} rows >= {GAIN_BAR:.0%} of the gain of {MANY}; "
        f"{show(predicted[0], 'bytes')} in memory, {show(predicted[1], 'bytes')} of files to the byte; nothing trained",
        measured=f"{few / plain:.3f}x ({plain:.4f} to {few:.4f} nats); {gain:.1%} of the gain; {show(measured[0], 'bytes')} "
        f"and {show(measured[1], 'bytes')}, {'as' if predicted == measured else 'not as'} predicted; {trained} trained",
        holds=few <= BAR * plain and gain >= GAIN_BAR and predicted == measured and untouched and not trained,
        why="An error of a weight costs by the square of what it is multiplied with. Scaling a loud channel's weights up "
        "before rounding makes their error smaller and hardly moves the step of their group, which its largest weight sets. "
        "Means over tokens decide, and a few rows give these.",
        source="Lin et al. 2023, arXiv 2306.00978",
        code="src/burnish/techniques/awq.py, src/burnish/compress/awq_scales.py",
    )
