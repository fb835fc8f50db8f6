"""Picture sources: the annotated pictures that a recipe names, from annotation files or a part of a set that can be fetched."""

from __future__ import annotations

from pathlib import Path

from burnish.errors import UserError
from burnish.load.picture_sets import PARTS, PICTURE_SETS, picture_set
from burnish.vision.annotations.annotation import Annotated
from burnish.vision.annotations.read import read


def annotated(source: str, side: str) -> Annotated:
    """The pictures of one source: annotations of any form that is known, or NAME/PART of a set.

    Raises UserError, naming what is missing or broken.
    """
    name, _, part = source.partition("/")
    if name in PICTURE_SETS and not Path(source).exists():
        if part not in PARTS:
            said = " or ".join(f"{name}/{one}" for one in PARTS)
            raise UserError(f"images.{side} {source!r}: say which part of the set: {said}")
        return read(picture_set(name)[part])
    if not Path(source).exists():
        known = ", ".join(f"{one}/{PARTS[0]}" for one in PICTURE_SETS)
        raise UserError(f"images.{side} {source!r}: no annotations there, and no part of a set ({known})")
    return read(Path(source))
