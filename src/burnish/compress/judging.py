"""What a compressed model is judged by, as a user names it: perplexity, accuracy, cosine, or a function of one's own."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from burnish.compress.divergence import Probe, Seen
from burnish.compress.metrics import Measured, Metric, perplexity
from burnish.compress.sample_files import decoder_tokenizer
from burnish.compress.subject import Subject
from burnish.errors import UserError, nearest
from burnish.evaluation.task import evaluate_task
from burnish.evaluation.task_score import TaskScore
from burnish.verified import PERCENT, POINTS

PERPLEXITY, ACCURACY, COSINE = "perplexity", "accuracy", "cosine"
NAMES = (PERPLEXITY, ACCURACY, COSINE)


def metric_of(name: str | None, subject: Subject, probe: Probe | None, task: Path | None) -> Metric:
    """The metric called `name`; None: accuracy where there is a labelled file, else what fits the model.

    Raises UserError for a metric that the model or what is given does not allow.
    """
    if name is None:
        name = ACCURACY if task is not None else PERPLEXITY if subject.decoder else COSINE
    if ".py" in name:
        return user_metric(name, subject)
    if name not in NAMES:
        raise UserError(f"--metric {name!r}: {nearest(name, NAMES)}; or FILE.py:FUNCTION")
    if name == ACCURACY:
        if task is None:
            raise UserError("--metric accuracy needs labelled examples; name a .jsonl or .csv file with --task")
        return task_metric(subject, task)
    if probe is None:
        raise UserError(f"--metric {name} needs text to judge on; name it with --text")
    if (name == PERPLEXITY) != subject.decoder:
        kind, other = ("a decoder", PERPLEXITY) if subject.decoder else ("an encoder", COSINE)
        raise UserError(f"--metric {name}: {subject.name} is {kind}; use {other}, or accuracy with --task")
    if name == PERPLEXITY:
        return perplexity(probe, subject.model)
    if "cosine" not in probe.itself.agreement:
        raise UserError(f"--metric cosine: {subject.name} classifies texts; use accuracy with --task")
    return of_probe(COSINE, probe, subject.model)


def of_probe(name: str, probe: Probe, itself: nn.Module) -> Metric:
    """The mean of what the probe sees of each piece, in points."""

    def measure(model: nn.Module) -> Measured:
        seen = probe.itself if model is itself else probe.seen(model)
        return Measured(seen.above, seen.below, seen)

    return Metric(name, False, POINTS, measure)


def task_metric(subject: Subject, task: Path) -> Metric:
    """Share of labelled examples judged right, in points; a correlation where the file asks for one.

    Raises UserError as `evaluate_task` does.
    """

    def judged(model: nn.Module) -> TaskScore:
        return evaluate_task(subject.checkpoint, task, device=subject.device, model=model)

    def measure(model: nn.Module) -> Measured:
        score = judged(model)
        if score.right:
            return Measured(np.array(score.right, dtype=np.float64), np.ones(len(score.right)))
        return Measured(np.array([next(iter(score.scores.values()))]), np.ones(1))

    return Metric(f"{ACCURACY} on {task.name}", False, POINTS, measure)


def user_metric(place: str, subject: Subject) -> Metric:
    """A user's `function(model, tokenizer) -> float`, larger is better unless it has an attribute `lower_is_better`.

    The drop is in percent of the baseline. Raises UserError naming file and function when it is not there, fails, or gives no
    number.
    """
    path, _, name = place.partition(":")
    function = _function(Path(path), name)
    tokenizer = decoder_tokenizer(subject.checkpoint) if subject.decoder else None

    def measure(model: nn.Module) -> Measured:
        try:
            with torch.no_grad():
                value = function(model, tokenizer)
        except Exception as error:
            raise UserError(f"{place}: raised {type(error).__name__}: {' '.join(str(error).split())}") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{place}: returned {value!r}; a metric returns a finite number")
        return Measured(np.array([float(value)]), np.ones(1))

    return Metric(place, bool(getattr(function, "lower_is_better", False)), PERCENT, measure)


def _function(path: Path, name: str) -> Callable[[nn.Module, Any], Any]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; a metric of your own is FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise UserError(f"{path}: cannot be read as Python ({type(error).__name__}: {said})") from None
    own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == path.stem]
    if name not in own:
        raise UserError(f"{path}: no function {name!r}; {nearest(name, own) if own else 'it defines none'}")
    found: Callable[[nn.Module, Any], Any] = getattr(module, name)
    return found


def readable(seen: Seen) -> Sequence[tuple[str, float]]:
    """How outputs agree, with names for a person."""
    names = {
        "kl_nats": "KL divergence",
        "top1": "same likeliest",
        "cosine": "mean cosine",
        "cosine_lowest": "lowest cosine",
    }
    return [(names.get(key, key), value) for key, value in seen.agreement.items()]
