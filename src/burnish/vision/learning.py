"""Learning: one network trained by the loop in a folder, its first step observed, with what a person sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from burnish.found import Found, as_records
from burnish.measure import clock, measured_keys, observed_step, peak_memory, reset_peak
from burnish.progress import Screen
from burnish.records import Evaluation, save
from burnish.run_folder import RunFolder
from burnish.train.loop import Hooks, Outcome, Progress, train
from burnish.train.state import State
from burnish.train.step import Trainable
from burnish.vision.learner import job_of, trainable_of
from burnish.vision.recipe import VisionRecipe
from burnish.vision.task import Lessons


@dataclass(frozen=True, eq=False)
class Watched:
    """What a run shows and measures while it works."""

    screen: Screen
    device: str
    found: Found
    place: RunFolder


def learn(
    recipe: VisionRecipe,
    model: nn.Module,
    lessons: Lessons,
    folder: Path,
    steps: int,
    identity: Mapping[str, Any],
    watched: Watched,
    name: str = "train",
) -> Outcome:
    """Train `model` for `steps` in `folder`, going on where it stands there. What `train` takes is measured too."""
    screen, device, found = watched.screen, watched.device, watched.found
    trainable, first = trainable_of(recipe, model), name == "train"
    if first:
        found.measured["parameters"] = float(sum(p.numel() for p in model.parameters()))
        _observe_first(trainable, found)
    before, known = reset_peak(device), found.measured.get("memory.peak", 0.0)

    def start(state: State) -> None:
        if state.step:
            screen.say(f"{name} goes on after step {state.step}")

    def keep(_: Path) -> None:
        if first:
            found.measured["memory.peak"] = max(known, float(peak_memory(device) - before))
            save(as_records(found, recipe, device, "partly"), watched.place.records)

    job = job_of(recipe, folder, lessons, model, device, dict(identity), steps)
    with screen.task(name) as watch, clock(found.seconds, name):
        hooks = Hooks(
            started=start,
            stepped=partial(_show, watch),
            evaluated=partial(_say, screen, name, recipe.metric),
            saved=keep,
        )
        return train(trainable, job, hooks)


def _observe_first(trainable: Trainable, found: Found) -> None:
    """Make the next step an observed one; the steps after it run untouched."""
    plain = trainable.step

    def step(micros: list[Any], lr: float) -> Any:
        trainable.step = plain
        result, seen = observed_step(trainable, micros, lr)
        found.measured.update(measured_keys(seen))
        return result

    trainable.step = step


def _show(watch: Any, now: Progress) -> None:
    detail = f"loss {now.record.loss:.3f}, {now.tokens_per_second:,.1f} images/s"
    watch(now.record.step, now.steps, detail, now.eta)


def _say(screen: Screen, name: str, metric: str, found: Evaluation) -> None:
    screen.say(f"{name}, step {found.step}: held-out {metric} {found.score:.4f}")
