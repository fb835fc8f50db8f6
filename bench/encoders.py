"""Encoders on real weights: vectors beside transformers, sentences a second, a classifier trained: bench/results/encoders.json.

The model is all-MiniLM-L6-v2; the sentences and passages are those of the novels that come with the package.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer

from burnish.data.batch import Batch
from burnish.data.labelled import labelled_rows
from burnish.data.text import Texts
from burnish.evaluation.task import evaluate_task
from burnish.export.encoder import save_encoder
from burnish.load.encoder import load_encoder
from burnish.load.folder import open_folder
from burnish.load.wheels import fetched
from burnish.recipe_files import load
from burnish.serve.embed import Embedder
from burnish.train.classification import ClassificationLoss, with_head
from burnish.train.optim import build_optimizer
from burnish.train.step import plain_trainable
from record import record

NOVELS = ("emma", "mansfield_park", "northanger_abbey", "persuasion", "pride_and_prejudice", "sense_and_sensibility")
SENTENCES, ROUNDS, PADDED, THREADS = 200, 5, 32, 1
TRAIN, HELD_OUT, EPOCHS, LENGTH, RATE = 48, 24, 3, 512, 1e-4


def novel(name: str) -> str:
    (text,) = Texts.open([f"asset:austen/{name}"]).documents()
    return " ".join(text.split())


def naive(folder: Path, sentences: list[str]) -> Callable[[], np.ndarray]:
    """transformers as its pages show it: batches in the order given, padded to their longest, mean over the mask."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def run() -> np.ndarray:
        vectors = []
        for at in range(0, len(sentences), PADDED):
            some = sentences[at : at + PADDED]
            given = tokenizer(some, padding=True, truncation=True, max_length=256, return_tensors="pt")
            mask = given["attention_mask"][..., None]
            hidden = model(**given).last_hidden_state
            vectors.append(F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).numpy())
        return np.concatenate(vectors)

    return run


def vectors(folder: Path) -> dict[str, float]:
    """Least cosine between the two, and sentences a second of each: medians of alternating rounds."""
    parts = [p.strip() for p in re.split(r"(?<=[.!?]) ", novel("persuasion")) if len(p) > 15]
    sentences = random.Random(0).sample(parts, SENTENCES)
    made = Embedder.of(open_folder(folder))
    theirs = naive(folder, sentences)
    ways = {"ours": lambda: made.embed(sentences), "transformers": theirs}
    found = {name: way() for name, way in ways.items()}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            rates[name].append(SENTENCES / (time.perf_counter() - began))
    return {
        "least_cosine": float((found["ours"] * found["transformers"]).sum(1).min()),
        "sentences_per_second": statistics.median(rates["ours"]),
        "transformers_sentences_per_second": statistics.median(rates["transformers"]),
        "times_transformers": statistics.median(a / b for a, b in zip(*rates.values(), strict=True)),
    }


def passages() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Passages of each novel, its first parts to learn and its last to be judged on."""
    learned, held = [], []
    for name in NOVELS:
        words = novel(name).split()
        cut = [" ".join(words[at : at + 60]) for at in range(0, len(words) - 60, len(words) // (TRAIN + HELD_OUT + 8))]
        rows = [{"text": text, "label": name} for text in cut[: TRAIN + HELD_OUT]]
        learned, held = learned + rows[:TRAIN], held + rows[TRAIN:]
    random.Random(0).shuffle(learned)
    return learned, held


def classifier(folder: Path) -> dict[str, float]:
    """Which novel a passage is from: nearest means of the vectors as they are, then a head and the body trained."""
    learned, held = passages()
    with tempfile.TemporaryDirectory() as scratch:
        task = Path(scratch) / "held.jsonl"
        task.write_text("".join(json.dumps(row) + "\n" for row in held), encoding="utf-8")
        before = evaluate_task(open_folder(folder), task)
        body, config = load_encoder(open_folder(folder))
        model, config = with_head(body, config, NOVELS, generator=torch.Generator().manual_seed(0))
        texts = Embedder.of(open_folder(folder)).tokenizer.encode([row["text"] for row in learned])
        rows = labelled_rows(texts, [NOVELS.index(row["label"]) for row in learned], LENGTH, config.pad)
        loss, settings = ClassificationLoss(model), load("quickstart").optim
        trainable = plain_trainable(loss, build_optimizer(loss, settings), settings.clip)
        began, last = time.perf_counter(), 0.0
        for step in range(EPOCHS * (len(rows) // 2)):
            at = step * 2 % (len(rows) // 2 * 2)
            last = trainable.step([Batch.of(rows[at : at + 2])], RATE).loss
        seconds = time.perf_counter() - began
        save_encoder(model.eval(), config, Path(scratch) / "m", tokenizer=folder)
        after = evaluate_task(open_folder(Path(scratch) / "m"), task)
    return {
        "nearest_mean_accuracy": before.scores["accuracy"],
        "trained_accuracy": after.scores["accuracy"],
        "trained_macro_f1": after.scores["macro_f1"],
        "last_loss": last,
        "seconds": seconds,
        "passages_learned": len(learned),
        "passages_held_out": len(held),
    }


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    place = fetched("minilm")
    values = {**vectors(place), **classifier(place), "threads": THREADS}
    print(record("encoders", values), values)
