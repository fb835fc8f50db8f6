"""Metrics of a run: one JSON line a step and an evaluation, flushed at once, and TensorBoard beside it if asked for.

A resumed run first cuts off what lies after the point it goes on from, so that no step appears twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from burnish.errors import MissingExtra, UserError
from burnish.records import Evaluation, Step

KINDS: dict[str, type[Step] | type[Evaluation]] = {"step": Step, "evaluation": Evaluation}


class MetricsLog:
    """Appends to `metrics.jsonl`, and to event files in `tensorboard` when that folder is given.

    Opening keeps the steps up to `step` and the evaluations up to `evaluated`; `lost` counts those steps that the file
    does not hold whole, though it should. Raises UserError when the file cannot be
    written and MissingExtra when TensorBoard is asked for but not installed.
    """

    def __init__(self, path: Path, step: int = 0, evaluated: int = 0, tensorboard: Path | None = None) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            self._file.truncate(_end_of(path, step, evaluated))
            self.lost = step - sum(isinstance(record, Step) for _, record in _lines(path))
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}); choose a writable folder") from None
        self._board = _event_writer(tensorboard, step) if tensorboard else None

    def add(self, record: Step | Evaluation) -> None:
        """Append one record. Raises UserError when the disk is full."""
        kind = "step" if isinstance(record, Step) else "evaluation"
        values = record.model_dump()
        try:
            self._file.write(json.dumps({"kind": kind} | values).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); free space") from None
        if self._board is not None:
            for key in {name for name, value in values.items() if value is not None} - {"step"}:
                self._board.add_scalar(f"{kind}/{key}", values[key], record.step)

    def flush(self) -> None:
        """Put every line on the disk, so that a checkpoint never knows of a step the log has lost."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(path: Path) -> tuple[tuple[Step, ...], tuple[Evaluation, ...]]:
    """The steps and evaluations of a log, in order; a damaged line and an unfinished last one are left out."""
    records = [record for _, record in _lines(path)]
    steps = tuple(record for record in records if isinstance(record, Step))
    return steps, tuple(record for record in records if isinstance(record, Evaluation))


def _lines(path: Path) -> list[tuple[int, Step | Evaluation]]:
    """Whole records of a log, each with the offset at which it ends; what is none is passed over."""
    found: list[tuple[int, Step | Evaluation]] = []
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):
        end += len(line)
        try:
            values = json.loads(line)
            record = KINDS[values.pop("kind")].model_validate(values)
        except (ValueError, KeyError, AttributeError, TypeError):
            continue
        if line.endswith(b"\n"):
            found.append((end, record))
    return found


def _end_of(path: Path, step: int, evaluated: int) -> int:
    """Offset behind the last record that belongs to a run standing at `step`."""
    kept = 0
    for end, record in _lines(path):
        if record.step > (step if isinstance(record, Step) else evaluated):
            break
        kept = end
    return kept


def _event_writer(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("train.tensorboard", "train", "tensorboard") from None
    return SummaryWriter(str(folder), purge_step=step + 1)
