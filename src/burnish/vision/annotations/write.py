"""Write annotations in one of the formats, with copies of their pictures, as a new folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from burnish.errors import UserError, nearest
from burnish.export.folder import replacing_folder
from burnish.vision.annotations import coco, kitti, voc, yolo
from burnish.vision.annotations.annotation import Annotated
from burnish.vision.annotations.sheet import Broken

WRITERS: Mapping[str, tuple[Callable[[Annotated], Iterator[tuple[str, str]]], str]] = {
    "coco": (coco.files, coco.FOLDER),
    "voc": (voc.files, voc.FOLDER),
    "kitti": (kitti.files, kitti.FOLDER),
    "yolo": (yolo.files, yolo.FOLDER),
}
NOTES: Mapping[str, Callable[[Annotated], Iterator[str]]] = {"kitti": kitti.notes, "yolo": yolo.notes}


def write(annotated: Annotated, format: str, folder: Path) -> tuple[str, ...]:
    """Write the folder, whole or not at all, and say what the format could not.

    Raises UserError for a folder that holds something, a name or class that the format cannot have, and a full disk.
    """
    if format not in WRITERS:
        raise UserError(f"format {format!r}: {nearest(format, WRITERS)}")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; annotations are written into a new folder")
    files, pictures = WRITERS[format]
    try:
        _different_names(annotated, format)
        texts = dict(files(annotated))
    except Broken as error:
        raise UserError(f"{folder}: {error}; nothing was written") from None
    with replacing_folder(folder, lambda name: False) as fresh:
        for picture in annotated.pictures:
            target = fresh / pictures / picture.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture.path, target)
        for name, text in texts.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_text(text, encoding="utf-8")
    return tuple(NOTES[format](annotated)) if format in NOTES else ()


def _different_names(annotated: Annotated, format: str) -> None:
    """Formats with a file a picture cannot have two pictures whose names differ in the suffix alone. Raises Broken."""
    seen: dict[str, str] = {}
    for picture in annotated.pictures:
        name = picture.name if format == "coco" else str(PurePosixPath(picture.name).with_suffix(""))
        if name in seen:
            raise Broken(f"pictures {seen[name]} and {picture.name} would have the same name")
        seen[name] = picture.name
