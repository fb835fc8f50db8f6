"""Picture sources: the annotated pictures that a recipe names, from annotation files or a set that can be fetched."""

from __future__ import annotations

from pathlib import Path

from burnish.errors import UserError
from burnish.vision.annotations.annotation import Annotated
from burnish.vision.annotations.read import read


def annotated(source: str, part: str) -> Annotated:
    """The pictures of one source. Raises UserError, naming what is missing or broken."""
    path = Path(source)
    if not path.exists():
        raise UserError(f"images.{part} {source!r}: no file or folder of annotations")
    return read(path)
