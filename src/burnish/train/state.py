"""Checkpoints: everything a run needs to go on bit for bit, written whole or not at all, and checked when read.

A run's checkpoint folder holds `step-000123` folders, each with model.safetensors, optimizer.safetensors, state.json
and manifest.json (bytes and SHA-256 of the other three). One is made under a hidden name beside them, then renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from burnish.errors import UserError
from burnish.recipe_files import differences
from burnish.train.step import Trainable

MANIFEST = "manifest.json"
STATE = "state.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


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


def save_checkpoint(folder: Path, trainable: Trainable, state: State, keep: int) -> Path:
    """Write a checkpoint, then remove all but the newest `keep` and the best. Returns its folder.

    Raises UserError when the folder cannot be written (permission, full disk); what was there before is untouched.
    """
    final = checkpoint_path(folder, state.step)
    temporary = folder / f".{final.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".step-*"):
            shutil.rmtree(leftover)
        temporary.mkdir()
        _write(temporary, trainable, state)
        if final.exists():  # a damaged one, which resuming skipped
            _remove(final)
        os.replace(temporary, final)
        _flush(folder)
        _prune(folder, state, keep)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder}: cannot write a checkpoint ({reason}); free space or name another folder") from None
    return final


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


def load_checkpoint(path: Path, trainable: Trainable, identity: Mapping[str, Any]) -> State:
    """Put parameters, buffers, optimizer state, what techniques carry and torch's random state back exactly as saved.

    Raises UserError, before anything is changed, for a damaged checkpoint, for one of other settings than `identity`
    (naming what differs) and for one whose tensors do not fit the model or which lacks what a technique carries.
    """
    if fault := _fault(path):
        raise UserError(f"{path}: {fault}; resume from another checkpoint")
    state = read_state(path)
    now = json.loads(json.dumps(identity))  # as JSON gives it back: tuples are lists
    if changed := differences(dict(state.identity), now):
        raise UserError(f"{path} was written with other settings: {'; '.join(changed)}; use those, or a new run folder")
    rest = _read_json(path / STATE)
    carried = rest.get("carried", {})
    if absent := trainable.carried.keys() - carried.keys():
        raise UserError(f"{path}: holds no {', '.join(sorted(absent))}; use its own recipe, or a new run folder")
    tensors = dict(_model_tensors(trainable))
    with safe_open(path / MODEL, framework="pt") as saved:
        _check_shapes(path, tensors, {name: tuple(saved.get_slice(name).get_shape()) for name in saved.keys()})  # noqa: SIM118
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(saved.get_tensor(name))
    trainable.optimizer.state.clear()
    with safe_open(path / OPTIMIZER, framework="pt") as saved:
        for name in saved.keys():  # noqa: SIM118 - a safetensors file is no mapping
            key, owner = name.split("/", 1)
            parameter = tensors[owner]
            # A copy of our own: what safetensors hands out may be a view of the file.
            trainable.optimizer.state[parameter][key] = saved.get_tensor(name).to(parameter.device, copy=True)
    for name, thing in trainable.carried.items():
        thing.load_state_dict(carried[name])
    _set_random_state(rest["random"])
    return state


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


def _write(folder: Path, trainable: Trainable, state: State) -> None:
    model = {name: tensor.detach().contiguous() for name, tensor in _model_tensors(trainable)}
    optimizer = {name: tensor.contiguous() for name, tensor in _optimizer_tensors(trainable)}
    save_file(model, folder / MODEL)
    save_file(optimizer, folder / OPTIMIZER)
    carried = {name: thing.state_dict() for name, thing in trainable.carried.items()}
    rest = asdict(state) | {"carried": carried, "random": _random_state()}
    (folder / STATE).write_text(json.dumps(rest, indent=1), encoding="utf-8")
    files = {name: _fingerprint(folder / name) for name in (MODEL, OPTIMIZER, STATE)}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")
    for path in (*folder.iterdir(), folder):
        _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _model_tensors(trainable: Trainable) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and saved buffer once, a tied one under its first name, as `<part>.<name>`."""
    seen: set[int] = set()
    for number, part in enumerate(trainable.parts):
        for name, tensor in part.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{number}.{name}", tensor


def _optimizer_tensors(trainable: Trainable) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the optimizer as `<key>/<parameter>`; AdamW's step counters are tensors too."""
    for name, tensor in _model_tensors(trainable):
        for key, value in trainable.optimizer.state.get(tensor, {}).items():
            yield f"{key}/{name}", value


def _check_shapes(path: Path, tensors: Mapping[str, Tensor], saved: Mapping[str, tuple[int, ...]]) -> None:
    for name in sorted(tensors.keys() | saved.keys()):
        ours = tuple(tensors[name].shape) if name in tensors else "absent"
        if (theirs := saved.get(name, "absent")) != ours:
            raise UserError(f"{path}: {name} is {theirs} in the checkpoint and {ours} in the model; use its own recipe")


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None when every file is there with its bytes and checksum."""
    try:
        files = _read_json(path / MANIFEST)["files"]
        for name in (MODEL, OPTIMIZER, STATE):
            if not (path / name).is_file():
                return f"{name} is missing"
            if _fingerprint(path / name) != files[name]:
                return f"{name} is damaged (its checksum is not the one in {MANIFEST})"
    except (UserError, KeyError, TypeError):
        return f"{MANIFEST} is missing or damaged"
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable ({error}); resume from another checkpoint") from None


def _random_state() -> dict[str, Any]:
    cuda = (
        [state.numpy().tobytes().hex() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else []
    )
    return {"torch": torch.get_rng_state().numpy().tobytes().hex(), "cuda": cuda}


def _set_random_state(saved: Mapping[str, Any]) -> None:
    torch.set_rng_state(_unhex(saved["torch"]))
    if saved["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_unhex(state) for state in saved["cuda"]])


def _hex(state: Tensor) -> str:
    return state.numpy().tobytes().hex()


def _unhex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
