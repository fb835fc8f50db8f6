"""INT8 after training: what calibration decides, on real weights: bench/results/int8.json.

MiniLM's weights are float32. Vectors are held against those of the model itself; a logistic regression on the vectors of mails
tells spam from ham. Calibration sets: mails, Gaussian noise in place of embeddings, random tokens, padding that is counted; the
same for SmolLM2 and for the model of the claim.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import int8_decoder
from burnish.compress.calibrators import CALIBRATORS
from burnish.compress.int8_table import Table
from burnish.compress.ranges import ranges
from burnish.compress.samples import Samples
from burnish.load.folder import open_folder
from burnish.load.labelled_sets import SPAM, labelled
from burnish.load.wheels import fetched
from burnish.mesh import Mesh
from burnish.prove import int8 as claim
from burnish.serve.embed import Embedder, Vectors
from burnish.techniques import int8
from burnish.techniques.int8 import Config
from int8_sets import counted_padding, noise, random_tokens
from record import record

THREADS, LENGTH = 1, 128
LEARNED, JUDGED, CALIBRATED, HELD, SHORT = 600, 1000, 64, 150, 12
PENALTY, NEWTON = 1e-2, 15


def mails() -> tuple[list[str], NDArray[np.int64]]:
    """Texts in an order of their own and 1 for spam, each text once."""
    rows = [json.loads(line) for line in labelled(SPAM).read_text(encoding="utf-8").splitlines()]
    single = list({row["text"]: row for row in rows}.values())
    single.sort(key=lambda row: hashlib.sha256(row["text"].encode()).digest())
    return [row["text"] for row in single], np.array([row["label"] == "spam" for row in single], dtype=np.int64)


def regression(vectors: Vectors, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weights of a logistic regression with a constant, by Newton's method, float64."""
    x = np.concatenate([vectors, np.ones((len(vectors), 1))], 1).astype(np.float64)
    weights = np.zeros(x.shape[1])
    for _ in range(NEWTON):
        p = 1 / (1 + np.exp(-x @ weights))
        slope = x.T @ (p - labels) + PENALTY * weights
        weights -= np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + PENALTY * np.eye(len(weights)), slope)
    return weights


def accuracy(weights: NDArray[np.float64], vectors: Vectors, labels: NDArray[np.int64]) -> float:
    """Percent right."""
    return 100 * float((((vectors @ weights[:-1] + weights[-1]) > 0) == labels).mean())


def compressed(embedder: Embedder, config: Config, samples: Samples) -> tuple[Embedder, Table | None]:
    """The encoder in integers."""
    model = copy.deepcopy(embedder.model)
    table = int8.search(config, model, samples)
    return replace(embedder, model=int8.apply(config, model, Mesh(), table)), table


def cosine(ours: Vectors, wanted: Vectors) -> tuple[float, float]:
    """Mean and least over texts."""
    found = (ours * wanted).sum(1)
    return float(found.mean()), float(found.min())


def calibration_sets(embedder: Embedder, real: Samples, texts: list[str], wanted: Vectors) -> dict[str, float]:
    """1 - mean cosine by what was calibrated on, for two calibrators that do not look at what comes out."""
    found, model = {}, embedder.model
    for calibrator in ("max", "relative"):
        config = Config(calibrator=calibrator, smooth="off")
        sets = {
            "mails": real,
            "random tokens": random_tokens(real, 30_000),
            "padding": counted_padding(real, SHORT, LENGTH),
        }
        tables = {name: int8.search(config, model, samples) for name, samples in sets.items()}
        with noise(model):
            tables["noise"] = int8.search(config, model, real)
        for name, table in tables.items():
            made = replace(embedder, model=int8.apply(config, copy.deepcopy(model), Mesh(), table))
            found[f"{name}, {calibrator}"] = 1 - cosine(made.embed(texts), wanted)[0]
    return found


def any_order(model: Any, real: Samples) -> float:
    """The largest relative difference of a threshold when rows come in another order and in other batches."""
    order = torch.randperm(len(real.ids), generator=torch.Generator().manual_seed(0))
    shuffled = Samples(real.ids[order], real.mask[order])
    found = [ranges(model, own, rows=rows) for own, rows in ((real, 8), (shuffled, 5))]
    pairs = [
        (rule(found[0][name].histogram, 99.999), rule(found[1][name].histogram, 99.999))
        for rule in CALIBRATORS.values()
        for name in found[0]
    ]
    return max(abs(a - b) / a for a, b in pairs)


def heavy_tails(model: Any, real: Samples) -> tuple[int, int]:
    """Tensors whose entropy threshold is below their largest value, and tensors in all."""
    seen = [one.histogram for one in ranges(model, real).values()]
    return sum(CALIBRATORS["entropy"](one, 0) < 0.99 * one.largest for one in seen), len(seen)


def main() -> None:
    """Everything, in about the time of eight thousand texts."""
    torch.set_num_threads(THREADS)
    embedder = Embedder.of(open_folder(fetched("minilm")))
    embedder.tokenizer._inner.enable_truncation(LENGTH)
    texts, labels = mails()
    learned, judged = texts[:LEARNED], texts[LEARNED : LEARNED + JUDGED]
    rest = texts[LEARNED + JUDGED :]
    real = Samples.of([text.ids for text in embedder.tokenizer.encode(rest[:CALIBRATED])])
    weights = regression(embedder.embed(learned), labels[:LEARNED])
    wanted, truth = embedder.embed(judged), labels[LEARNED : LEARNED + JUDGED]
    plain = accuracy(weights, wanted, truth)
    values: dict[str, float] = {"accuracy.float": plain}
    settings = {
        "static": Config(),
        "dynamic": Config(activations="dynamic"),
        **{f"static {name}": Config(calibrator=name, smooth="off") for name in CALIBRATORS},
        "down kept": Config(calibrator="max", smooth="off", keep=("mlp.down",)),
    }
    for name, config in settings.items():
        began = time.perf_counter()
        made, _ = compressed(embedder, config, real)
        values[f"seconds.{name}"] = time.perf_counter() - began
        count = JUDGED if name in ("static", "dynamic") else HELD
        vectors = made.embed(judged[:count])
        values[f"cosine.{name}"], values[f"least_cosine.{name}"] = cosine(vectors, wanted[:count])
        if count == JUDGED:
            values[f"accuracy.{name}"] = accuracy(weights, vectors, truth)
            values[f"drop.{name}"] = plain - values[f"accuracy.{name}"]
    lost = calibration_sets(embedder, real, judged[:HELD], wanted[:HELD])
    values |= {f"lost.{name}": value for name, value in lost.items()}
    values["order_difference"] = any_order(embedder.model, real)
    values |= {f"claim.{name}": value for name, value in claim.losses().items()}
    values |= int8_decoder.measured()
    values["entropy_below_largest"], values["tensors"] = heavy_tails(embedder.model, real)
    print(record("int8", values), json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
