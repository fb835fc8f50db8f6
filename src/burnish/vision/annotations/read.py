"""Read annotations: the format is told by the files, and what is read is checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from burnish.errors import UserError, nearest
from burnish.vision.annotations import coco, kitti, voc, yolo
from burnish.vision.annotations.annotation import Annotated
from burnish.vision.annotations.check import checked
from burnish.vision.annotations.sheet import Broken, Sheets, text_of

READERS: Mapping[str, Callable[[Path, Path | None], Sheets]] = {
    "coco": coco.read,
    "voc": voc.read,
    "kitti": kitti.read,
    "yolo": yolo.read,
}
SUFFIXES = {".json": "coco", ".xml": "voc", ".yaml": "yolo", ".yml": "yolo"}


class Looked(NamedTuple):
    """The format, what was read, and what is wrong with it, a line each."""

    format: str
    annotated: Annotated
    problems: tuple[str, ...]


def read(path: Path | str, format: str | None = None, images: Path | None = None) -> Annotated:
    """Annotated pictures. Raises UserError for what is broken, naming the file, the picture and the box."""
    made = looked_at(Path(path), format, images)
    if made.problems:
        more = f" (and {len(made.problems) - 1} more: burnish annotations {path})" if len(made.problems) > 1 else ""
        raise UserError(f"{made.problems[0]}{more}")
    return made.annotated


def looked_at(path: Path, format: str | None = None, images: Path | None = None) -> Looked:
    """What can be read and what is wrong with the rest. Raises UserError where there are no annotations at all."""
    if format is not None and format not in READERS:
        raise UserError(f"format {format!r}: {nearest(format, READERS)}")
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if images is not None and not images.is_dir():
        raise UserError(f"{images}: is no folder of pictures")
    kind = format or format_of(path)
    made, problems = checked(READERS[kind](_file(path) if kind == "coco" else path, images))
    if not made.pictures and not problems:
        raise UserError(f"{path}: there is no picture in these annotations ({kind})")
    return Looked(kind, made, problems)


def format_of(path: Path) -> str:
    """The format of a file or folder. Raises UserError where it is not known."""
    if path.is_file():
        kind = SUFFIXES.get(path.suffix.lower()) or (_of_text(path) if path.suffix == kitti.SUFFIX else None)
    elif (path / kitti.LABELS).is_dir():
        kind = "kitti"
    elif any((home / name).is_file() for home in (path, *path.parents[:2]) for name in (yolo.NAMES, yolo.CLASSES)):
        kind = "yolo"
    elif (path / voc.LABELS).is_dir() or next(path.glob("*.xml"), None):
        kind = "voc"
    elif _json_files(path):
        kind = "coco"
    else:
        first = next(iter(sorted(path.glob("*.txt"))), None) or next(iter(sorted(path.glob("labels/**/*.txt"))), None)
        kind = _of_text(first) if first else None
    if kind is None:
        raise UserError(f"{path}: no annotations of a known format ({', '.join(READERS)}) are there; say --format")
    return kind


def _of_text(file: Path) -> str | None:
    """KITTI or YOLO, by the number of fields in the first line that has any."""
    try:
        fields = next((line.split() for line in text_of(file).splitlines() if line.strip()), [])
    except Broken:
        return None
    return "kitti" if len(fields) in kitti.FIELDS else "yolo" if len(fields) == len(yolo.FIELDS) else None


def _json_files(folder: Path) -> list[Path]:
    own = folder / coco.FILE
    return [own] if own.is_file() else sorted((*folder.glob("*.json"), *(folder / "annotations").glob("*.json")))


def _file(path: Path) -> Path:
    """The JSON file at `path`. Raises UserError where a folder has several."""
    if path.is_file():
        return path
    listed = _json_files(path)
    own = listed if len(listed) == 1 else [file for file in listed if _has_boxes(file)]
    if len(own) != 1:
        names = ", ".join(file.relative_to(path).as_posix() for file in own[:4]) or "none"
        raise UserError(f"{path}: name one file of annotations ({names})")
    return own[0]


def _has_boxes(file: Path) -> bool:
    try:
        content = json.loads(text_of(file))
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "annotations" in content
