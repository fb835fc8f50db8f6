"""Picture sources: the annotated pictures that a recipe names, from annotation files or a set that can be fetched."""

from __future__ import annotations

from pathlib import Path

from burnish.errors import UserError
from burnish.vision.annotations import coco
from burnish.vision.annotations.annotation import Annotated

FILE = "annotations.json"  # in a folder


def annotated(source: str, part: str) -> Annotated:
    """The pictures of one source. Raises UserError, naming what is missing or broken."""
    path = Path(source)
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"images.{part} {source!r}: no COCO file there, and no folder with {FILE}")
    return coco.read(file)
