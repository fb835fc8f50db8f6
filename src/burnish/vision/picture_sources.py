"""Picture sources: the annotated pictures that a recipe names, from annotation files or a set that can be fetched."""

from __future__ import annotations

from pathlib import Path

from burnish.errors import UserError
from burnish.load.picture_sets import PICTURE_SETS, picture_set
from burnish.vision.annotations.annotation import Annotated
from burnish.vision.annotations.read import read


def annotated(source: str, part: str) -> Annotated:
    """The pictures of one source. Raises UserError, naming what is missing or broken."""
    if source in PICTURE_SETS:
        return read(picture_set(source)["train" if part == "train" else "test"])
    path = Path(source)
    if not path.exists():
        known = ", ".join(PICTURE_SETS)
        raise UserError(
            f"images.{part} {source!r}: no file or folder of annotations and no set that can be fetched ({known})"
        )
    return read(path)
