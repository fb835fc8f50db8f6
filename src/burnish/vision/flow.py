"""Flow of a vision recipe: images, plan, training, smaller networks beside it, export, and the report; nothing flows back."""

from __future__ import annotations

from dataclasses import replace as changed
from pathlib import Path

import torch

from burnish import lock, recipe_files, records, run_folder
from burnish.errors import BudgetNotMet
from burnish.finished import report as report_again
from burnish.found import Found, as_records, begin
from burnish.hardware import Chip, detect, probe
from burnish.measure import clock
from burnish.progress import Screen
from burnish.records import Plan, Units
from burnish.report import make_report, write_report
from burnish.reported import Report
from burnish.run_folder import RunFolder
from burnish.runnable import best_checkpoint, pick_device, processor
from burnish.train.loop import Outcome
from burnish.train.state import load_weights
from burnish.vision.bundle import TRAINED, save_weights
from burnish.vision.exam import exam_of
from burnish.vision.fingerprint import fingerprint_of, settle
from burnish.vision.learner import Lessons, lessons_of
from burnish.vision.learning import Watched, learn
from burnish.vision.networks import build
from burnish.vision.plan import make_plan
from burnish.vision.prepared import prepare
from burnish.vision.recipe import VisionRecipe, replace
from burnish.vision.request import VisionRequest
from burnish.vision.segmentation_loss import SegmentationLoss
from burnish.vision.smaller import afterwards
from burnish.vision.sources import Split, split_of
from burnish.vision.start import start_from
from burnish.vision.trained import Base

UNITS = Units(
    inputs="images", loss="Dice and cross entropy; held out: 1 - Dice", heldout="held-out slices", score="Dice"
)
WARM_UP = 3


def planned(recipe: VisionRecipe) -> Plan:
    """The plan of a recipe on this machine; its images are fetched and looked at."""
    split = split_of(recipe.images, recipe.train.seed)
    settled, notes = settle(recipe, fingerprint_of(split.train))
    return make_plan(settled, detect(recipe.machine.threads), (*_sides(split), *notes))


def run_recipe(request: VisionRequest, quiet: bool = False) -> Report:
    """Plan, train, make smaller, export, judge and report a recipe; an unfinished run goes on, a finished one is reported again.

    Raises UserError for whatever cannot be used, before anything is written; Stopped and PartlyDone as the loop does, and
    BudgetNotMet, everything being written, where a smaller network lost more than it may.
    """
    screen, name = Screen(quiet), request.recipe.name
    folder = request.folder or Path("runs") / name
    device, why = pick_device(request.recipe.machine.device)
    threads = request.recipe.machine.threads or detect().threads
    torch.set_num_threads(threads)
    recipe = replace(request.recipe, {"machine.threads": threads})
    with screen.task("images") as watch:
        split = split_of(recipe.images, recipe.train.seed)
        recipe, notes = settle(recipe, fingerprint_of(split.train))
        place = run_folder.check(folder, recipe, request.fresh)
        if not request.fresh and run_folder.finished(place, "export" in request.stages, recipe):
            screen.say(f"{folder}: this run is done already; --fresh starts it again")
            return report_again(folder)
        found = begin(place, request.fresh)
        found.units = UNITS
        with clock(found.seconds, "images"):
            parts = [
                prepare(side, recipe.images, recipe.network.dimensions, watch)
                for side in (split.train, split.validation)
            ]
    screen.say(f"{name}: on {detect().name} ({why}), {threads} threads, in {folder}")
    for note in (*_sides(split), *notes):
        screen.say(note)
    this_lock = lock.make_lock({"train": parts[0][1], "validation": parts[1][1]}, processor(), device)
    found.notes += lock.check_lock(request.locked, this_lock, request.name) if request.locked else []
    with run_folder.opened(place, request.fresh):
        recipe_files.save_lock(recipe, this_lock, place.path)
        lessons = lessons_of(recipe, parts[0][0], parts[1][0])
        watched = Watched(screen, device, found, place)
        return _go(changed(request, recipe=recipe), split, lessons, place, watched, (*_sides(split), *notes))


def _go(
    request: VisionRequest, split: Split, lessons: Lessons, place: RunFolder, watched: Watched, notes: tuple[str, ...]
) -> Report:
    """Train, then all that comes after it."""
    recipe, found, device = request.recipe, watched.found, watched.device
    torch.manual_seed(recipe.train.seed)
    model = build(recipe.network).to(device)
    if recipe.train.init is not None:
        found.notes += [note for note in start_from(model, recipe.train.init) if note not in found.notes]
    with clock(found.seconds, "measure machine"):
        chip = probe(device)
    plan = make_plan(recipe, chip, notes)
    records.save(plan, place.plan)
    identity = run_folder.identity(recipe)
    outcome = learn(recipe, model, lessons, place.path, recipe.train.steps, identity, watched)
    _speeds(found, outcome, plan, chip)
    load_weights(best_checkpoint(place.checkpoints), SegmentationLoss(model))
    save_weights(place.path, model, TRAINED)
    over: BudgetNotMet | None = None
    if "export" in request.stages:
        exam = exam_of(recipe, split.test, lessons.held)
        over = afterwards(Base(recipe, model, lessons, exam, place, identity, outcome), watched)
    status = "done" if "export" in request.stages and over is None else "trained"
    made = as_records(found, recipe, device, status, outcome)
    records.save(made, place.records)
    written = make_report(plan, made, recipe_yaml=recipe_files.to_yaml(recipe))
    _, page = write_report(written, place.path)
    watched.screen.say(f"report: {page}")
    if over is not None:
        raise over
    return written


def _sides(split: Split) -> tuple[str, ...]:
    sides = (("train", split.train), ("validation", split.validation), ("test", split.test))
    return (", ".join(f"{len(entries)} scans to {name}" for name, entries in sides if entries),)


def _speeds(found: Found, outcome: Outcome, plan: Plan, chip: Chip) -> None:
    steps = outcome.curve[WARM_UP:] or outcome.curve
    seconds = sorted(step.seconds for step in steps)[len(steps) // 2]
    found.measured["seconds.step"] = seconds
    found.measured["images_per_second"] = steps[0].tokens / seconds
    if rate := chip.flops.get("fp32"):
        found.measured["mfu"] = plan.predicted["flops.step"] / seconds / rate
    found.seconds["train"] = sum(step.seconds for step in outcome.curve)
