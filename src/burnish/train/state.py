"""Checkpoints: everything a run needs to go on, on the same ranks bit for bit or on any others; whole or not at all.

A run's checkpoint folder holds `step-000123` folders, each with the tensors as `pieces.py` writes them, state.json and
manifest.json (bytes and SHA-256 of every other file). One is made under a hidden name beside them, then renamed. Many ranks
write into one folder, which they must all see; the first makes and renames it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from burnish.crew import ALONE, Crew
from burnish.errors import UserError
from burnish.ops.master_weights import MasterWeights
from burnish.recipe_files import differences
from burnish.train.pieces import INDEX, OPTIMIZER, WEIGHTS, file_name, flush, read_index, read_pieces, write_pieces
from burnish.train.placed import MODEL, Placed, as_sharded, make_room, placed, placed_weights
from burnish.train.random_state import random_state, set_random_state
from burnish.train.step import Trainable

MANIFEST = "manifest.json"
STATE = "state.json"


@dataclass(frozen=True)
class Best:
    """The lowest held-out loss so far, and the step after which it was measured."""

    step: int
    loss: float


@dataclass(frozen=True)
class State:
    """Where a run stands: `step` steps are done, `next_sample` is the global index of the first row not yet seen.

    `identity` holds the settings that must be the same when the run goes on, nested as the caller likes.
    """

    step: int
    next_sample: int
    identity: Mapping[str, Any] = field(default_factory=dict)
    best: Best | None = None
    evaluated: int = 0  # the last step after which the held-out loss was measured


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return folder / f"step-{step:06d}"


def save_checkpoint(folder: Path, trainable: Trainable, state: State, keep: int, crew: Crew = ALONE) -> Path:
    """Write a checkpoint, then remove all but the newest `keep` and the best. Returns its folder.

    Every rank calls this. Raises UserError, on all of them, when the folder cannot be written (permission, full disk); what
    was there before is untouched.
    """
    final = checkpoint_path(folder, state.step)
    temporary = folder / f".{final.name}.writing"
    try:
        crew.first(lambda: _begin(folder, temporary))
        files = _write(temporary, trainable, state, crew)
        crew.first(lambda: _finish(temporary, final, files, state, keep))
    except UserError as error:
        if crew.leads:
            shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(f"{folder}: cannot write a checkpoint ({error}); free space or name another folder") from None
    return final


def _begin(folder: Path, temporary: Path) -> None:
    with _said():
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".step-*"):
            shutil.rmtree(leftover)
        temporary.mkdir()


def _finish(temporary: Path, final: Path, files: Mapping[str, Any], state: State, keep: int) -> None:
    with _said():
        (temporary / MANIFEST).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")
        flush(temporary / MANIFEST)
        flush(temporary)
        if final.exists():  # a damaged one, which resuming skipped
            _remove(final)
        os.replace(temporary, final)
        flush(final.parent)
        _prune(final.parent, state, keep)


@contextmanager
def _said() -> Iterator[None]:
    """What the disk refuses, in a few words."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(str(getattr(error, "strerror", None) or error)) from None
    except CheckpointException as error:
        cause, _ = error.failures[min(error.failures)]
        if not isinstance(cause, OSError | SafetensorError):
            raise cause from None
        raise UserError(str(getattr(cause, "strerror", None) or cause)) from None


