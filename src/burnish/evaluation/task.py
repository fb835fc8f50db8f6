"""Task: judge a model by labelled examples; the columns of the file and the kind of the model decide how.

    columns                                         model                        judged by
    text, label (or a pair of texts and label)      encoder with a head          accuracy, macro F1, counts of each class
    text, label                                     encoder without a head       nearest mean of a class, itself left out
    a pair of texts, score                          encoder without a head       correlation of the cosine with the score
    prompt, choices, answer                         decoder                      likelihood of each choice
    prompt, answer                                  decoder                      exact match of greedy text

A pair of texts is text_a, text_b or sentence1, sentence2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.data.table_file import table_rows
from burnish.errors import UserError
from burnish.evaluation.decoder_tasks import judge_answers, judge_choices
from burnish.evaluation.encoder_tasks import judge_classes, judge_correlation, judge_nearest
from burnish.evaluation.task_score import Job, Rows, TaskScore
from burnish.load.checkpoint import Checkpoint
from burnish.load.encoder import is_encoder, load_encoder_config

CLASSIFIER, EMBEDDER, DECODER = "an encoder that classifies texts", "an encoder without a head", "a decoder"
PAIRS = (("text_a", "text_b"), ("sentence1", "sentence2"))


@dataclass(frozen=True)
class Way:
    """How a kind of model is judged by a file with these columns."""

    columns: tuple[str, ...]
    model: str
    judge: Callable[[Job], TaskScore]
    texts: tuple[str, ...] = field(default=("text",))


# The first that fits counts.
WAYS = (
    *(Way((*pair, "label"), CLASSIFIER, judge_classes, pair) for pair in PAIRS),
    Way(("text", "label"), CLASSIFIER, judge_classes),
    *(Way((*pair, "score"), EMBEDDER, judge_correlation, pair) for pair in PAIRS),
    Way(("text", "label"), EMBEDDER, judge_nearest),
    Way(("prompt", "choices", "answer"), DECODER, judge_choices, ("prompt",)),
    Way(("prompt", "answer"), DECODER, judge_answers, ("prompt",)),
)


def evaluate_task(
    checkpoint: Checkpoint,
    path: str | Path,
    *,
    batch: int = 8,
    new_tokens: int = 64,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    model: Any = None,
) -> TaskScore:
    """Judge the model of a checkpoint by a .jsonl or .csv file. `batch`: rows of a decoder at once; `new_tokens`: most that
    it writes for an answer. `model`: judged in the place of the checkpoint's own weights.

    Raises UserError naming file and line for every fault of the file, and for columns and a kind of model that do not go
    together.
    """
    rows = list(table_rows(path))
    way = way_of(rows[0][1], kind_of(checkpoint), checkpoint.where, str(path))
    _check_columns(rows, way)
    return way.judge(Job(checkpoint, rows, way.texts, batch, new_tokens, device, progress, model))


def kind_of(checkpoint: Checkpoint) -> str:
    """What kind of model a checkpoint holds, as far as judging goes. Raises UserError for a head that gives no class of a
    text."""
    if not is_encoder(checkpoint):
        return DECODER
    head = load_encoder_config(checkpoint).head
    if head == "tokens":
        raise UserError(f"{checkpoint.where}: classifies tokens; files of classes of texts cannot judge it")
    return EMBEDDER if head == "none" else CLASSIFIER


def way_of(row: Mapping[str, Any], kind: str, where: str, path: str) -> Way:
    """How this kind of model is judged by a file with such rows. Raises UserError naming the columns that would do."""
    for way in WAYS:
        if way.model == kind and set(way.columns) <= row.keys():
            return way
    wanted = " or ".join(", ".join(way.columns) for way in WAYS if way.model == kind)
    raise UserError(f"{path}: has columns {', '.join(row)}; {where} is {kind}, judged by {wanted}")


def _check_columns(rows: Rows, way: Way) -> None:
    for where, row in rows:
        if missing := [name for name in way.columns if name not in row]:
            raise UserError(f"{where}: no column {missing[0]!r}, which the first row has")


def task_lines(found: TaskScore) -> Sequence[str]:
    """What a person reads: how it was judged, scores, then classes one a line."""
    scores = [f"{name.replace('_', ' ')}: {value:.4f}" for name, value in found.scores.items()]
    classes = [
        f"  {name}: {row['right']} right of {row['there']} there and {row['guessed']} guessed, F1 {row['f1']:.4f}"
        for name, row in found.classes.items()
    ]
    return (found.about, *scores, *(["classes:", *classes] if classes else []))
