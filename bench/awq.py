"""Weights of 4 bits beside rounding to nearest: bench/results/awq.json.

A model with loud channels, the trained quickstart model of the tests, and SmolLM2 (whose weights come from a file of 4-bit
blocks, so that losses are optimistic). Calibrated on five novels, judged on the sixth.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from burnish.compress.awq_table import Table
from burnish.compress.sample_files import read_samples
from burnish.compress.samples import Samples
from burnish.evaluation.text import TextScore, perplexity
from burnish.export.compressed_tensors import save_compressed
from burnish.load.checkpoint import Checkpoint
from burnish.load.model import load_model
from burnish.load.source import open_model
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.models.layers import Linear
from burnish.ops.int4_linear import Int4Linear
from burnish.prove import awq as claim
from burnish.techniques import awq
from burnish.weight_format import file_bytes
from counted import ROOT
from record import record
from watched import watched

TRAINED = ROOT / "tests" / "fixtures" / "quickstart"
NOVELS = tuple(
    f"asset:austen/{name}"
    for name in ("emma", "mansfield_park", "northanger_abbey", "pride_and_prejudice", "sense_and_sensibility")
)
HELD_OUT = ("asset:austen/persuasion",)
FEW, MANY, JUDGED, LENGTH = 8, 128, 16, 256  # rows and tokens a row of the trained model
ROWS, WINDOWS, LONG = 8, 16, 512  # of SmolLM2
TRAINED_CONFIG = awq.Config(group=32)  # its feed-forward part has 352 inputs, which 64 does not divide
SMOLLM2_CONFIG = awq.Config(group=64, symmetric=False)


def as_floats(model: Decoder) -> Decoder:
    """The same model with its integers turned back once, so that judging it is quick."""
    for name, module in list(model.named_modules()):
        if isinstance(module, Int4Linear):
            plain = Linear(module.in_features, module.out_features)
            plain.weight.data = module.dequantized()
            model.set_submodule(name, plain)
    return model


def made(model: Decoder, config: awq.Config, table: Table | None) -> Decoder:
    copied: Decoder = awq.apply(config, copy.deepcopy(model), Mesh(), table)
    return as_floats(copied)


def worst(table: Table | None) -> float:
    """The largest error of a fold in parts of what rounding alone gives."""
    assert table is not None
    return max(row.loss / row.rounded for layer in table.layers for row in layer.folds if row.rounded)


def loud() -> dict[str, float]:
    """The claim's model."""
    model = claim.outlier_model()
    judged = claim.random_rows(model, claim.JUDGED, seed=9)
    base = claim.scores(model, judged)
    config = awq.Config(group=claim.GROUP)
    rtn = claim.compressed(model, config.model_copy(update={"method": "rtn"}), None)
    own = claim.compressed(model, config, claim.random_rows(model, claim.FEW, seed=1))
    found = [claim.divergence(base, claim.scores(one, judged)) for one in (own, rtn)]
    return {"kl": found[0], "kl_rounded": found[1], "ratio": found[0] / found[1]}


def trained() -> dict[str, float]:
    """The quickstart model: divergence with few and many rows."""
    checkpoint = open_model(str(TRAINED))
    model, _ = load_model(checkpoint, dtype=torch.float32)
    judged, _ = read_samples(checkpoint, HELD_OUT, JUDGED, LENGTH)
    base = claim.scores(model, judged)
    rtn = claim.divergence(
        base, claim.scores(made(model, TRAINED_CONFIG.model_copy(update={"method": "rtn"}), None), judged)
    )
    few, many = (searched(model, checkpoint, rows) for rows in (FEW, MANY))
    one, two = (claim.divergence(base, claim.scores(made(model, TRAINED_CONFIG, t), judged)) for t in (few, many))
    return {
        "kl": one,
        "kl_many": two,
        "kl_rounded": rtn,
        "ratio": one / rtn,
        "gain_of_few": (rtn - one) / (rtn - two),
        "worst_fold": max(worst(few), worst(many)),
    }


def searched(model: Decoder, checkpoint: Checkpoint, rows: int) -> Table | None:
    samples, _ = read_samples(checkpoint, NOVELS, rows, LENGTH)
    return awq.search(TRAINED_CONFIG, model, samples)


def window_perplexity(model: Decoder, samples: Samples) -> float:
    """Of rows of text, each a text of its own."""
    total = TextScore(0.0, 0, 0)
    for row, mask in zip(samples.ids, samples.mask, strict=True):
        ids = row[mask].tolist()
        total = total.plus(perplexity(model, ids, len(ids), len(ids) - 1))
    return math.exp(total.nats / total.tokens)


def smollm2() -> dict[str, float]:
    """Perplexity of float weights, rounded ones and scaled ones; what the search took; bytes of the folder."""
    checkpoint = open_model("smollm2")
    model, config = load_model(checkpoint, dtype=torch.float32)
    samples, _ = read_samples(checkpoint, NOVELS, ROWS, LONG)
    judged, _ = read_samples(checkpoint, HELD_OUT, WINDOWS, LONG)
    values: dict[str, float] = {}
    with watched(values):
        table = awq.search(SMOLLM2_CONFIG, model, samples)
    values |= {"worst_fold": worst(table), "perplexity": window_perplexity(model, judged)}
    plain = SMOLLM2_CONFIG.model_copy(update={"method": "rtn"})
    values["perplexity_rounded"] = window_perplexity(made(model, plain, None), judged)
    values["perplexity_awq"] = window_perplexity(made(model, SMOLLM2_CONFIG, table), judged)
    values["rise"] = values["perplexity_awq"] - values["perplexity"]
    values["rise_ratio"] = values["rise"] / (values["perplexity_rounded"] - values["perplexity"])
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        save_compressed(awq.apply(SMOLLM2_CONFIG, model, Mesh(), table), config, folder, tokenizer=checkpoint.tokenizer)
        values["file_bytes"] = float(sum(file.stat().st_size for file in folder.glob("*.safetensors")))
    values["file_bytes_off"] = values["file_bytes"] - file_bytes(config, SMOLLM2_CONFIG.scheme, 5 * 2**30)
    return values


def flat(parts: dict[str, dict[str, float]]) -> dict[str, float]:
    """{"loud": {"kl": 1}} as {"loud.kl": 1}, which the table of bars reads."""
    return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    values = {"loud": loud(), "trained": trained()}
    print(values, flush=True)
    values["smollm2"] = smollm2()
    print(record("awq", flat(values)), values["smollm2"])
