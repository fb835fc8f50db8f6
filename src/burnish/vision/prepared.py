"""Prepared: scans read, turned, resampled and normalised once, kept in the cache and mapped into memory from there."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from burnish.data.cache import cache_folder
from burnish.errors import UserError
from burnish.vision.normalise import normalised
from burnish.vision.scans import Scan, read_scan
from burnish.vision.sections import AXES, Images
from burnish.vision.sources import Entry
from burnish.vision.space import Space

CASES = "cases.json"
FORMAT = 1  # of the files; a change makes them anew
SAME_PLACE = 1e-3  # of a voxel: how far image and label may lie apart
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Case:
    """One scan as the network sees it: image float32 [C, *spatial], label integers [*spatial], affine [4, 4].

    Of a network of slices the first spatial axis counts slices.
    """

    name: str
    image: NDArray[np.float32]
    label: NDArray[np.integer]
    affine: NDArray[np.float64]
    spacing: tuple[float, float, float]


def read_image(paths: Sequence[Path]) -> Scan:
    """The channels of one scan. Raises UserError where their grids differ."""
    scans = [read_scan(path) for path in paths]
    for path, scan in zip(paths, scans, strict=True):
        if scan.array.shape[1:] != scans[0].array.shape[1:]:
            raise UserError(f"{path}: {scan.array.shape[1:]} voxels, {paths[0].name} has {scans[0].array.shape[1:]}")
    if len(scans) == 1:
        return scans[0]
    return Scan(np.concatenate([scan.array for scan in scans]), scans[0].affine, scans[0].kind, scans[0].header)


def read_pair(entry: Entry) -> tuple[Scan, NDArray[np.int64]]:
    """A scan and its label values [X, Y, Z]. Raises UserError, naming the file, where the two do not lie on each other."""
    scan = read_image(entry.images)
    assert entry.label is not None
    label = read_scan(entry.label, label=True)
    if label.array.shape[0] != 1 or label.array.shape[1:] != scan.array.shape[1:]:
        raise UserError(f"{entry.label}: {label.array.shape[1:]} voxels, its image has {scan.array.shape[1:]}")
    apart = np.abs(np.linalg.solve(scan.affine, label.affine) - np.eye(4)) @ [*scan.array.shape[1:], 1.0]
    if label.kind != "picture" and apart[:3].max() > max(SAME_PLACE * max(scan.array.shape), 0.1):
        raise UserError(f"{entry.label}: lies {apart[:3].max():.1f} voxels from its image; resample it onto the image")
    values = label.array[0]
    if values.dtype.kind == "f" and not np.array_equal(values, np.rint(values)):
        raise UserError(f"{entry.label}: holds values that are not whole numbers; a label file has class numbers")
    return scan, np.asarray(values, np.int64)


def as_classes(values: NDArray[np.integer], classes: dict[str, tuple[int, ...]]) -> NDArray[np.int64]:
    """Values of a label file as classes 1, 2, ... in the order of `classes`; all others are background."""
    found = np.zeros(values.shape, np.int64)
    for number, own in enumerate(classes.values(), start=1):
        found[np.isin(values, own) if own else values > 0] = number
    return found


def space_of(scan: Scan, images: Images, dimensions: int) -> Space:
    """The space that a scan is seen in. Pictures have no millimetres of their own."""
    spacing = None if scan.kind == "picture" else images.spacing
    return Space.of(scan.array.shape[1:], scan.affine, spacing, AXES[images.slice_axis] if dimensions == 2 else None)


def image_of(scan: Scan, space: Space, images: Images) -> NDArray[np.float32]:
    """The image of a scan as the network sees it."""
    return normalised(space.image(scan.array), images, scan.array.dtype)


def prepare(
    entries: Sequence[Entry],
    images: Images,
    dimensions: int,
    progress: Progress | None = None,
    cache: Path | None = None,
) -> tuple[list[Case], str]:
    """Cases of labelled scans, made unless the cache has them, and the hash of what they are made of."""
    key = _key(entries, images, dimensions)
    place = (cache_folder() if cache is None else cache) / "images" / key[:32]
    if not (place / CASES).is_file():
        with _made_once(place) as folder:
            _make(folder, entries, images, dimensions, progress)
    return list(_opened(place)), key


@contextmanager
def _made_once(place: Path) -> Iterator[Path]:
    """A folder to write into that becomes `place` at the end; of processes at once the first to end is kept."""
    work = place.with_name(f".unfinished-{place.name}-{secrets.token_hex(4)}")
    try:
        work.mkdir(parents=True)
        yield work
        try:
            os.replace(work, place)
        except OSError:
            if not (place / CASES).is_file():
                raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{place.parent}: cannot be written ({reason}); set BURNISH_CACHE to a writable folder"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _key(entries: Sequence[Entry], images: Images, dimensions: int) -> str:
    what = images.model_dump(mode="json", include={"classes", "slice_axis", "spacing", "normalise", "window"})
    said = json.dumps([FORMAT, dimensions, what, content_key(entries)], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def content_key(entries: Sequence[Entry]) -> str:
    """The hash of all files of labelled scans. Raises UserError for one that is not there."""
    digest = hashlib.sha256()
    for entry in entries:
        for path in (*entry.images, *((entry.label,) if entry.label else ())):
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                digest.update(f"\n{file.name}\n".encode())
                try:
                    with file.open("rb") as stream:
                        digest.update(hashlib.file_digest(stream, "sha256").digest())
                except OSError as error:
                    raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def _make(folder: Path, entries: Sequence[Entry], images: Images, dimensions: int, progress: Progress | None) -> None:
    rows = []
    for number, entry in enumerate(entries):
        scan, values = read_pair(entry)
        space = space_of(scan, images, dimensions)
        image, label = image_of(scan, space, images), space.labels(as_classes(values, images.classes))
        np.save(folder / f"{number}-image.npy", image)
        np.save(folder / f"{number}-label.npy", label.astype(np.uint8))
        rows.append({"name": entry.name, "affine": space.network_affine.tolist(), "spacing": space.spacing})
        if progress:
            progress(number + 1, len(entries))
    (folder / CASES).write_text(json.dumps(rows), encoding="utf-8")


def _opened(place: Path) -> Iterable[Case]:
    for number, row in enumerate(json.loads((place / CASES).read_text(encoding="utf-8"))):
        image, label = (np.load(place / f"{number}-{what}.npy", mmap_mode="r") for what in ("image", "label"))
        a, b, c = row["spacing"]
        yield Case(row["name"], image, label, np.asarray(row["affine"]), (a, b, c))
