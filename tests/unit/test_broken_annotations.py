"""Broken annotations: each thing that cannot be right is named in one line, with its file, its picture and its box."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from annotated_shots import annotated, renamed, write_pictures
from burnish.errors import UserError
from burnish.vision.annotations import coco
from burnish.vision.annotations.annotation import Box
from burnish.vision.annotations.read import looked_at, read
from burnish.vision.annotations.write import write

# What is wrong with the sound set of `form`, and what is said: file: picture: box: what, and which values work.
BROKEN = (
    ("coco", "JSON", lambda c: '{"images": [', "annotations.json: is no JSON"),
    ("coco", "no list", lambda c: {**c, "categories": None}, "annotations.json: has no list of categories"),
    (
        "coco",
        "outside",
        ("annotations", "bbox", [20, 2, 12, 4]),
        r"a.png: annotation 1: \(20, 2\) to \(32, 6\) is not in",
    ),
    ("coco", "before 0", ("annotations", "bbox", [-1, 2, 12, 4]), r"a.png: annotation 1: \(-1, 2\) to .*, 31 x 17$"),
    ("coco", "no area", ("annotations", "bbox", [3, 2, 0, 4]), "a.png: annotation 1: has no area, 0 x 4"),
    ("coco", "negative area", ("annotations", "bbox", [9, 9, -3, 4]), "annotation 1: has a negative area, -3 x 4"),
    ("coco", "NaN", ("annotations", "bbox", [float("nan"), 2, 3, 4]), "annotation 1: its left is nan, no number"),
    ("coco", "a word", ("annotations", "bbox", [1, 2, "wide", 4]), "annotation 1: its width is 'wide', no number"),
    (
        "coco",
        "three",
        ("annotations", "bbox", [1, 2, 3]),
        r"annotation 1: bbox is \[1, 2, 3\], not left, top, width, he",
    ),
    ("coco", "missing", ("annotations", "bbox", None), "a.png: annotation 1: bbox is None"),
    ("coco", "class", ("annotations", "category_id", 9), "a.png: annotation 1: category_id 9 is no class of the file"),
    ("coco", "image", ("annotations", "image_id", 9), "annotation 1: image_id 9 is no picture of the file"),
    ("coco", "id twice", ("annotations", "id", 2), "a.png: annotation 2: its id is there twice"),
    ("coco", "id of two", ("images", "id", 2), "b.jpg: id 2 is also that of an earlier picture"),
    ("coco", "no picture", ("images", "file_name", "z.png"), "z.png: there is no picture .*z.png"),
    ("coco", "size", ("images", "width", 30), "a.png: the size is given as 30 x 17, the picture has 31 x 17 pixels"),
    (
        "coco",
        "out of it",
        ("images", "file_name", "../a.png"),
        "the name '../a.png' leads out of the folder of pictures",
    ),
    ("coco", "name twice", ("categories", "name", "tram"), "category 2: name 'tram' is there twice"),
    ("voc", "XML", ("</object>", ""), r"a.xml: is no XML \(mismatched tag"),
    ("voc", "entity", ("<annotation>", "<!DOCTYPE a><annotation>"), "a.xml: declares a document type"),
    (
        "voc",
        "from 0",
        ("<xmin>2</xmin>", "<xmin>0</xmin>"),
        r"a.xml: a.png: object 1: \(-1, 1\) to \(4, 5\) is not inside",
    ),
    ("voc", "turned", ("<xmax>4</xmax>", "<xmax>0</xmax>"), "a.png: object 1: has a negative area, -1 x 4"),
    ("voc", "missing", ("<ymin>2</ymin>", ""), "a.xml: a.png: object 1: has no ymin"),
    ("voc", "no name", ("<name>car</name>", "<name> </name>"), "a.xml: a.png: object 1: has no name"),
    ("voc", "a word", ("<ymax>5</ymax>", "<ymax>five</ymax>"), "a.png: object 1: ymax is 'five', no number"),
    ("voc", "size", ("<width>31</width>", "<width>wide</width>"), "a.xml: width is 'wide', no number"),
    ("voc", "other", ("annotation>", "note>"), "a.xml: is no annotation, its root is <note>"),
    ("kitti", "short", (" -10\n", "\n"), "a.txt: a.png: line 1: has 14 fields, not 15 or 16"),
    ("kitti", "inf", ("car 0", "car inf"), "a.txt: a.png: line 1: field 2 is 'inf', no number"),
    (
        "yolo",
        "pixels",
        ("0 0.", "0 14."),
        "a.txt: a.png: line 1: 14.* are no shares of the picture, which are at most 1",
    ),
    ("yolo", "class", ("0 0.", "7 0."), "a.txt: a.png: line 1: class 7 is none of 0 to 1"),
    ("yolo", "fields", ("0 0.", "0 0 0."), "a.txt: a.png: line 1: has 6 fields, not 5"),
)


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shots")
    write_pictures(folder)
    return folder


@pytest.mark.parametrize(
    ("form", "name", "change", "said"), BROKEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_broken_is_named_in_one_line(
    form: str, name: str, change: object, said: str, shots: Path, tmp_path: Path
) -> None:
    sound = [[Box("car", 1, 1, 3, 4), Box("tram", 5, 5, 2, 2)], [Box("tram", 1, 1, 9, 9)], []]
    write(renamed(annotated(shots, sound), {"old tram": "tram"}), form, tmp_path / "set")
    read(tmp_path / "set")
    spoil(tmp_path / "set", form, change)
    found = looked_at(tmp_path / "set")
    with pytest.raises(UserError, match=said) as refused:
        read(tmp_path / "set")
    assert "\n" not in str(refused.value)
    assert len(found.problems) == (3 if name == "id of two" else 1)  # two boxes have lost their picture then


def spoil(folder: Path, form: str, change: object) -> None:
    """Break the first picture's annotations."""
    files = {"coco": coco.FILE, "voc": "Annotations/a.xml", "kitti": "label_2/a.txt", "yolo": "labels/a.txt"}
    file = folder / files[form]
    text = file.read_text()
    if form != "coco":
        assert isinstance(change, tuple)
        assert change[0] in text
        file.write_text(text.replace(*change) if change[0] == "annotation>" else text.replace(*change, 1))
        return
    content = json.loads(text)
    if callable(change):
        content = change(content)
    else:
        assert isinstance(change, tuple)
        content[change[0]][0][change[1]] = change[2]
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def test_every_problem_is_listed_and_the_rest_is_read(shots: Path, tmp_path: Path) -> None:
    write(
        annotated(shots, [[Box("car", 1, 1, 3, 4), Box("car", 2, 2, 3, 4)], [Box("car", 1, 1, 3, 4)], []]),
        "coco",
        tmp_path / "s",
    )
    content = json.loads((tmp_path / "s" / coco.FILE).read_text())
    content["annotations"][0]["bbox"][2] = 0
    content["annotations"][2]["bbox"][3] = 1000
    (tmp_path / "s" / coco.FILE).write_text(json.dumps(content))
    found = looked_at(tmp_path / "s")
    assert [len(one.boxes) for one in found.annotated.pictures] == [1, 0, 0]
    assert len(found.problems) == 2
    with pytest.raises(UserError, match=r"annotation 1: .* \(and 1 more: burnish annotations "):
        read(tmp_path / "s")


