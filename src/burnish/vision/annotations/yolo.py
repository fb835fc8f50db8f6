"""YOLO annotations (Redmon, darknet): a text file a picture, a line an object: its class counted from 0, then the middle,
width and height as shares of the picture's.

Names of classes are in `data.yaml` or `classes.txt`. There are no crowds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import yaml

from burnish.vision.annotations.annotation import Annotated, Box, Picture
from burnish.vision.annotations.sheet import (
    Broken,
    Row,
    Sheet,
    Sheets,
    by_stem,
    exact,
    number,
    of_stem,
    said,
    size_of,
    text_of,
)

LABELS, FOLDER = "labels", "images"
NAMES, CLASSES = "data.yaml", "classes.txt"
SUFFIX = ".txt"
FIELDS = ("its class", "x of the middle", "y of the middle", "width", "height")


def read(path: Path, images: Path | None = None) -> Sheets:
    """What a folder says that holds data.yaml or classes.txt, or a folder below it; a picture without a file has no box."""
    home, names, part = _home(path)
    try:
        classes = _classes(names)
    except Broken as error:
        return Sheets((), (), (said(names, str(error)),))
    labels = home / LABELS if (home / LABELS).is_dir() else home
    pictures = images or (home / FOLDER if (home / FOLDER).is_dir() else home)
    known = by_stem(pictures)
    listed = sorted(p for p in labels.rglob(f"*{SUFFIX}") if p.name != CLASSES)
    written = {file.relative_to(labels).with_suffix("").as_posix(): file for file in listed}
    sheets: list[Sheet] = []
    problems: list[str] = []
    for stem in sorted(written.keys() | known.keys()):
        if part and not stem.startswith(f"{part}/"):
            continue
        file = written.get(stem, labels / f"{stem}{SUFFIX}")
        try:
            own = of_stem(stem, known, pictures)
            name = own.relative_to(pictures).as_posix()
            rows = tuple(_rows(file, name, size_of(own), classes, problems)) if stem in written else ()
            sheets.append(Sheet(file, name, own, None, rows))
        except Broken as error:
            problems.append(said(file, str(error)))
    return Sheets(classes, tuple(sheets), tuple(problems))


def _home(path: Path) -> tuple[Path, Path, str]:
    """The folder of the set, its file of names, and the part of it that `path` is: "train" of images/train."""
    if path.is_file():
        return path.parent, path, ""
    for home in (path, *path.parents[:3]):
        for name in (NAMES, CLASSES):
            if (home / name).is_file():
                parts = path.relative_to(home).parts
                return home, home / name, "/".join(parts[1:] if parts and parts[0] in (FOLDER, LABELS) else parts)
    return path, path / NAMES, ""


def _classes(file: Path) -> tuple[str, ...]:
    text = text_of(file)
    if file.suffix == SUFFIX:
        names: object = [line.strip() for line in text.splitlines() if line.strip()]
    else:
        try:
            content = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise Broken(f"is no YAML ({str(error)[:100]})") from None
        names = content.get("names") if isinstance(content, dict) else None
        if isinstance(names, dict) and sorted(names, key=str) == sorted(range(len(names)), key=str):
            names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise Broken("has no names, a list of the classes")
    made = tuple(str(name) for name in names)
    if len(set(made)) < len(made):
        raise Broken(f"names {max(made, key=made.count)!r} twice")
    return made


def _rows(file: Path, name: str, size: tuple[int, int], classes: tuple[str, ...], problems: list[str]) -> Iterator[Row]:
    for place, line in enumerate(text_of(file).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield f"line {place}", _box(line.split(), size, classes)
        except Broken as error:
            problems.append(said(file, name, f"line {place}", str(error)))


def _box(fields: list[str], size: tuple[int, int], classes: tuple[str, ...]) -> Box:
    if len(fields) != len(FIELDS):
        raise Broken(f"has {len(fields)} fields, not {len(FIELDS)}")
    own, *shares = (number(field, name) for field, name in zip(fields, FIELDS, strict=True))
    if own not in range(len(classes)):
        raise Broken(f"class {fields[0]} is none of 0 to {len(classes) - 1}")
    if max(shares) > 1:
        raise Broken(f"{' '.join(fields[1:])} are no shares of the picture, which are at most 1")
    across, down = shares[0] * size[0], shares[1] * size[1]
    width, height = shares[2] * size[0], shares[3] * size[1]
    return Box(classes[int(own)], across - width / 2, down - height / 2, width, height)


def files(annotated: Annotated) -> Iterator[tuple[str, str]]:
    """The names and a file a picture, by their names; crowds are left out."""
    listed = "".join(f"  {number}: {json.dumps(name)}\n" for number, name in enumerate(annotated.classes))
    yield NAMES, f"path: .\ntrain: {FOLDER}\nval: {FOLDER}\nnames:\n{listed}"
    numbers = {name: number for number, name in enumerate(annotated.classes)}
    for picture in annotated.pictures:
        lines = (_line(box, picture, numbers[box.label]) for box in picture.boxes if not box.crowd)
        yield f"{LABELS}/{PurePosixPath(picture.name).with_suffix(SUFFIX)}", "".join(lines)


def _line(box: Box, picture: Picture, number: int) -> str:
    middle = ((box.x + box.width / 2) / picture.width, (box.y + box.height / 2) / picture.height)
    shares = (*middle, box.width / picture.width, box.height / picture.height)
    return f"{number} {' '.join(map(exact, shares))}\n"


def notes(annotated: Annotated) -> Iterator[str]:
    """What the form cannot say."""
    crowds = sum(box.crowd for picture in annotated.pictures for box in picture.boxes)
    if crowds:
        yield f"{crowds} crowds are left out, the form has none: what is found there counts as wrong"
