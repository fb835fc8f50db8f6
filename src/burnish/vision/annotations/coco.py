"""COCO annotations (Lin et al. 2014): one JSON file; a box is left, top, width and height in pixels, counted from 0.

`iscrowd` marks a crowd. Pictures lie beside the file, in `images` beside it, or in either of these one folder up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from burnish.vision.annotations.annotation import Annotated, Box
from burnish.vision.annotations.sheet import Broken, Row, Sheet, Sheets, count, found, number, said, text_of

FILE, FOLDER = "annotations.json", "images"
PARTS = ("images", "categories", "annotations")
SIDES = ("left", "top", "width", "height")


def read(path: Path, images: Path | None = None) -> Sheets:
    """What a file says; `images` is the folder of pictures where it is elsewhere."""
    up = path.parent.parent
    roots = [images] if images else [path.parent, path.parent / FOLDER, up / FOLDER, up]
    try:
        parts = _parts(path)
    except Broken as error:
        return Sheets((), (), (said(path, str(error)),))
    problems: list[str] = []
    classes = _classes(path, parts["categories"], problems)
    rows: dict[Any, list[Row]] = {}
    pictures = _pictures(path, parts["images"], roots, problems)
    ids: set[Any] = set()
    for place, own in enumerate(parts["annotations"], start=1):
        where, picture = f"annotation {place}", ""
        try:
            key = _field(own, "id") if "id" in _record(own) else None
            where = where if key is None else f"annotation {key}"
            image = _field(own, "image_id")
            if image not in pictures:
                raise Broken(f"image_id {image!r} is no picture of the file")
            sheet = pictures[image]
            if sheet is None:  # refused, and said so
                continue
            picture = sheet.name
            if key is not None and key in ids:
                raise Broken("its id is there twice")
            ids.add(key)
            rows.setdefault(image, []).append((where, _box(own, classes)))
        except Broken as error:
            problems.append(said(path, *([picture] if picture else []), where, str(error)))
    sheets = tuple(replace(one, rows=tuple(rows.get(key, ()))) for key, one in pictures.items() if one)
    return Sheets(tuple(classes.values()), sheets, tuple(problems))


def _parts(path: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(text_of(path))
    except Broken:
        raise
    except (ValueError, RecursionError) as error:
        raise Broken(f"is no JSON ({str(error)[:100]})") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(part), list) for part in PARTS):
        missing = [part for part in PARTS if not isinstance(content, dict) or not isinstance(content.get(part), list)]
        raise Broken(f"has no list of {' and '.join(missing)}")
    return {part: content[part] for part in PARTS}


def _record(own: Any) -> dict[str, Any]:
    if not isinstance(own, dict):
        raise Broken(f"{str(own)[:40]!r} is no record")
    return own


def _field(own: Any, name: str) -> Any:
    """A field that is a name or a number. Raises Broken where it is not."""
    value = _record(own).get(name)
    if name not in own:
        raise Broken(f"has no {name}")
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise Broken(f"{name} is {value!r}")
    return value


def _classes(path: Path, categories: list[Any], problems: list[str]) -> dict[Any, str]:
    """Names by id, in the file's order."""
    made: dict[Any, str] = {}
    for place, own in enumerate(categories, start=1):
        try:
            key, name = _field(own, "id"), str(_field(own, "name"))
            if key in made:
                raise Broken(f"id {key!r} is there twice")
            twice = name in made.values()
            made[key] = name
            if twice:
                raise Broken(f"name {name!r} is there twice")
        except Broken as error:
            problems.append(said(path, f"category {place}", str(error)))
    return made


def _pictures(path: Path, images: list[Any], roots: list[Path], problems: list[str]) -> dict[Any, Sheet | None]:
    """Sheets without boxes by id, None for a picture that is refused."""
    made: dict[Any, Sheet | None] = {}
    for place, own in enumerate(images, start=1):
        where = f"image {place}"
        try:
            key, name = _field(own, "id"), str(_field(own, "file_name"))
            where = name
            if key in made:
                raise Broken(f"id {key!r} is also that of an earlier picture")
            made[key] = None
            size = (count(_field(own, "width"), "width"), count(_field(own, "height"), "height"))
            made[key] = Sheet(path, name, found(name, roots), size, ())
        except Broken as error:
            problems.append(said(path, where, str(error)))
    return made


def _box(own: dict[str, Any], classes: dict[Any, str]) -> Box:
    category, sides = _field(own, "category_id"), own.get("bbox")
    if category not in classes:
        raise Broken(f"category_id {category!r} is no class of the file")
    if "bbox" not in own:
        raise Broken("has no bbox")
    if not isinstance(sides, list) or len(sides) != len(SIDES):
        raise Broken(f"bbox is {str(sides)[:60]}, not {', '.join(SIDES)}")
    left, top, width, height = (number(side, f"its {name}") for side, name in zip(sides, SIDES, strict=True))
    return Box(classes[category], left, top, width, height, bool(number(own.get("iscrowd", 0), "iscrowd")))


def files(annotated: Annotated) -> Iterator[tuple[str, str]]:
    """The one file, by its name; classes, pictures and boxes are counted from 1."""
    yield FILE, json.dumps(content(annotated), indent=1) + "\n"


def content(annotated: Annotated) -> dict[str, Any]:
    """What the file holds."""
    numbers = {name: number for number, name in enumerate(annotated.classes, start=1)}
    images: list[dict[str, Any]] = []
    boxes: list[dict[str, Any]] = []
    for image, picture in enumerate(annotated.pictures, start=1):
        images.append({"id": image, "file_name": picture.name, "width": picture.width, "height": picture.height})
        for box in picture.boxes:
            own = {"id": len(boxes) + 1, "image_id": image, "category_id": numbers[box.label]}
            sides = [box.x, box.y, box.width, box.height]
            boxes.append({**own, "bbox": sides, "area": box.width * box.height, "iscrowd": int(box.crowd)})
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    return {"images": images, "categories": categories, "annotations": boxes}