def latest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and one line on each newer one that was skipped and why."""
    skipped: list[str] = []
    for path in reversed(_checkpoints(folder)):
        fault = _fault(path)
        if fault is None:
            return path, skipped
        skipped.append(f"skipped {path}: {fault}")
    return None, skipped


def read_state(path: Path) -> State:
    """Where the run stood when the checkpoint `path` was written. Raises UserError when it cannot be read."""
    values = _read_json(path / STATE)
    best = values["best"]
    return State(
        values["step"], values["next_sample"], values["identity"], Best(**best) if best else None, values["evaluated"]
    )


def load_checkpoint(path: Path, trainable: Trainable, identity: Mapping[str, Any], crew: Crew = ALONE) -> State:
    """Put parameters, buffers, optimizer state, what techniques carry and torch's random state back exactly as saved.

    The checkpoint may be of other ranks, divided in another way: each rank reads the pieces that it holds. Every rank calls
    this. Raises UserError, before anything is changed, for a damaged checkpoint, for one of other settings than `identity`
    (naming what differs) and for one whose tensors do not fit the model or which lacks what a technique carries.
    """
    if fault := crew.first(lambda: _fault(path)):
        raise UserError(f"{path}: {fault}; resume from another checkpoint")
    state = read_state(path)
    now = json.loads(json.dumps(identity))  # as JSON gives it back: tuples are lists
    if changed := differences(dict(state.identity), now):
        raise UserError(f"{path} was written with other settings: {'; '.join(changed)}; use those, or a new run folder")
    rest = _read_json(path / STATE)
    carried = rest.get("carried", {})
    if absent := trainable.carried.keys() - carried.keys():
        raise UserError(f"{path}: holds no {', '.join(sorted(absent))}; use its own recipe, or a new run folder")
    saved = read_index(path)
    _check_shapes(path, placed(trainable), saved, crew)
    if isinstance(trainable.optimizer, MasterWeights):
        trainable.optimizer.fill_state()
    make_room(trainable, {name: getattr(torch, about["dtype"]) for name, about in saved.items()})
    _read(path, placed(trainable), crew)
    for member in as_sharded(trainable):
        member.updated()
    for name, thing in trainable.carried.items():
        thing.load_state_dict(carried[name])
    states = rest["random"]
    set_random_state(states[crew.rank if crew.world == len(states) else 0])
    return state


def load_weights(path: Path, module: nn.Module) -> None:
    """Put the weights alone of a checkpoint into the whole model that it is of. Raises UserError as `load_checkpoint` does."""
    if fault := _fault(path):
        raise UserError(f"{path}: {fault}; use another checkpoint")
    tensors = placed_weights(module)
    _check_shapes(path, tensors, read_index(path), ALONE)
    _read(path, tensors, ALONE)


@torch.no_grad()
def _read(path: Path, tensors: Mapping[str, Placed], crew: Crew) -> None:
    read_pieces(path, tensors, crew)
    for thing in tensors.values():
        for follower in thing.followers:
            follower.copy_(thing.tensor)


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders by step, oldest first."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal()), key=_step)


def _step(path: Path) -> int:
    return int(path.name[5:])


def _prune(folder: Path, state: State, keep: int) -> None:
    best = None if state.best is None else state.best.step
    written = [path for path in _checkpoints(folder) if _step(path) <= state.step]
    for path in written[: -max(keep, 1)]:
        if _step(path) != best:
            _remove(path)


def _remove(path: Path) -> None:
    """Hide first, so that a kill in the middle leaves nothing that looks like a checkpoint."""
    hidden = path.with_name(f".{path.name}.removed")
    os.replace(path, hidden)
    shutil.rmtree(hidden)


def _write(folder: Path, trainable: Trainable, state: State, crew: Crew) -> dict[str, Any]:
    """Write this rank's tensors, and the first rank's state; gives bytes and checksum of all ranks' files."""
    crew.every(lambda: _write_tensors(folder, trainable, crew))
    carried = {name: thing.state_dict() for name, thing in trainable.carried.items()}
    rest = asdict(state) | {"carried": carried, "random": crew.gather(random_state())}
    crew.first(lambda: _write_state(folder, rest))
    mine = [file_name(kind, crew.rank, crew.world) for kind in (WEIGHTS, OPTIMIZER)]
    mine += [INDEX, STATE] if crew.leads else []
    found = crew.every(lambda: {name: _fingerprint(folder / name) for name in mine})
    return {name: about for files in crew.gather(found) for name, about in files.items()}


def _write_tensors(folder: Path, trainable: Trainable, crew: Crew) -> None:
    with _said():
        write_pieces(folder, placed(trainable), crew)
    for member in as_sharded(trainable):
        member.updated()


def _write_state(folder: Path, rest: Mapping[str, Any]) -> None:
    with _said():
        (folder / STATE).write_text(json.dumps(rest, indent=1), encoding="utf-8")
        flush(folder / STATE)


def _check_shapes(path: Path, ours: Mapping[str, Placed], saved: Mapping[str, Any], crew: Crew) -> None:
    """Raises UserError, on every rank, for weights that are not those of the model; a rank may hold a part of them."""
    head = f"{MODEL}/"
    shapes = {name: thing.placement.shape for name, thing in ours.items() if name.startswith(head)}
    held: dict[str, tuple[int, ...]] = {}
    for theirs in crew.gather(shapes):
        held |= theirs
    known = {name: tuple(about["shape"]) for name, about in saved.items() if name.startswith(head)}
    for name in sorted(held.keys() | known.keys()):
        if held.get(name) != known.get(name):
            raise UserError(
                f"{path}: {name.removeprefix(head)} is {known.get(name, 'absent')} in the checkpoint and "
                f"{held.get(name, 'absent')} in the model; use its own recipe"
            )


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None when every file is there with its bytes and checksum."""
    try:
        files = _read_json(path / MANIFEST)["files"]
        for name in sorted({INDEX, STATE} | files.keys()):
            if not (path / name).is_file():
                return f"{name} is missing"
            if _fingerprint(path / name) != files[name]:
                return f"{name} is damaged (its checksum is not the one in {MANIFEST})"
    except (UserError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or damaged"
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable ({error}); resume from another checkpoint") from None
