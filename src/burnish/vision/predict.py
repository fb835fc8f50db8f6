"""Predict: label a scan, or every scan of a folder, with a bundle; what was labelled before is left, what fails is named.

A folder of results holds predicted.json, which says by which weights and settings each file was made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import PartlyDone, UserError
from burnish.records import write_text
from burnish.vision.bundle import ENGINES, Bundle
from burnish.vision.inference import Labeller, label_scan
from burnish.vision.prepared import read_image
from burnish.vision.scans import DICOM, suffix_of
from burnish.vision.sources import CHANNEL, name_of, scans_in
from burnish.vision.written_labels import name_for, write_labels

LOG = "predicted.json"
NAMED = 3  # failures in one line
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Predicted:
    """What came of it: files written now, files that were there, and what failed with the reason."""

    written: tuple[Path, ...]
    there: int
    failed: tuple[str, ...]


def inputs(source: Path, channels: int) -> list[tuple[Path, ...]]:
    """The scans at `source`, each with its files by channel. Raises UserError where there are none."""
    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    if not source.is_dir():
        return [(source,)]
    found = scans_in(source)
    if any(path.is_file() and suffix_of(path) in DICOM for path in found):
        return [(source,)]  # one series
    if not found:
        raise UserError(f"{source}: holds no scan of a known kind")
    if channels == 1:
        return [(path,) for path in found]
    grouped: dict[str, list[Path]] = {}
    for path in found:
        grouped.setdefault(CHANNEL.sub("", name_of(path)), []).append(path)
    return [tuple(paths) for paths in grouped.values()]


def predict(
    bundle: Bundle, labeller: Labeller, engine: str, source: Path, out: Path, progress: Progress | None = None
) -> Predicted:
    """Label what is at `source` into the folder `out`. Raises UserError where nothing can be, PartlyDone where some could not."""
    scans = inputs(source, labeller.network.in_channels)
    if source.resolve() == out.resolve():
        raise UserError(f"{out}: is where the scans are; name another folder with --out")
    by, log = _by(bundle, labeller, engine), _log(out)
    before = log["files"] if log.get("by") == by else {}
    known = {name: before[name] for name in map(_stamp, scans) if name in before and (out / before[name]).is_file()}
    written, failed, there = [], [], 0
    for number, paths in enumerate(scans):
        name = _stamp(paths)
        if name in known:
            there += 1
        else:
            try:
                path = _one(labeller, paths, out, set(known.values()))
            except (UserError, MemoryError) as error:
                failed.append(_said(paths[0], error))
            else:
                known[name] = path.name
                written.append(path)
                write_text(out / LOG, json.dumps({"by": by, "files": known}, indent=1) + "\n")
        if progress:
            progress(number + 1, len(scans), name_of(paths[0]))
    made = Predicted(tuple(written), there, tuple(failed))
    if failed and len(scans) == 1:
        raise UserError(failed[0])
    if failed:
        more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        done = f"{len(scans) - len(failed)} of {len(scans)} scans are labelled in {out}"
        raise PartlyDone(f"{done}; not these: {'; '.join(failed[:NAMED])}{more}")
    return made


def _one(labeller: Labeller, paths: Sequence[Path], out: Path, taken: set[str]) -> Path:
    scan = read_image(paths)
    name = name_for(paths[0], scan)
    if len(paths) > 1:
        name = CHANNEL.sub("", name_of(paths[0])) + name[len(name_of(paths[0])) :]
    if name in taken:
        raise UserError(f"{paths[0]}: another scan here has labels of the name {name}; rename one of them")
    write_labels(out / name, label_scan(labeller, scan), scan)
    return out / name


def _said(path: Path, error: BaseException) -> str:
    said = str(error) or "not enough memory"
    return said if str(path) in said else f"{path}: {said}"


def _stamp(paths: Sequence[Path]) -> str:
    """A scan by its name, size and time of change."""
    stats = [path.stat() for path in paths]
    return f"{paths[0].name} {sum(one.st_size for one in stats)} {max(one.st_mtime_ns for one in stats)}"


def _by(bundle: Bundle, labeller: Labeller, engine: str) -> str:
    """The weights and settings that labels are made with, in short."""
    with (bundle.path / ENGINES[engine]).open("rb") as stream:
        weights = hashlib.file_digest(stream, "sha256").hexdigest()
    inference = labeller.inference.model_dump_json(include={"overlap", "keep_largest"})
    return hashlib.sha256(f"{weights}{bundle.card.images.model_dump_json()}{inference}".encode()).hexdigest()


def _log(out: Path) -> dict[str, Any]:
    try:
        found = json.loads((out / LOG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("files"), dict) else {}
