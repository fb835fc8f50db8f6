"""Encoder tasks: classes guessed by a head or by the nearest mean, and cosines of pairs beside people's scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from burnish.data.table_file import number_of_row, text_of_row
from burnish.errors import UserError, nearest
from burnish.evaluation.classes import ClassCounts, accuracy, counted, macro_f1, nearest_mean
from burnish.evaluation.correlation import pearson, spearman
from burnish.evaluation.task_score import Job, TaskScore
from burnish.serve.embed import Embedder, Text


def judge_classes(job: Job) -> TaskScore:
    """The class with the highest score of the encoder's head."""
    made = _embedder(job)
    labels = made.config.labels
    truth = [labels[_class_of(row["label"], labels, where)] for where, row in job.rows]
    texts = _texts(job)
    scores = made.classify(texts, progress=lambda done: job.done(done, len(texts)))
    if not np.isfinite(scores).all():
        raise UserError(f"{job.checkpoint.where}: the model's scores are not finite")
    return _of_guesses("the head's class of each text", truth, [labels[k] for k in scores.argmax(1)])


def judge_nearest(job: Job) -> TaskScore:
    """The class whose mean vector is nearest, each text left out of its own class's mean."""
    made = _embedder(job)
    truth = [_name_of(row["label"], where) for where, row in job.rows]
    if len(set(truth)) < 2:
        raise UserError(f"{_file(job)}: every label is {truth[0]!r}; at least two classes are needed")
    guessed = nearest_mean(_vectors(made, _texts(job), job), truth)
    about = "the class whose mean vector is nearest, each text left out of its own class's mean"
    return _of_guesses(f"{about}; vectors: {made.pooling}", truth, guessed)


def judge_correlation(job: Job) -> TaskScore:
    """Correlation of the cosine of a pair's vectors with the score it was given."""
    made = _embedder(job)
    given = [number_of_row(row, "score", where) for where, row in job.rows]
    pairs = _texts(job)
    vectors = _vectors(made, [text for pair in pairs for text in pair], job).astype(np.float64)
    one, two = vectors[0::2], vectors[1::2]
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    cosines = (one * two).sum(1) / np.maximum(lengths, np.finfo(np.float64).tiny)
    scores = {"spearman": spearman(cosines, given), "pearson": pearson(cosines, given)}
    if any(map(math.isnan, scores.values())):
        same = "score" if np.ptp(np.asarray(given)) == 0 else "cosine"
        raise UserError(f"{_file(job)}: every {same} is the same, so there is no correlation with it")
    return TaskScore(f"cosine of {len(given):,} pairs beside their scores; vectors: {made.pooling}", len(given), scores)


def _embedder(job: Job) -> Embedder:
    made = Embedder.of(job.checkpoint, job.device)
    return made if job.model is None else replace(made, model=job.model)


def _of_guesses(about: str, truth: Sequence[str], guessed: Sequence[str]) -> TaskScore:
    found: dict[str, ClassCounts] = dict(counted(truth, guessed))
    total = sum(c.there for c in found.values())
    scores = {"accuracy": accuracy(found), "macro_f1": macro_f1(found)}
    classes: dict[str, dict[str, float]] = {
        name: {"there": c.there, "guessed": c.guessed, "right": c.right, "f1": c.f1} for name, c in found.items()
    }
    right = tuple(one == other for one, other in zip(truth, guessed, strict=True))
    return TaskScore(f"{about}: {total:,} texts", total, scores, classes, right)


def _vectors(made: Embedder, texts: list[Any], job: Job) -> np.ndarray:
    found = made.embed(texts, progress=lambda done: job.done(done, len(texts)))
    if not np.isfinite(found).all():
        raise UserError(f"{job.checkpoint.where}: the model's vectors are not finite")
    return found


def _texts(job: Job) -> list[Text]:
    """The text, or the two texts, of each row."""
    found = [[text_of_row(row, column, where) for column in job.texts] for where, row in job.rows]
    return [texts[0] if len(texts) == 1 else (texts[0], texts[1]) for texts in found]


def _class_of(label: object, labels: tuple[str, ...], where: str) -> int:
    """A label by its name, else by its number from 0."""
    name = _name_of(label, where)
    if name in labels:
        return labels.index(name)
    if name.isdecimal() and int(name) < len(labels):
        return int(name)
    raise UserError(f"{where}: label {name!r} is no class of this model; {nearest(name, labels)}")


def _name_of(label: object, where: str) -> str:
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        raise UserError(f"{where}: label {label!r}; it is the name of a class, or its number")
    return str(label)


def _file(job: Job) -> str:
    return job.rows[0][0].rpartition(", line ")[0]
