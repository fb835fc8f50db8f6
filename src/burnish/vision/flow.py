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
from burnish.vision.learning import Watched, learn
from burnish.vision.losses import loss_of
from burnish.vision.material import material_of
from burnish.vision.networks import build
from burnish.vision.plan import make_plan
from burnish.vision.recipe import VisionRecipe, replace
from burnish.vision.request import VisionRequest
from burnish.vision.smaller import afterwards
from burnish.vision.start import start_from
from burnish.vision.task import Lessons, Material
from burnish.vision.trained import Base

UNITS = {
    "segmentation": Units(
        inputs="images", loss="Dice and cross entropy; held out: 1 - Dice", heldout="held-out slices", score="Dice"
    ),
    "detection": Units(
        inputs="images", loss="focal and L1, a box; held out: 1 - mAP", heldout="held-out pictures", score="mAP"
    ),
}
WARM_UP = 3


def planned(recipe: VisionRecipe) -> Plan:
    """The plan of a recipe on this machine; its images are fetched and looked at."""
    material = material_of(recipe)
    settled, notes = material.settled(recipe)
    return make_plan(settled, detect(recipe.machine.threads), (*material.sides, *notes))


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
        material = material_of(recipe)
        recipe, notes = material.settled(recipe)
        place = run_folder.check(folder, recipe, request.fresh)
        if not request.fresh and run_folder.finished(place, "export" in request.stages, recipe):
            screen.say(f"{folder}: this run is done already; --fresh starts it again")
            return report_again(folder)
        found = begin(place, request.fresh)
        found.units = UNITS[recipe.task]
        with clock(found.seconds, "images"):
            lessons, hashes = material.lessons(recipe, watch)
    screen.say(f"{name}: on {detect().name} ({why}), {threads} threads, in {folder}")
    for note in (*material.sides, *notes):
        screen.say(note)
    this_lock = lock.make_lock(dict(hashes), processor(), device)
    found.notes += lock.check_lock(request.locked, this_lock, request.name) if request.locked else []
    with run_folder.opened(place, request.fresh):
        recipe_files.save_lock(recipe, this_lock, place.path)
        watched = Watched(screen, device, found, place)
        return _go(changed(request, recipe=recipe), material, lessons, place, watched, (*material.sides, *notes))


def _go(
    request: VisionRequest,
    material: Material,
    lessons: Lessons,
    place: RunFolder,
    watched: Watched,
    notes: tuple[str, ...],
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
    load_weights(best_checkpoint(place.checkpoints), loss_of(recipe.network, model))
    save_weights(place.path, model, TRAINED)
    over: BudgetNotMet | None = None
    if "export" in request.stages:
        exam = material.exam(recipe, lessons)
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


def _speeds(found: Found, outcome: Outcome, plan: Plan, chip: Chip) -> None:
    steps = outcome.curve[WARM_UP:] or outcome.curve
    seconds = sorted(step.seconds for step in steps)[len(steps) // 2]
    found.measured["seconds.step"] = seconds
    found.measured["images_per_second"] = steps[0].tokens / seconds
    if rate := chip.flops.get("fp32"):
        found.measured["mfu"] = plan.predicted["flops.step"] / seconds / rate
    found.seconds["train"] = sum(step.seconds for step in outcome.curve)
