"""Found: what a run has measured so far, and the records it becomes."""

from __future__ import annotations

import hashlib
import statistics
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish import lock, records
from burnish.hardware import Chip, detect
from burnish.recipe import Recipe
from burnish.records import Picture, Plan, Records, Sample, SavedFile, Table, Units
from burnish.run_folder import RunFolder
from burnish.verified import Verified
from burnish.vision.recipe import VisionRecipe

if TYPE_CHECKING:
    from burnish.train.loop import Outcome

WARM_UP = 3  # steps that no speed is taken from


@dataclass
class Found:
    """What a run has measured so far; becomes its Records."""

    started: str
    seconds: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    quality: dict[str, float | str] = field(default_factory=dict)
    checks: dict[str, bool | float | str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    tables: list[Table] = field(default_factory=list)
    pictures: tuple[Picture, ...] = ()
    units: Units = field(default_factory=Units)
    files: tuple[SavedFile, ...] = ()
    verified: Verified | None = None
    notes: list[str] = field(default_factory=list)


def begin(place: RunFolder, fresh: bool) -> Found:
    """What is known at the start: nothing, or what an unfinished run in the folder has measured."""
    now = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
    if fresh or not place.records.exists():
        return Found(started=now)
    old = records.read(Records, place.records)
    seconds = {name: value for name, value in old.seconds.items() if name != "train"}  # counted again from the steps
    return Found(old.started, seconds, dict(old.measured), notes=list(old.notes))


def add_speeds(found: Found, outcome: Outcome, plan: Plan, chip: Chip) -> None:
    """Medians over the steps, without the first few that warm up. The use of the processor is that of one rank."""
    steps = outcome.curve[WARM_UP:] or outcome.curve
    seconds = statistics.median(step.seconds for step in steps)
    found.measured["seconds.step"] = seconds
    found.measured["tokens_per_second"] = statistics.median(step.tokens / step.seconds for step in steps)
    if rate := chip.flops.get("fp32"):
        found.measured["mfu"] = plan.predicted["flops.step"] / seconds / rate


def saved(path: Path) -> SavedFile:
    """A file that was written, with its checksum."""
    return SavedFile(name=path.name, bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def as_records(
    found: Found,
    recipe: Recipe | VisionRecipe,
    device: str,
    status: Any,
    outcome: Outcome | None = None,
    ranks: int = 1,
) -> Records:
    """The records of a run that stands at `status`. Memory and seconds are those of the first of its ranks."""
    here = detect(recipe.machine.threads)
    machine = {"processor": here.name, "threads": here.threads, "memory": here.memory, "device": device}
    return Records(
        status=status,
        started=found.started,
        seconds=found.seconds,
        machine=machine | ({"ranks": ranks} if ranks > 1 else {}),
        versions=lock.versions(),
        measured=found.measured,
        curve=outcome.curve if outcome else (),
        evals=outcome.evals if outcome else (),
        quality=found.quality,
        samples=found.samples,
        tables=tuple(found.tables),
        pictures=found.pictures,
        units=found.units,
        files=found.files,
        checks=found.checks,
        verified=found.verified,
        notes=tuple(found.notes),
    )
