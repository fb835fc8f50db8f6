"""RunFolder: where a run keeps its files, and when it starts, goes on, or is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish import recipe_files
from burnish.errors import UserError
from burnish.recipe import Recipe, replace
from burnish.records import Records, read
from burnish.vision.recipe import VisionRecipe

try:
    import fcntl
except ImportError:  # not on Windows: two runs in one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

CLAIM = ".running"
AFTERWARDS = ("compress", "prune", "int8", "output")  # sections of what is done to a trained model
OURS = {
    recipe_files.LOCK_NAME,
    "plan.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "metrics.jsonl",
    "records.json",
    "report.json",
    "report.html",
    "checkpoints",
    "model",
    "compressed",
    "adapter",
    "pruned",
    "control",
    "trained.safetensors",
    "tensorboard",
}


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def lock(self) -> Path:
        return self.path / recipe_files.LOCK_NAME

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def records(self) -> Path:
        return self.path / "records.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def compressed(self) -> Path:
        return self.path / "compressed"

    @property
    def adapter(self) -> Path:
        return self.path / "adapter"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"


def check(path: Path, recipe: Recipe | VisionRecipe, fresh: bool) -> RunFolder:
    """The folder of a new run, or of the same recipe's unfinished one; nothing is written.

    Raises UserError when the folder holds something else or a run of another recipe (`fresh` allows that to be
    replaced), and when it cannot be written.
    """
    folder = RunFolder(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is a file; name a folder with --out")
    foreign = sorted(entry.name for entry in path.iterdir() if not _ours(entry.name)) if path.is_dir() else []
    if foreign:
        raise UserError(f"{path}: holds {foreign[0]!r}, which no run wrote; name another folder with --out")
    if folder.lock.exists() and not fresh:
        _same_recipe(folder, recipe)
    _writable(path)
    return folder


def settled(path: Path, recipe: Recipe, fresh: bool) -> Recipe:
    """`recipe` with what an unfinished run in `path` has already measured and settled (`train.compile`)."""
    lock = RunFolder(path).lock
    if fresh or recipe.train.compile != "measure" or not lock.is_file():
        return recipe
    return replace(recipe, {"train.compile": recipe_files.load(str(lock)).train.compile})


def finished(folder: RunFolder, export: bool, recipe: Recipe | VisionRecipe | None = None) -> bool:
    """Whether the run in `folder` has been to its end; without `export`, to the end of its training.

    One that is to be compressed as its lock does not say has not.
    """
    if export and recipe and folder.lock.is_file():
        old, _ = recipe_files.load_any(str(folder.lock))
        if any(getattr(old, name, None) != getattr(recipe, name, None) for name in AFTERWARDS):
            return False
    enough = ("done",) if export else ("done", "trained")
    return folder.records.exists() and read(Records, folder.records).status in enough


@contextmanager
def opened(folder: RunFolder, fresh: bool) -> Iterator[None]:
    """Make the folder and keep other processes out of it; `fresh` first removes what an earlier run left.

    The system lets go of the claim when the process ends, however it ends. Raises UserError when another has it.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    with (folder.path / CLAIM).open("a") as claim:
        try:
            if fcntl is not None:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{folder.path}: another process is running in it; wait for it, or name another folder with --out"
            ) from None
        for entry in folder.path.iterdir() if fresh else ():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != CLAIM:
                entry.unlink()
        yield


def _ours(name: str) -> bool:
    return name in OURS or name.startswith(".")


def _same_recipe(folder: RunFolder, recipe: Recipe | VisionRecipe) -> None:
    old, _ = recipe_files.load_any(str(folder.lock))
    if changed := recipe_files.differences(identity(old), identity(recipe)):
        raise UserError(
            f"{folder.path}: holds a run of another recipe ({changed[0]}); use --fresh to replace it or --out for another"
        )


def identity(recipe: Recipe | VisionRecipe) -> dict[str, Any]:
    """What must stay the same while a run goes on. How its work is divided over ranks, threads and micro batches may change:
    the losses are the same but for rounding. So may what is done to the model afterwards."""
    left_out = dict.fromkeys(("parallel", "machine", *AFTERWARDS), True)
    settings: dict[str, Any] = recipe.model_dump(mode="json", exclude=left_out)
    del settings["train"]["micro_batch"]
    return settings


def _writable(path: Path) -> None:
    """Whether files can be made in `path`, or in the nearest folder above it that exists."""
    place = next((folder for folder in (path, *path.absolute().parents) if folder.exists()), Path())
    trial = place / f".{os.getpid()}.trial"
    try:
        trial.write_bytes(b"")
        trial.unlink()
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); name a writable folder with --out") from None


def open_run(path: Path) -> RunFolder:
    """The folder of an existing run. Raises UserError when it is none."""
    folder = RunFolder(path)
    if not folder.lock.is_file():
        raise UserError(f"{path}: not a run folder (no {recipe_files.LOCK_NAME}); `burnish run RECIPE` makes one")
    return folder
