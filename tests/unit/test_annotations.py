"""Annotations of boxes: four forms say the same, each convention is the form's own, and what is broken is named in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from burnish.errors import UserError
from burnish.vision.annotations import coco, kitti, voc, yolo
from burnish.vision.annotations.annotation import Annotated, Box, Picture
from burnish.vision.annotations.read import looked_at, read
from burnish.vision.annotations.table import table
from burnish.vision.annotations.write import WRITERS, write

SIZES = ((31, 17), (640, 481), (5, 7))
FORMS = tuple(WRITERS)


def pictures(folder: Path) -> list[Path]:
    """Picture files of odd sizes, one in a folder of its own and one grey."""
    paths = [folder / "a.png", folder / "b.jpg", folder / "deep" / "c.png"]
    (folder / "deep").mkdir(parents=True)
    for path, size, mode in zip(paths, SIZES, ("RGB", "L", "RGB"), strict=True):
        Image.new(mode, size).save(path)
    return paths


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shots")
    pictures(folder)
    return folder


def annotated(shots: Path, boxes: list[list[Box]]) -> Annotated:
    names = ("a.png", "b.jpg", "deep/c.png")
    rows = zip(names, SIZES, boxes, strict=True)
    return Annotated(("car", "old tram"), tuple(Picture(n, shots / n, *size, tuple(own)) for n, size, own in rows))


@st.composite
def boxes_in(draw: st.DrawFn, size: tuple[int, int]) -> Box:
    x, y = (draw(st.floats(0, side - 1)) for side in size)
    width, height = (draw(st.floats(1e-3, side - at)) for side, at in zip(size, (x, y), strict=True))
    return Box(draw(st.sampled_from(("car", "old tram"))), x, y, width, height)


def same(one: Annotated, other: Annotated) -> None:
    """Equal but for rounding: names, sizes, labels, crowds and the order of boxes exactly."""
    assert [(p.name, p.width, p.height) for p in one.pictures] == [(p.name, p.width, p.height) for p in other.pictures]
    for mine, theirs in zip(one.pictures, other.pictures, strict=True):
        assert [(b.label, b.crowd) for b in mine.boxes] == [(b.label, b.crowd) for b in theirs.boxes]
        for a, b in zip(mine.boxes, theirs.boxes, strict=True):
            assert (a.x, a.y, a.width, a.height) == pytest.approx((b.x, b.y, b.width, b.height), abs=1e-6)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_boxes_come_back_from_every_form(data: st.DataObject, shots: Path, tmp_path: Path) -> None:
    drawn = [data.draw(st.lists(boxes_in(size), max_size=4)) for size in SIZES]
    drawn[0].append(Box("old tram", 0, 0, 31, 17))  # both classes occur, and a box may be the picture
    drawn[0].append(Box("car", 30, 16, 1, 1))
    made = annotated(shots, drawn)
    one_word = replace_labels(made, {"old tram": "tram"})
    place = tmp_path / str(len(list(tmp_path.iterdir())))
    for form in FORMS:
        own = one_word if form == "kitti" else made
        write(own, form, place / form)
        back = read(place / form)
        same(own, back)
        assert back.classes == own.classes
        assert looked_at(place / form).format == form


def replace_labels(made: Annotated, names: dict[str, str]) -> Annotated:
    renamed = [
        replace(one, boxes=tuple(replace(box, label=names.get(box.label, box.label)) for box in one.boxes))
        for one in made.pictures
    ]
    return Annotated(tuple(names.get(name, name) for name in made.classes), tuple(renamed))


def test_boxes_come_back_through_any_chain_of_forms(shots: Path, tmp_path: Path) -> None:
    """From each form into each other one and back to the first."""
    boxes = [[Box("car", 0.25, 1 / 3, 30.7, 10)], [Box("tram", 7, 11, 100.1, 0.5), Box("car", 639, 480, 1, 1)], []]
    made = replace_labels(annotated(shots, boxes), {"old tram": "tram"})
    for form in FORMS:
        write(made, form, tmp_path / form)
    for first, second in permutations(FORMS, 2):
        write(read(tmp_path / first), second, tmp_path / f"{first}-{second}")
        write(read(tmp_path / f"{first}-{second}"), first, tmp_path / f"{first}-{second}-{first}")
        same(made, read(tmp_path / f"{first}-{second}-{first}"))


def test_each_form_has_its_own_convention(shots: Path) -> None:
    """One box of 30 x 10 pixels from (4, 2), in the words that each form's own tools write."""
    box = Box("car", 4, 2, 20, 10)
    made = annotated(shots, [[box], [], []])
    (own,) = coco.content(made)["annotations"]
    assert own == {"id": 1, "image_id": 1, "category_id": 1, "bbox": [4, 2, 20, 10], "area": 200, "iscrowd": 0}
    assert "<xmin>5</xmin><ymin>3</ymin><xmax>24</xmax><ymax>12</ymax>" in dict(voc.files(made))["Annotations/a.xml"]
    words = dict(kitti.files(replace_labels(made, {"old tram": "tram"})))["label_2/a.txt"].split()
    assert (words[0], words[4:8], len(words)) == ("car", ["4", "2", "24", "12"], 15)
    shares = [float(word) for word in dict(yolo.files(made))["labels/a.txt"].split()]
    assert shares == pytest.approx([0, 14 / 31, 7 / 17, 20 / 31, 10 / 17], abs=1e-15)