def test_a_picture_that_cannot_be_opened_and_two_of_one_name(shots: Path, tmp_path: Path) -> None:
    write(annotated(shots, [[], [], []]), "yolo", tmp_path / "s")
    (tmp_path / "s/images/a.jpg").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"a.txt: a.jpg and a.png would both be its picture"):
        read(tmp_path / "s")
    (tmp_path / "s/images/a.png").unlink()
    with pytest.raises(UserError, match=r"a.txt: .*a.jpg cannot be read as a picture"):
        read(tmp_path / "s")
    (tmp_path / "s/images/a.jpg").unlink()
    with pytest.raises(UserError, match=r"a.txt: there is no picture a\.\* in "):
        read(tmp_path / "s")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no annotations of a known format"),
        ({"a.txt": "one two"}, "no annotations of a known format"),
        ({"a.json": "{}", "b.json": "[]"}, "name one file of annotations"),
        ({"classes.txt": ""}, "has no names, a list of the classes"),
        ({"data.yaml": "names: [a, a]"}, "names 'a' twice"),
        ({"data.yaml": "names: {0: a, 2: b}"}, "has no names"),
        ({"data.yaml": "names: [a"}, "is no YAML"),
        ({"data.yaml": "names: [a]"}, "there is no picture in these annotations"),
    ],
)
def test_a_folder_without_annotations(files: dict[str, str], said: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        read(tmp_path)
