"""Run: one recipe from plan to report. Each stage is a function of what the earlier ones found; nothing flows back."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish import lock, recipe_files, records, run_folder
from burnish.after_training import finish
from burnish.errors import BudgetNotMet, UserError
from burnish.finished import report as report_again
from burnish.finished import require_torch, require_vision
from burnish.found import Found, add_speeds, as_records, begin
from burnish.hardware import detect
from burnish.launch.environment import RankPlace, rank_place
from burnish.launch.world import axes_of, for_world, load_for, node_map
from burnish.out_of_memory import is_out_of_memory
from burnish.plan import make_plan
from burnish.progress import Screen, Watcher
from burnish.recipe import Recipe
from burnish.recipe import replace as vary
from burnish.records import Evaluation, Plan
from burnish.report import make_report, write_report
from burnish.reported import Report
from burnish.run_folder import RunFolder
from burnish.vision.recipe import VisionRecipe
from burnish.vision.request import VisionRequest

if TYPE_CHECKING:
    from burnish.crew import Crew
    from burnish.data.prepare import Prepared
    from burnish.launch.watch import Watch
    from burnish.train.loop import Hooks, Outcome, Progress
    from burnish.train.state import State
    from burnish.train.step import Trainable

STAGES = ("train", "export")


@dataclass(frozen=True)
class Request:
    """What is asked of a run: the recipe and what its lock held, the folder, and how far to go."""

    recipe: Recipe
    locked: dict[str, Any]
    name: str
    folder: Path
    fresh: bool
    stages: tuple[str, ...]


@dataclass(frozen=True)
class Here:
    """This process: its place among the ranks, what watches over them, its device, and what it shows."""

    place: RankPlace
    watch: Watch | None
    device: str
    note: str
    screen: Screen

    @property
    def leads(self) -> bool:
        """Whether it writes the files of the run."""
        return self.place.rank == 0


def run(
    recipe: str | Recipe | VisionRecipe,
    overrides: Iterable[str] = (),
    folder: Path | None = None,
    fresh: bool = False,
    stages: tuple[str, ...] = STAGES,
    quiet: bool = False,
) -> Report:
    """Plan, train, export, verify and report a recipe in `folder` (default runs/NAME); an unfinished run goes on.

    A finished one is only reported again. Where a launcher has started many ranks, this process is one of them: the first
    gives the report, for any other the process ends with the run. Raises UserError for whatever cannot be used, before
    anything is written; Stopped and PartlyDone as the loop does.
    """
    locked: dict[str, Any] = {}
    name = recipe if isinstance(recipe, str) else recipe.name
    place = rank_place()
    if isinstance(recipe, str) and isinstance(recipe_files.load_any(recipe)[0], VisionRecipe):
        recipe, locked = recipe_files.load_any(recipe, overrides)
    if isinstance(recipe, VisionRecipe):
        return _of_vision(VisionRequest(recipe, locked, name, folder, fresh, tuple(stages)), place, quiet)
    if isinstance(recipe, str):
        recipe, locked = load_for(place.world, recipe, overrides)
    request = Request(
        for_world(recipe, place.world), locked, name, folder or Path("runs") / recipe.name, fresh, tuple(stages)
    )
    require_torch("burnish run")
    if place.alone:
        report = _run(request, place, None, quiet)
    else:
        from burnish.launch.watch import watched

        with watched(place) as watch:
            report = _run(request, place, watch, quiet)
    if report is None:
        raise SystemExit(0)
    return report


def _of_vision(request: VisionRequest, place: RankPlace, quiet: bool) -> Report:
    """A recipe of vision, which takes one process."""
    if not place.alone:
        raise UserError(f"{request.name}: a vision recipe runs as one process; leave out --nproc")
    require_vision("burnish run")
    from burnish.vision.flow import run_recipe

    return run_recipe(request, quiet)


def _run(request: Request, place: RankPlace, watch: Watch | None, quiet: bool) -> Report | None:
    """The run of one process, which may be one of many ranks: each goes through all that is not writing."""
    from burnish.runnable import check_runnable, pick_device

    fresh = request.fresh
    device, note = pick_device(request.recipe.machine.device, place.local)
    here = Here(place, watch, device, note, Screen(quiet or place.rank > 0))
    threads = request.recipe.machine.threads or (detect().threads if place.alone else 1)
    recipe = vary(request.recipe, {"machine.threads": threads})
    check_runnable(recipe)
    recipe = run_folder.settled(request.folder, recipe, fresh)
    folder = run_folder.check(request.folder, recipe, fresh) if here.leads else RunFolder(request.folder)
    if not fresh and run_folder.finished(folder, "export" in request.stages, recipe):
        return _again(folder, here)
    found = begin(folder, fresh)
    here.screen.say(f"{recipe.name}: on {detect().name} ({note}), {threads} threads, in {folder.path}")
    if not place.alone:
        here.screen.say(node_map(axes_of(recipe), place.per_node))
    return _start(replace(request, recipe=recipe), folder, here, found)


def _again(folder: RunFolder, here: Here) -> Report | None:
    """The report of a finished run, written again."""
    if not here.leads:
        return None
    written = report_again(folder.path)
    here.screen.say(f"{folder.path}: this run is {written.status} already; --fresh starts it again")
    here.screen.say(f"report: {folder.path / 'report.html'}")
    return written


def _start(request: Request, place: RunFolder, here: Here, found: Found) -> Report | None:
    """Data first, then the ranks together: what takes long and is done by one of them makes no collective wait."""
    from burnish.data.prepare import prepare
    from burnish.load.source import open_model
    from burnish.load.wheels import shipped_models
    from burnish.measure import clock
    from burnish.runnable import join, make_loss, make_trainable, processor, settle_compile

    recipe, device, screen = request.recipe, here.device, here.screen
    with screen.task("tokenize") as watch, clock(found.seconds, "data"):
        texts, named = recipe.data, recipe.train.init
        if texts.tokenizer in shipped_models():  # a model's name stands for the tokenizer that came with it
            texts, named = texts.model_copy(update={"tokenizer": None}), texts.tokenizer
        files = open_model(named).tokenizer if named is not None else None
        data = prepare(texts, recipe.model.vocab, recipe.model.eos, progress=watch, files=files)
    this_lock = lock.make_lock(data.fingerprints, processor(), device)
    found.notes += lock.check_lock(request.locked, this_lock, request.name) if request.locked else []
    crew = join(here.place, recipe, data, device)
    with clock(found.seconds, "build"):
        loss = make_loss(recipe, device)
        recipe, reason = settle_compile(recipe, loss, device, crew)
    found.notes += [reason] if reason else []
    with run_folder.opened(place, request.fresh) if here.leads else nullcontext():
        if here.leads:
            recipe_files.save_lock(recipe, this_lock, place.path)
            data.save_tokenizer(place.tokenizer)
        trained = _train(recipe, place, data, make_trainable(recipe, loss, found.measured), found, here, crew)
        if not here.leads:
            return None
        return _write(replace(request, recipe=recipe), place, data, trained, found, here)


def _write(
    request: Request, place: RunFolder, data: Prepared, trained: tuple[Plan, Outcome], found: Found, here: Here
) -> Report:
    """What the first rank does after training: export, judge, report."""
    recipe, (plan, outcome) = request.recipe, trained
    over = None
    if "export" in request.stages:
        over = finish(recipe, place, data, outcome, found, here.screen)
    status = "done" if "export" in request.stages and over is None else "trained"
    made = as_records(found, recipe, here.device, status, outcome, here.place.world)
    records.save(made, place.records)
    written = make_report(plan, made, recipe_yaml=recipe_files.to_yaml(recipe))
    _, page = write_report(written, place.path)
    here.screen.say(f"report: {page}")
    if over is not None:
        raise over
    return written


def _train(
    recipe: Recipe,
    place: RunFolder,
    data: Prepared,
    trainable: Trainable,
    found: Found,
    here: Here,
    crew: Crew,
) -> tuple[Plan, Outcome]:
    """Measure the machine, plan for it, and train."""
    from burnish.hardware import probe
    from burnish.measure import clock
    from burnish.runnable import leave, make_job, say_out_of_memory
    from burnish.train.loop import train

    screen = here.screen
    with clock(found.seconds, "measure machine"):
        chip = crew.first(lambda: probe(here.device))
    plan = make_plan(recipe, chip)
    if here.leads:
        records.save(plan, place.plan)
    job = make_job(recipe, place.path, data, trainable, found.measured, crew)
    started: list[int] = []
    with screen.task("train") as watch, clock(found.seconds, "train"):
        try:
            outcome = train(trainable, job, _hooks(recipe, place, found, here, watch, started))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise BudgetNotMet(say_out_of_memory(error, recipe, plan, here.device)) from None
    leave(crew)
    if here.leads:
        for text in (text for carried in trainable.carried.values() for text in carried.notes()):
            if text not in found.notes:
                screen.say(text)
                found.notes.append(text)
        found.seconds["train"] += sum(step.seconds for step in outcome.curve if step.step <= started[0])
        add_speeds(found, outcome, plan, chip)
    return plan, outcome


def _hooks(recipe: Recipe, place: RunFolder, found: Found, here: Here, watcher: Watcher, started: list[int]) -> Hooks:
    """What happens beside the steps. `started` is told the step that the run goes on from."""
    from burnish.measure import peak_memory, reset_peak
    from burnish.train.loop import Hooks

    device, screen = here.device, here.screen
    before, known_peak = reset_peak(device), found.measured.get("memory.peak", 0.0)

    def start(state: State) -> None:
        started.append(state.step)
        _stand_at(here, state.step + 1)
        if state.step:
            screen.say(f"goes on after step {state.step}")

    def note(text: str) -> None:
        screen.say(text)
        found.notes.append(text)

    def step(now: Progress) -> None:
        _stand_at(here, now.record.step + 1)
        _show_step(watcher, now)

    def keep(checkpoint: Path) -> None:
        """What is measured so far goes with the checkpoint, for whoever goes on from it."""
        if here.watch is not None:
            here.watch.kept = str(checkpoint)
        found.measured["memory.peak"] = max(known_peak, float(peak_memory(device) - before))
        if here.leads:
            records.save(as_records(found, recipe, device, "partly", ranks=here.place.world), place.records)

    return Hooks(started=start, stepped=step, evaluated=partial(_say_score, screen), saved=keep, noted=note)


def _stand_at(here: Here, step: int) -> None:
    if here.watch is not None:
        here.watch.step = step


def _show_step(watch: Watcher, now: Progress) -> None:
    detail = f"loss {now.record.loss:.3f}, {now.tokens_per_second:,.0f} tokens/s"
    watch(now.record.step, now.steps, detail, now.eta)


def _say_score(screen: Screen, found: Evaluation) -> None:
    screen.say(f"step {found.step}: held-out loss {found.loss:.4f}, {found.bits_per_byte:.4f} bits per byte")
