"""Sheet: what an annotation file says of one picture, in absolute pixels and not yet checked; a problem is one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from burnish.vision.annotations.annotation import Box

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
Row = tuple[str, Box]  # where in the file it stands, and the box


class Broken(ValueError):
    """What is wrong with one box or picture; who reads the file adds where."""


@dataclass(frozen=True)
class Sheet:
    """One picture as `file` describes it; `size` is width and height, None where the file does not say them."""

    file: Path
    name: str
    path: Path
    size: tuple[int, int] | None
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Sheets:
    """What was read: classes in their order, None where a format lists none, and what could not be read."""

    classes: tuple[str, ...] | None
    sheets: tuple[Sheet, ...]
    problems: tuple[str, ...]


def said(file: Path, *parts: str) -> str:
    """A problem in one line: the file, then the picture and the box, then what is wrong."""
    return ": ".join(" ".join(part.split()) for part in (str(file), *parts))


def number(value: Any, what: str) -> float:
    """A finite number, of text too. Raises Broken."""
    try:
        made = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        made = math.nan
    if not math.isfinite(made):
        raise Broken(f"{what} is {value!r}, no number")
    return made


def count(value: Any, what: str) -> int:
    """A whole number above 0. Raises Broken."""
    made = number(value, what)
    if made != int(made) or made < 1:
        raise Broken(f"{what} is {value!r}, no whole number above 0")
    return int(made)


def exact(value: float) -> str:
    """A number as text that reads back equal, whole ones without a fraction."""
    return repr(float(value)).removesuffix(".0")


def text_of(file: Path) -> str:
    """The text of an annotation file. Raises Broken."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Broken(f"cannot be read ({error.strerror or error})") from None
    except ValueError:
        raise Broken("is no text in UTF-8") from None


def found(name: str, roots: Sequence[Path]) -> Path:
    """Where a picture of this name lies: below the first of `roots` that has it, else the first. Raises Broken."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise Broken(f"the name {name!r} leads out of the folder of pictures")
    return next((root / name for root in roots if (root / name).is_file()), roots[0] / name)


def by_stem(root: Path) -> dict[str, list[Path]]:
    """The pictures below a folder by their names below it, without suffix."""
    made: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")) if root.is_dir() else ():
        if path.suffix.lower() in PICTURES and path.is_file():
            made.setdefault(path.relative_to(root).with_suffix("").as_posix(), []).append(path)
    return made


def of_stem(stem: str, known: dict[str, list[Path]], root: Path) -> Path:
    """The one picture of a name without suffix. Raises Broken where there is none, and where there are two."""
    paths = known.get(stem, [])
    if not paths:
        raise Broken(f"there is no picture {stem}.* in {root}")
    if len(paths) > 1:
        raise Broken(f"{' and '.join(path.name for path in paths)} would both be its picture")
    return paths[0]


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a picture file. Raises Broken."""
    from PIL import Image

    if not path.is_file():
        raise Broken(f"there is no picture {path}")
    try:
        with Image.open(path) as opened:
            return opened.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Broken(f"{path} cannot be read as a picture ({str(error)[:100]})") from None
