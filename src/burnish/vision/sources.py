"""Sources: image files with their labels and patients, from folders, datalists and sets that can be fetched; and the split."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.load.image_sets import IMAGE_SETS, image_set
from burnish.vision.scans import stem_of, suffix_of
from burnish.vision.sections import Images

FOLDERS = (("images", "labels"), ("imagesTr", "labelsTr"))
PARTS = {"train": ("training", "train"), "validation": ("validation",), "test": ("test", "testing")}
CHANNEL = re.compile(r"_\d{4}$")  # nnU-Net writes one file a channel, counted


@dataclass(frozen=True)
class Entry:
    """One labelled scan; of several image files each is a channel."""

    name: str
    images: tuple[Path, ...]
    label: Path | None
    patient: str


@dataclass(frozen=True)
class Split:
    """Scans to learn from, to choose the best weights by, and to be judged on; no patient is in two of them."""

    train: tuple[Entry, ...]
    validation: tuple[Entry, ...]
    test: tuple[Entry, ...]


def split_of(images: Images, seed: int) -> Split:
    """The scans that a recipe names. Raises UserError where there are none, and for a patient on both sides."""
    train = list(_all(images.train, "train", images.patient))
    validation = list(_all(images.validation, "validation", images.patient))
    test = list(_all(images.test, "test", images.patient))
    if images.validation_fraction:
        patients = sorted({entry.patient for entry in train})
        count = round(images.validation_fraction * len(patients))
        if not 0 < count < len(patients):
            raise UserError(
                f"images.validation_fraction {images.validation_fraction:g} of {len(patients)} patients is {count}; "
                "it must leave one on either side"
            )
        held = set(random.Random(seed).sample(patients, count))
        validation = [entry for entry in train if entry.patient in held]
        train = [entry for entry in train if entry.patient not in held]
    known = {entry.patient: "train" for entry in train}
    for part, entries in (("validation", validation), ("test", test)):
        for entry in entries:
            if known.get(entry.patient) == "train":
                raise UserError(
                    f"patient {entry.patient!r} is in images.train and images.{part}; a patient is on one side"
                )
    return Split(tuple(train), tuple(validation), tuple(test))


def _all(sources: Sequence[str], part: str, pattern: str) -> Iterable[Entry]:
    for source in sources:
        yield from entries(source, part, pattern)


def entries(source: str, part: str = "train", pattern: str = "") -> list[Entry]:
    """The labelled scans of one source. Raises UserError, naming what is missing."""
    if source in IMAGE_SETS:
        return [Entry(stem_of(image), (image,), label, source) for image, label in image_set(source)]
    path = Path(source)
    if path.is_dir():
        return _folder(path, pattern)
    if path.suffix == ".json":
        return _datalist(path, part, pattern)
    known = ", ".join(IMAGE_SETS)
    raise UserError(
        f"images.{part} {source!r}: no folder, no datalist (.json) and no set that can be fetched ({known})"
    )


def _folder(path: Path, pattern: str) -> list[Entry]:
    for images, labels in FOLDERS:
        if (path / images).is_dir() and (path / labels).is_dir():
            return _paired(path / images, path / labels, pattern)
    raise UserError(f"{path}: expected the folders images/ and labels/ in it (or imagesTr/ and labelsTr/)")


def scans_in(folder: Path) -> list[Path]:
    """Files of a known kind, and folders (a DICOM series each), by name."""
    return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and (p.is_dir() or suffix_of(p)))


def name_of(path: Path) -> str:
    """A scan's name without the suffix of its kind."""
    return path.name if path.is_dir() else stem_of(path)


def _paired(images: Path, labels: Path, pattern: str) -> list[Entry]:
    known = {name_of(path): path for path in scans_in(labels)}
    grouped: dict[str, list[Path]] = {}
    for path in scans_in(images):
        name = name_of(path)
        grouped.setdefault(name if name in known else CHANNEL.sub("", name), []).append(path)
    if not grouped:
        raise UserError(f"{images}: holds no image of a known kind")
    if missing := sorted(grouped.keys() - known.keys()):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{labels}: has no label for {missing[0]!r}{more}; give it the image's name")
    return [Entry(name, tuple(paths), known[name], _patient(name, pattern)) for name, paths in sorted(grouped.items())]


def _patient(name: str, pattern: str) -> str:
    if not pattern:
        return name
    found = re.match(pattern, name)
    if found is None:
        raise UserError(f"images.patient {pattern!r} does not match the name {name!r}")
    return str(found[1])


def _datalist(path: Path, part: str, pattern: str) -> list[Entry]:
    """A MONAI datalist: {"training": [{"image": ..., "label": ..., "patient": ...}], ...}."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a datalist ({error})") from None
    rows = next((content[key] for key in PARTS[part] if key in content), None) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a list under {' or '.join(map(repr, PARTS[part]))}")
    made = []
    for row in rows:
        if not isinstance(row, dict) or "image" not in row or "label" not in row:
            raise UserError(f"{path}: each entry has an 'image' and a 'label'")
        images = row["image"] if isinstance(row["image"], list) else [row["image"]]
        name = stem_of(Path(images[0]))
        patient = str(row.get("patient", "")) or _patient(name, pattern)
        files = tuple(path.parent / image for image in images)
        made.append(Entry(name, files, path.parent / row["label"], patient))
    return made
