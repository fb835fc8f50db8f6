"""KITTI annotations (Geiger et al. 2012): a text file a picture, a line an object: its class, then 14 numbers, of which four
are left, top, right and bottom in pixels from 0.

`DontCare` is a region that no class is judged in: it is read as a crowd of each class, and crowds are written as it. What
KITTI says of objects in space is not read, and written as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from burnish.vision.annotations.annotation import Annotated, Box
from burnish.vision.annotations.sheet import Broken, Row, Sheet, Sheets, by_stem, exact, number, of_stem, said, text_of

LABELS, FOLDER = "label_2", "image_2"
SUFFIX = ".txt"
FIELDS = (15, 16)  # a score may follow
CORNERS = ("left", "top", "right", "bottom")
FIRST = 4  # of the corners among the fields
DONT_CARE = "DontCare"
UNSEEN, UNKNOWN = (
    "0 0 -10",
    "-1 -1 -1 -1000 -1000 -1000 -10",
)  # truncated, occluded, alpha; size, place and turn in space


def read(path: Path, images: Path | None = None) -> Sheets:
    """What the text files in a folder, in its `label_2`, or one file say."""
    labels = path / LABELS if (path / LABELS).is_dir() else path
    listed = sorted(labels.rglob(f"*{SUFFIX}")) if labels.is_dir() else [path]
    home = labels if labels.is_dir() else path.parent
    pictures = images or next((p for p in (home.parent / FOLDER, home.parent / "images") if p.is_dir()), home)
    known = by_stem(pictures)
    sheets: list[Sheet] = []
    problems: list[str] = []
    for file in listed:
        try:
            own = of_stem(file.relative_to(home).with_suffix("").as_posix(), known, pictures)
            name = own.relative_to(pictures).as_posix()
            sheets.append(Sheet(file, name, own, None, tuple(_rows(file, name, problems))))
        except Broken as error:
            problems.append(said(file, str(error)))
    classes = tuple(sorted({box.label for sheet in sheets for _, box in sheet.rows} - {DONT_CARE}))
    return Sheets(classes, tuple(_of_each_class(sheet, classes) for sheet in sheets), tuple(problems))


def _rows(file: Path, name: str, problems: list[str]) -> Iterator[Row]:
    for place, line in enumerate(text_of(file).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield f"line {place}", _box(line.split())
        except Broken as error:
            problems.append(said(file, name, f"line {place}", str(error)))


def _box(fields: list[str]) -> Box:
    if len(fields) not in FIELDS:
        raise Broken(f"has {len(fields)} fields, not {' or '.join(map(str, FIELDS))}")
    values = [number(field, f"field {place}") for place, field in enumerate(fields[1:], start=2)]
    left, top, right, bottom = values[FIRST - 1 : FIRST - 1 + len(CORNERS)]
    return Box(fields[0], left, top, right - left, bottom - top, fields[0] == DONT_CARE)


def _of_each_class(sheet: Sheet, classes: tuple[str, ...]) -> Sheet:
    rows: list[Row] = []
    for where, box in sheet.rows:
        labels = classes if box.label == DONT_CARE else (box.label,)
        rows += [(where, replace(box, label=label)) for label in labels]
    return replace(sheet, rows=tuple(rows))


def files(annotated: Annotated) -> Iterator[tuple[str, str]]:
    """A file a picture, by its name. Raises Broken for a class that is no single word."""
    for name in annotated.classes:
        if len(name.split()) != 1 or name == DONT_CARE:
            raise Broken(f"class {name!r} cannot be written in KITTI's form: a class is one word, not {DONT_CARE}")
    for picture in annotated.pictures:
        named = [(DONT_CARE if box.crowd else box.label, box) for box in picture.boxes]
        lines = dict.fromkeys(_line(label, box) for label, box in named if box.crowd)
        text = [line for label, box in named if (line := _line(label, box)) and not box.crowd]
        yield f"{LABELS}/{PurePosixPath(picture.name).with_suffix(SUFFIX)}", "".join((*text, *lines))


def _line(label: str, box: Box) -> str:
    corners = (box.x, box.y, box.x + box.width, box.y + box.height)
    return f"{label} {UNSEEN} {' '.join(map(exact, corners))} {UNKNOWN}\n"


def notes(annotated: Annotated) -> Iterator[str]:
    """What the form cannot say."""
    crowds = [box for picture in annotated.pictures for box in picture.boxes if box.crowd]
    if crowds and len(annotated.classes) > 1:
        yield f"{len(crowds)} crowds are written as {DONT_CARE}, which holds for every class"