def test_crowds(shots: Path, tmp_path: Path) -> None:
    """COCO's iscrowd, VOC's difficult, KITTI's DontCare of every class; YOLO has none and says so."""
    crowd, box = Box("car", 1, 1, 9, 9, crowd=True), Box("tram", 2, 2, 4, 4)
    made = replace_labels(annotated(shots, [[box, crowd], [], []]), {"old tram": "tram"})
    made = replace(made, pictures=(*made.pictures[:1], replace(made.pictures[1], boxes=(Box("car", 0, 0, 5, 5),))))
    notes = {form: write(made, form, tmp_path / form) for form in FORMS}
    for form in ("coco", "voc"):
        same(made, read(tmp_path / form))
        assert not notes[form]
    first = read(tmp_path / "kitti").pictures[0].boxes
    assert first == (box, crowd, replace(crowd, label="tram"))
    assert "every class" in notes["kitti"][0]
    write(read(tmp_path / "kitti"), "kitti", tmp_path / "again")
    assert (tmp_path / "again/label_2/a.txt").read_text() == (tmp_path / "kitti/label_2/a.txt").read_text()
    assert read(tmp_path / "yolo").pictures[0].boxes == pytest.approx((box,))
    assert "1 crowds are left out" in notes["yolo"][0]


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


@pytest.mark.parametrize(
    ("form", "name", "change", "said"), BROKEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_broken_is_named_in_one_line(
    form: str, name: str, change: object, said: str, shots: Path, tmp_path: Path
) -> None:
    sound = [[Box("car", 1, 1, 3, 4), Box("tram", 5, 5, 2, 2)], [Box("tram", 1, 1, 9, 9)], []]
    write(replace_labels(annotated(shots, sound), {"old tram": "tram"}), form, tmp_path / "set")
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


def test_folders_as_other_tools_lay_them_out(shots: Path, tmp_path: Path) -> None:
    """COCO's annotations/ beside images/, one XML file, VOC's without suffix, YOLO's parts and lists of names, flat KITTI."""
    box = [[Box("car", 1, 1, 3, 4)], [Box("car", 1, 1, 9, 9)], []]
    made = Annotated(("car",), annotated(shots, box).pictures)
    for form in FORMS:
        write(made, form, tmp_path / form)
    (tmp_path / "coco/annotations").mkdir()
    (tmp_path / "coco" / coco.FILE).rename(tmp_path / "coco/annotations/instances_train.json")
    (tmp_path / "coco/annotations/captions.json").write_text('{"images": []}')
    same(made, read(tmp_path / "coco"))
    file = tmp_path / "voc/Annotations/a.xml"
    assert read(file).pictures[0].boxes == tuple(box[0])
    file.write_text(file.read_text().replace("<filename>a.png", "<filename>a"))
    same(made, read(tmp_path / "voc"))
    same(replace(made, pictures=made.pictures[2:]), read(tmp_path / "yolo/images/deep"))
    (tmp_path / "yolo/data.yaml").unlink()
    (tmp_path / "yolo/classes.txt").write_text("car\n\n")
    same(made, read(tmp_path / "yolo"))
    for path in (tmp_path / "kitti/image_2").iterdir():
        path.rename(tmp_path / "kitti/label_2" / path.name) if path.is_file() else None
    flat = tmp_path / "flat"
    (tmp_path / "kitti/label_2").rename(flat)
    (flat / "deep/c.txt").unlink()
    same(replace(made, pictures=made.pictures[:2]), read(flat))
    assert read(tmp_path / "voc/Annotations", images=shots).pictures[0].path == shots / "a.png"


def test_what_cannot_be_written_leaves_nothing(shots: Path, tmp_path: Path) -> None:
    made = annotated(shots, [[], [], []])
    with pytest.raises(UserError, match=r"class 'old tram' cannot be written in KITTI's form"):
        write(made, "kitti", tmp_path / "k")
    twice = replace(made, pictures=(*made.pictures, replace(made.pictures[0], name="a.jpg")))
    with pytest.raises(UserError, match=r"pictures a.png and a.jpg would have the same name"):
        write(twice, "voc", tmp_path / "k")
    gone = replace(made, pictures=(replace(made.pictures[0], path=shots / "gone.png"),))
    with pytest.raises(UserError, match="cannot be written"):
        write(gone, "coco", tmp_path / "k")
    assert not list(tmp_path.iterdir())
    (tmp_path / "k").mkdir()
    (tmp_path / "k/mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        write(made, "coco", tmp_path / "k")
    with pytest.raises(UserError, match="did you mean 'coco'"):
        write(made, "cocoa", tmp_path / "new")
    assert (tmp_path / "k/mine.txt").read_text() == "mine"


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


def test_the_table_counts_each_class(shots: Path) -> None:
    boxes = [
        [Box("car", 0, 0, 4, 10), Box("car", 1, 1, 8, 3)],
        [Box("car", 0, 0, 6, 6), Box("car", 0, 0, 9, 9, True)],
        [],
    ]
    head, cars, trams = (line.split("  ") for line in table(annotated(shots, boxes)))
    assert [cell.strip() for cell in cars if cell] == ["car", "3", "2", "1", "6 x 6", "3"]
    assert [cell.strip() for cell in trams if cell.strip()] == ["old tram", "0", "0", "0"]
    assert head[0].strip() == "class"
