"""Pascal VOC annotations (Everingham et al. 2010): an XML file a picture; pixels count from 1, and the last one is the box's.

So a box from x, of this width, is written xmin = x + 1, xmax = x + width. A crowd is written as `difficult`, which VOC's own
metric does not count either.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from xml.sax.saxutils import escape

from burnish.vision.annotations.annotation import Annotated, Box, Picture
from burnish.vision.annotations.sheet import (
    Broken,
    Row,
    Sheet,
    Sheets,
    by_stem,
    count,
    exact,
    found,
    number,
    of_stem,
    said,
    text_of,
)

LABELS, FOLDER = "Annotations", "JPEGImages"
SUFFIX = ".xml"
CORNERS = ("xmin", "ymin", "xmax", "ymax")
UNPRINTABLE = re.compile("[\x00-\x1f]")


def read(path: Path, images: Path | None = None) -> Sheets:
    """What the XML files in a folder, in its `Annotations`, or one file say."""
    labels = path / LABELS if (path / LABELS).is_dir() else path
    listed = sorted(labels.rglob(f"*{SUFFIX}")) if labels.is_dir() else [path]
    home = labels if labels.is_dir() else path.parent
    roots = [images] if images else [home.parent / FOLDER, home, home.parent / "images", home.parent]
    known = {root: by_stem(root) for root in roots[:3]}
    sheets: list[Sheet] = []
    problems: list[str] = []
    for file in listed:
        try:
            sheets.append(_sheet(file, home, roots, known, problems))
        except Broken as error:
            problems.append(said(file, str(error)))
    return Sheets(None, tuple(sheets), tuple(problems))


def _sheet(
    file: Path, home: Path, roots: list[Path], known: dict[Path, dict[str, list[Path]]], problems: list[str]
) -> Sheet:
    root = _parsed(file)
    if root.tag != "annotation":
        raise Broken(f"is no annotation, its root is <{root.tag}>")
    name = (root.findtext("filename") or "").strip()
    path = found(name, roots) if name else None
    if path is None or not path.is_file():  # renamed, or without its suffix: the XML file's own name tells
        stem = file.relative_to(home).with_suffix("").as_posix()
        own = next((root for root in known if stem in known[root]), None)
        if own is not None:
            path = of_stem(stem, known[own], own)
            name = path.relative_to(own).as_posix()
    if path is None:
        raise Broken("has no filename")
    size, stated = None, root.find("size")
    if stated is not None:
        size = (count(_text(stated, "width"), "width"), count(_text(stated, "height"), "height"))
    rows: list[Row] = []
    for place, thing in enumerate(root.findall("object"), start=1):
        try:
            rows.append((f"object {place}", _box(thing)))
        except Broken as error:
            problems.append(said(file, name, f"object {place}", str(error)))
    return Sheet(file, name, path, size, tuple(rows))


def _parsed(file: Path) -> ElementTree.Element:
    text = text_of(file)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise Broken("declares a document type, which annotations have no use for")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise Broken(f"is no XML ({error})") from None


def _text(own: ElementTree.Element, name: str) -> str:
    text = own.findtext(name)
    if text is None or not text.strip():
        raise Broken(f"has no {name}")
    return text.strip()


def _box(thing: ElementTree.Element) -> Box:
    corners = thing.find("bndbox")
    if corners is None:
        raise Broken("has no bndbox")
    left, top, right, bottom = (number(_text(corners, name), name) for name in CORNERS)
    difficult = (thing.findtext("difficult") or "0").strip()
    return Box(_text(thing, "name"), left - 1, top - 1, right - left + 1, bottom - top + 1, difficult == "1")


def files(annotated: Annotated) -> Iterator[tuple[str, str]]:
    """A file a picture, by its name. Raises Broken for a class that XML cannot hold."""
    for name in annotated.classes:
        if UNPRINTABLE.search(name) or name != name.strip() or not name:
            raise Broken(f"class {name!r} cannot be written in XML")
    for picture in annotated.pictures:
        yield f"{LABELS}/{PurePosixPath(picture.name).with_suffix(SUFFIX)}", _written(picture)


def _written(picture: Picture) -> str:
    lines = ["<annotation>", f" <folder>{FOLDER}</folder>", f" <filename>{escape(picture.name)}</filename>"]
    lines.append(f" <size><width>{picture.width}</width><height>{picture.height}</height><depth>3</depth></size>")
    for box in picture.boxes:
        values = (box.x + 1, box.y + 1, box.x + box.width, box.y + box.height)
        corners = "".join(f"<{name}>{exact(value)}</{name}>" for name, value in zip(CORNERS, values, strict=True))
        said_hard = f"<difficult>{int(box.crowd)}</difficult>"
        lines.append(f" <object><name>{escape(box.label)}</name>{said_hard}<bndbox>{corners}</bndbox></object>")
    return "\n".join([*lines, "</annotation>", ""])
