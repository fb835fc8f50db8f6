"""burnish annotations: what is wrong is listed with exit code 2, what is right is counted and written in another form."""

from __future__ import annotations

from pathlib import Path

import pytest

from annotated_shots import annotated, renamed, write_pictures
from burnish.cli import code_of
from burnish.vision.annotations.annotation import Box
from burnish.vision.annotations.read import read
from burnish.vision.annotations.write import write


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "shots")
    boxes = [[Box("car", 1, 1, 3, 4), Box("tram", 2, 2, 3, 4)], [Box("car", 5, 5, 9, 9, crowd=True)], []]
    write(renamed(annotated(tmp_path / "shots", boxes), {"old tram": "tram"}), "voc", tmp_path / "voc")
    return tmp_path


def test_counted_and_written_in_another_form(place: Path, capsys: pytest.CaptureFixture) -> None:
    assert code_of(["annotations", str(place / "voc"), "--to", "yolo", "--out", str(place / "yolo")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("voc: voc, 3 pictures with 3 boxes")
    assert said[2].split() == ["car", "1", "1", "1", "3", "x", "4", "3"]
    assert said[-1] == "note: 1 crowds are left out, the form has none: what is found there counts as wrong"
    assert [len(one.boxes) for one in read(place / "yolo").pictures] == [2, 0, 0]


def test_each_problem_is_a_line_and_nothing_is_written(place: Path, capsys: pytest.CaptureFixture) -> None:
    file = place / "voc" / "Annotations" / "a.xml"
    file.write_text(file.read_text().replace("<xmax>4<", "<xmax>400<").replace("<ymin>3<", "<ymin>x<"))
    assert code_of(["annotations", str(place / "voc"), "--to", "coco", "--out", str(place / "coco")]) == 2
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert said.err.strip().endswith("voc: 2 problems, listed above; nothing was written")
    assert not (place / "coco").exists()
    assert code_of(["annotations", str(place / "voc"), "--to", "coco"]) == 2
    assert "--to FORMAT and --out FOLDER belong together" in capsys.readouterr().err
