"""Annotations of boxes: four forms say the same, and each convention is the form's own."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from annotated_shots import SIZES, annotated, renamed, write_pictures
from burnish.errors import UserError
from burnish.vision.annotations import coco, kitti, voc, yolo
from burnish.vision.annotations.annotation import Annotated, Box
from burnish.vision.annotations.read import looked_at, read
from burnish.vision.annotations.table import table
from burnish.vision.annotations.write import WRITERS, write

FORMS = tuple(WRITERS)


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shots")
    write_pictures(folder)
    return folder


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
    one_word = renamed(made, {"old tram": "tram"})
    place = tmp_path / str(len(list(tmp_path.iterdir())))
    for form in FORMS:
        own = one_word if form == "kitti" else made
        write(own, form, place / form)
        back = read(place / form)
        same(own, back)
        assert back.classes == own.classes
        assert looked_at(place / form).format == form


def test_boxes_come_back_through_any_chain_of_forms(shots: Path, tmp_path: Path) -> None:
    """From each form into each other one and back to the first."""
    boxes = [[Box("car", 0.25, 1 / 3, 30.7, 10)], [Box("tram", 7, 11, 100.1, 0.5), Box("car", 639, 480, 1, 1)], []]
    made = renamed(annotated(shots, boxes), {"old tram": "tram"})
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
    words = dict(kitti.files(renamed(made, {"old tram": "tram"})))["label_2/a.txt"].split()
    assert (words[0], words[4:8], len(words)) == ("car", ["4", "2", "24", "12"], 15)
    shares = [float(word) for word in dict(yolo.files(made))["labels/a.txt"].split()]
    assert shares == pytest.approx([0, 14 / 31, 7 / 17, 20 / 31, 10 / 17], abs=1e-15)


def test_crowds(shots: Path, tmp_path: Path) -> None:
    """COCO's iscrowd, VOC's difficult, KITTI's DontCare of every class; YOLO has none and says so."""
    crowd, box = Box("car", 1, 1, 9, 9, crowd=True), Box("tram", 2, 2, 4, 4)
    made = renamed(annotated(shots, [[box, crowd], [], []]), {"old tram": "tram"})
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
