"""Plan and Records: what was predicted and what was measured, as frozen records saved in the run folder.

Both sides name a quantity by the same key (`memory.optimizer`, `tokens_per_second`, ...), so that a report can set them
beside each other without knowing how either was made. Byte quantities are bytes, times are seconds.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from burnish.errors import UserError
from burnish.verified import Verified


class Frozen(BaseModel):
    """A record: immutable, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Pass(Frozen):
    """One technique the plan applies, in order, and why it stands there."""

    technique: str
    reason: str
    plan_only: bool = False


class Plan(Frozen):
    """What a recipe will do on a machine, and what it will cost."""

    recipe: str
    machine: str
    passes: tuple[Pass, ...] = ()
    mapping: dict[str, int | str] = {}
    batch: dict[str, int] = {}
    predicted: dict[str, float] = {}
    capacity: float | None = None  # bytes of memory on one device, None when unknown
    fits: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def plan_only(self) -> tuple[str, ...]:
        """Names of the techniques that are predicted but cannot be run."""
        return tuple(p.technique for p in self.passes if p.plan_only)


class Step(Frozen):
    """One optimizer step as the loop saw it. `loss` is nats per label, `seconds` the wall time of the step."""

    step: int
    tokens: int
    loss: float
    lr: float
    grad_norm: float
    seconds: float


class Evaluation(Frozen):
    """One pass over what is held out: bits per byte of text, or the score of labelled images, higher being better."""

    step: int
    loss: float
    bits_per_byte: float | None = None
    score: float | None = None


class Sample(Frozen):
    """Text the trained model wrote."""

    prompt: str
    text: str


class Table(Frozen):
    """Results side by side, as a reader sees them; each row is headed by its first cell."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


class Picture(Frozen):
    """A PNG in base64, with what it shows and what its colours mean."""

    title: str
    png: str
    note: str = ""
    legend: str = ""


class Units(Frozen):
    """What a run counts: its inputs, the unit of its loss, what is held out, and the name of its score, "" for none."""

    inputs: str = "tokens"
    loss: str = "nats per token"
    heldout: str = "held-out text"
    score: str = ""


class SavedFile(Frozen):
    """One exported file."""

    name: str
    bytes: int
    sha256: str


class Records(Frozen):
    """What happened: measured quantities, curves, samples, files and checks.

    `status` is `partly` until the last step, `trained` when export and judging were not asked for, else `done`.
    """

    status: Literal["done", "trained", "partly"] = "done"
    started: str = ""
    seconds: dict[str, float] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}
    measured: dict[str, float] = {}
    curve: tuple[Step, ...] = ()
    evals: tuple[Evaluation, ...] = ()
    quality: dict[str, float | str] = {}
    samples: tuple[Sample, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    units: Units = Units()
    files: tuple[SavedFile, ...] = ()
    checks: dict[str, bool | int | float | str] = {}
    verified: Verified | None = None
    notes: tuple[str, ...] = ()


R = TypeVar("R", bound=BaseModel)


PROCESS = ("/proc/", "/dev/fd/", "/dev/std")  # what stands there is an open stream, though it may lead to a file


def replaced(path: Path, folders: bool = True) -> Path:
    """The file that a write to `path` makes or replaces, symbolic links followed.

    Raises UserError for what is no regular file or is read-only, and for a missing folder where `folders` is false.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        if not folders and not target.parent.is_dir():
            raise UserError(f"{path}: there is no folder {str(target.parent)!r}; make it first") from None
        return target
    except OSError as error:
        raise _unwritable(path, error) from None
    if stat.S_ISDIR(mode):
        raise UserError(f"{path}: is a folder; give the name of a file")
    if not stat.S_ISREG(mode) or os.path.abspath(path).startswith(PROCESS):
        raise UserError(f"{path}: is no regular file; give the name of a new file, or of one to replace")
    if not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(f"{path}: is read-only; give another name, or make it writable")
    return target


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written ({error.strerror or error}); choose a writable folder")


def write_text(path: Path, text: str, folders: bool = True) -> None:
    """`write_bytes` of a text in UTF-8."""
    write_bytes(path, text.encode("utf-8"), folders)


def write_bytes(path: Path, content: bytes, folders: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new, never a part; its permissions stay.

    Missing folders are made where `folders` says so. Raises UserError where there cannot be such a file.
    """
    target = replaced(path, folders)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except OSError as error:
        with suppress(OSError):  # a parent that is a file fails here too
            temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from None


def save(record: BaseModel, path: Path) -> None:
    """Write a record as JSON."""
    write_text(path, json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n")


def read(kind: type[R], path: Path) -> R:
    """Read a record written by `save`. Raises UserError naming the file when it is missing or not such a record."""
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; a run folder holds it once the run has got that far") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        said = ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
        raise UserError(
            f"{path}: damaged ({said}); delete it and run the recipe again, which goes on from its checkpoints"
        ) from None
