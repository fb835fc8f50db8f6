"""Run: one recipe from plan to report. Each stage is a function of what the earlier ones found; nothing flows back."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish import lock, recipe_files, records, run_folder
from burnish.errors import BudgetNotMet
from burnish.finished import export_model, require_torch
from burnish.finished import report as report_again
from burnish.hardware import Chip, detect
from burnish.out_of_memory import is_out_of_memory
from burnish.plan import make_plan
from burnish.progress import Screen, Watcher
from burnish.recipe import Recipe
from burnish.recipe import replace as vary
from burnish.records import Evaluation, Plan, Records, Sample, SavedFile
from burnish.report import make_report, write_report
from burnish.reported import Report
from burnish.run_folder import RunFolder

if TYPE_CHECKING:
    from burnish.data.prepare import Prepared
    from burnish.train.loop import Outcome, Progress
    from burnish.train.state import State
    from burnish.train.step import Trainable

STAGES = ("train", "export")


@dataclass
class Found:
    """What a run has measured so far; becomes its Records."""

    started: str
    seconds: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    quality: dict[str, float | str] = field(default_factory=dict)
    checks: dict[str, bool | float | str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    files: tuple[SavedFile, ...] = ()
    notes: list[str] = field(default_factory=list)


def run(
    recipe: str | Recipe,
    overrides: Iterable[str] = (),
    folder: Path | None = None,
    fresh: bool = False,
    stages: tuple[str, ...] = STAGES,
    quiet: bool = False,
) -> Report:
    """Plan, train, export, verify and report a recipe in `folder` (default runs/NAME); an unfinished run goes on.

    A finished one is only reported again. Raises UserError for whatever cannot be used, before anything is written; Stopped
    and PartlyDone as the loop does.
    """
    locked: dict[str, Any] = {}
    name = recipe if isinstance(recipe, str) else recipe.name
    if isinstance(recipe, str):
        recipe, locked = recipe_files.load_locked(recipe, overrides)
    require_torch("burnish run")
    from burnish.data.prepare import prepare
    from burnish.load.source import open_model
    from burnish.measure import clock
    from burnish.runnable import check_runnable, make_loss, make_trainable, pick_device, processor, settle_compile

    screen = Screen(quiet)
    device, device_note = pick_device(recipe.machine.device)
    recipe = vary(recipe, {"machine.threads": recipe.machine.threads or detect().threads})
    check_runnable(recipe)
    path = folder or Path("runs") / recipe.name
    recipe = run_folder.settled(path, recipe, fresh)
    place = run_folder.check(path, recipe, fresh)
    if not fresh and run_folder.finished(place, "export" in stages):
        written = report_again(place.path)
        screen.say(f"{place.path}: this run is {written.status} already; --fresh starts it again")
        screen.say(f"report: {place.path / 'report.html'}")
        return written
    found = _begin(place, fresh)
    screen.say(f"{recipe.name}: on {detect().name} ({device_note}), {recipe.machine.threads} threads, in {place.path}")
    with screen.task("tokenize") as watch, clock(found.seconds, "data"):
        files = open_model(recipe.train.init).tokenizer if recipe.train.init is not None else None
        data = prepare(recipe.data, recipe.model.vocab, recipe.model.eos, progress=watch, files=files)
    this_lock = lock.make_lock(data.fingerprints, processor(), device)
    found.notes += lock.check_lock(locked, this_lock, name) if locked else []
    with clock(found.seconds, "build"):
        loss = make_loss(recipe, device)
        recipe, reason = settle_compile(recipe, loss, device)
    found.notes += [reason] if reason else []
    with run_folder.opened(place, fresh):
        recipe_files.save_lock(recipe, this_lock, place.path)
        data.save_tokenizer(place.tokenizer)
        plan, outcome = _train(recipe, place, data, make_trainable(recipe, loss), found, device, screen)
        if "export" in stages:
            _finish(recipe, place, data, outcome, found)
        made = _records(found, recipe, device, "done" if "export" in stages else "trained", outcome)
        records.save(made, place.records)
        written = make_report(plan, made, recipe_yaml=recipe_files.to_yaml(recipe))
        _, page = write_report(written, place.path)
    screen.say(f"report: {page}")
    return written


def _finish(recipe: Recipe, place: RunFolder, data: Prepared, outcome: Outcome, found: Found) -> None:
    """What comes after training: the exported model, its quality, and what it writes."""
    from burnish.measure import clock

    with clock(found.seconds, "export and check"):
        _export(recipe, place, outcome, found)
    with clock(found.seconds, "judge"):
        _judge(recipe, data, outcome, found)
    with clock(found.seconds, "sample"):
        found.samples = _samples(recipe, place)


def _begin(place: RunFolder, fresh: bool) -> Found:
    """What is known at the start: nothing, or what an unfinished run in the folder has measured."""
    now = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
    if fresh or not place.records.exists():
        return Found(started=now)
    old = records.read(Records, place.records)
    seconds = {name: value for name, value in old.seconds.items() if name != "train"}  # counted again from the steps
    return Found(old.started, seconds, dict(old.measured), notes=list(old.notes))


def _train(
    recipe: Recipe,
    place: RunFolder,
    data: Prepared,
    trainable: Trainable,
    found: Found,
    device: str,
    screen: Screen,
) -> tuple[Plan, Outcome]:
    """Measure the machine, plan for it, and train."""
    from burnish.hardware import probe
    from burnish.measure import clock, peak_memory, reset_peak
    from burnish.runnable import make_job, say_out_of_memory
    from burnish.train.loop import Hooks, train

    with clock(found.seconds, "measure machine"):
        chip = probe(device)
    plan = make_plan(recipe, chip)
    records.save(plan, place.plan)
    before, known_peak = reset_peak(device), found.measured.get("memory.peak", 0.0)
    job = make_job(recipe, place.path, data, trainable, found.measured)
    started_at = 0

    def start(state: State) -> None:
        nonlocal started_at
        started_at = state.step
        if state.step:
            screen.say(f"goes on after step {state.step}")

    def note(text: str) -> None:
        screen.say(text)
        found.notes.append(text)

    def keep(checkpoint: Path) -> None:
        """What is measured so far goes with the checkpoint, for whoever goes on from it."""
        found.measured["memory.peak"] = max(known_peak, float(peak_memory(device) - before))
        records.save(_records(found, recipe, device, "partly"), place.records)

    with screen.task("train") as watch, clock(found.seconds, "train"):
        shown = partial(_show_step, watch)
        hooks = Hooks(started=start, stepped=shown, evaluated=partial(_say_score, screen), saved=keep, noted=note)
        try:
            outcome = train(trainable, job, hooks)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise BudgetNotMet(say_out_of_memory(error, recipe, plan, device)) from None
    for text in (text for carried in trainable.carried.values() for text in carried.notes()):
        if text not in found.notes:
            note(text)
    found.seconds["train"] += sum(step.seconds for step in outcome.curve if step.step <= started_at)
    _speeds(outcome, plan, chip, found)
    return plan, outcome


def _show_step(watch: Watcher, now: Progress) -> None:
    detail = f"loss {now.record.loss:.3f}, {now.tokens_per_second:,.0f} tokens/s"
    watch(now.record.step, now.steps, detail, now.eta)


def _say_score(screen: Screen, found: Evaluation) -> None:
    screen.say(f"step {found.step}: held-out loss {found.loss:.4f}, {found.bits_per_byte:.4f} bits per byte")


def _speeds(outcome: Outcome, plan: Plan, chip: Chip, found: Found) -> None:
    """Medians over the steps, without the first few that warm up."""
    steps = outcome.curve[3:] or outcome.curve
    seconds = statistics.median(step.seconds for step in steps)
    found.measured["seconds.step"] = seconds
    found.measured["tokens_per_second"] = statistics.median(step.tokens / step.seconds for step in steps)
    if rate := chip.flops.get("fp32"):
        found.measured["mfu"] = plan.predicted["flops.step"] / seconds / rate


def _export(recipe: Recipe, place: RunFolder, outcome: Outcome, found: Found) -> None:
    """Write the best weights as a model folder, load it again and compare."""
    from burnish.runnable import load_best

    model = load_best(recipe, outcome.best)
    found.checks |= export_model(recipe, place, model, place.model)
    weights = sorted(place.model.glob("*.safetensors"))
    found.files = tuple(_saved(path) for path in sorted(place.model.iterdir()))
    found.measured["file.bytes"] = float(sum(path.stat().st_size for path in weights))


def _saved(path: Path) -> SavedFile:
    return SavedFile(name=path.name, bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def _judge(recipe: Recipe, data: Prepared, outcome: Outcome, found: Found) -> None:
    """Bits per byte on the held-out text beside a bigram model of the same tokens."""
    if data.heldout is None or not outcome.evals:
        return
    from burnish.data.kneser_ney import bits_per_byte

    best = min(outcome.evals, key=lambda evaluation: evaluation.loss)
    baseline = bits_per_byte(data.train, data.heldout, recipe.model.vocab)
    found.quality |= {
        "bits_per_byte": best.bits_per_byte,
        "baseline_bits_per_byte": baseline,
        "baseline": "Kneser-Ney bigram, same tokenizer, same text",
        "better_than_baseline_percent": 100 * (1 - best.bits_per_byte / baseline),
    }


def _samples(recipe: Recipe, place: RunFolder) -> tuple[Sample, ...]:
    """What the exported model writes after each prompt of the recipe."""
    prompts = list(recipe.export.prompts)
    if not prompts:
        return ()
    settings = {
        "max_new_tokens": recipe.export.sample_tokens,
        "temperature": 0.7,
        "top_k": 40,
        "seed": recipe.train.seed,
    }
    from burnish.serve.prompts import continued

    texts = continued(place.model, prompts, settings)
    return tuple(Sample(prompt=prompt, text=text[len(prompt) :]) for prompt, text in zip(prompts, texts, strict=True))


def _records(found: Found, recipe: Recipe, device: str, status: Any, outcome: Outcome | None = None) -> Records:
    here = detect(recipe.machine.threads)
    return Records(
        status=status,
        started=found.started,
        seconds=found.seconds,
        machine={"processor": here.name, "threads": here.threads, "memory": here.memory, "device": device},
        versions=lock.versions(),
        measured=found.measured,
        curve=outcome.curve if outcome else (),
        evals=outcome.evals if outcome else (),
        quality=found.quality,
        samples=found.samples,
        files=found.files,
        checks=found.checks,
        notes=tuple(found.notes),
    )
