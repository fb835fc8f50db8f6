"""The loop on several ranks: one rank's signal, fault or full disk is that of all, at the same step."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import ranks
import zero_ranks
from burnish.crew import started_crew
from burnish.data.batch import IGNORED
from burnish.errors import BurnishError, UserError
from burnish.recipe import Recipe
from burnish.train.evaluate import evaluate, evaluate_together
from burnish.train.loop import Hooks, Job, train
from burnish.train.metrics import MetricsLog, read_metrics

STEPS = 5


def looped(recipe: Recipe, folder: Path, rank: int, what: str) -> tuple[str, int]:
    """Train, and let `what` happen to `rank` after its third step; the error and its exit code."""
    crew, trainable = started_crew(), zero_ranks.make_trainable(recipe)

    def happen(progress) -> None:
        if progress.record.step != 3 or crew.rank != rank:
            return
        if what == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        elif what == "not finite":
            trainable.parts[0].model.layers[1].register_forward_hook(lambda module, given, out: out * float("nan"))
        elif what == "full log":
            MetricsLog.add = _refuse  # type: ignore[method-assign,assignment]

    batches = zero_ranks.make_batches(2 * crew.world, recipe.model.vocab)
    job = Job(
        steps=STEPS,
        batches=lambda step: zero_ranks.mine(batches),
        lr=lambda step: 0.01,
        folder=folder,
        global_batch=2,
        identity={},
        checkpoint_every=2,
        crew=crew,
    )
    add = MetricsLog.add
    try:
        train(trainable, job, Hooks(stepped=happen))
    except BurnishError as error:
        return str(error), error.exit_code
    finally:
        MetricsLog.add = add  # type: ignore[method-assign]
    return "done", 0


def _refuse(self: MetricsLog, record: object) -> None:
    raise UserError("disk full")


@pytest.mark.parametrize(
    ("what", "rank", "code", "said", "done"),
    [
        ("signal", 1, 143, "stopped after step 3 of 5; saved in", 3),
        ("not finite", 1, 4, "step 4 is not finite", 3),
        ("full log", 0, 4, "disk full; 4 of 5 steps done; the last good checkpoint is", 3),
        ("nothing", 0, 0, "done", 5),
    ],
)
def test_all_ranks_end_alike(tmp_path: Path, what: str, rank: int, code: int, said: str, done: int) -> None:
    recipe = zero_ranks.make_recipe("narrow", True, 2, 3)
    answers = ranks.run(2, looped, recipe, tmp_path, rank, what)
    assert answers[0] == answers[1]
    assert answers[0][0].startswith(said)
    assert answers[0][1] == code
    if what == "not finite":
        assert "first in output of model.layers.1 of rank 1; lower optim.lr" in answers[0][0]
        assert "the last good checkpoint is" in answers[0][0]
    assert [step.step for step in read_metrics(tmp_path / "metrics.jsonl")[0]] == list(range(1, done + 1))


def judged(recipe: Recipe, count: int) -> tuple[float, int]:
    crew, trainable = started_crew(), zero_ranks.make_trainable(recipe)
    batches = zero_ranks.make_batches(count, recipe.model.vocab, [7 + number for number in range(count)])
    return tuple(evaluate_together(trainable, batches, crew.rank, crew.world))


@pytest.mark.parametrize("count", [1, 3, 5])
def test_ranks_judge_every_batch_once(count: int) -> None:
    """As many batches as come out even, and fewer than there are ranks; forwards gather parameters."""
    recipe = zero_ranks.make_recipe("narrow", True, 3, 3)
    alone = zero_ranks.make_trainable(recipe, distributed=False)
    batches = zero_ranks.make_batches(count, recipe.model.vocab, [7 + number for number in range(count)])
    expected = evaluate(alone.parts[0], batches)
    assert expected.labels == sum((batch.labels != IGNORED).sum() for batch in batches)
    answers = ranks.run(3, judged, recipe, count)
    assert {labels for _, labels in answers} == {expected.labels}
    assert [nats for nats, _ in answers] == pytest.approx([expected.nats] * 3, rel=1e-6)
