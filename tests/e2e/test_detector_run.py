"""A recipe of detection from annotated pictures to boxes in new ones: run, pruned, exported, reported, used."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from burnish.cli import code_of
from burnish.records import Plan, Records, read
from burnish.vision.bundle import labeller_of, load_network, open_bundle
from burnish.vision.finding import find

STEPS = 40
SIDES = {"small": 6, "large": 14}


def scene(draw: np.random.Generator, height: int, width: int) -> tuple[np.ndarray, list[tuple[str, list[int]]]]:
    """Noise with one square of each size."""
    pixels = draw.normal(40, 8, (height, width, 3)).clip(0, 255).astype(np.uint8)
    found = []
    for column, (name, side) in enumerate(SIDES.items()):
        x = int(draw.integers(1, width // 2 - side)) + column * (width // 2)
        y = int(draw.integers(1, height - side))
        pixels[y : y + side, x : x + side, :2] = 220
        found.append((name, [x, y, side, side]))
    return pixels, found


def write_set(folder: Path, count: int, seed: int, sizes: tuple[tuple[int, int], ...]) -> None:
    """Scenes as PNG files with COCO's annotations."""
    folder.mkdir()
    draw, names = np.random.default_rng(seed), list(SIDES)
    content: dict = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 3 + k, "name": n} for k, n in enumerate(names)],
    }
    for number in range(count):
        height, width = sizes[number % len(sizes)]
        pixels, found = scene(draw, height, width)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        content["images"].append({"id": number, "file_name": f"{number}.png", "width": width, "height": height})
        for name, box in found:
            own = {"id": len(content["annotations"]) + 1, "image_id": number, "category_id": 3 + names.index(name)}
            content["annotations"].append(own | {"bbox": box, "area": box[2] * box[3], "iscrowd": 0})
    (folder / "annotations.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets and a recipe of them."""
    folder = tmp_path_factory.mktemp("detection")
    write_set(folder / "train", 24, 0, ((48, 64), (41, 64)))
    write_set(folder / "test", 6, 1, ((40, 50), (48, 64), (33, 47)))
    recipe = {
        "task": "detection",
        "network": {"kind": "centernet", "channels": [8, 16, 16], "head": 16},
        "images": {"train": [str(folder / "train")], "test": [str(folder / "test")], "validation_fraction": 0.25},
        "augment": {"rotate": 0, "scale": 0.1},
        "optim": {"lr": 0.02},
        "train": {"steps": STEPS, "global_batch": 8, "micro_batch": 3, "eval_every": 20, "checkpoint_every": 20},
        "prune": {"target": 0.4, "retrain_steps": 12, "max_drop": 1.0},
        "int8": {"used": True, "samples": 8, "max_drop": 1.0},
        "output": {"overlays": 2},
        "machine": {"threads": 1},
    }
    (folder / "squares.yaml").write_text(json.dumps(recipe))
    return folder


def test_from_annotations_to_a_report(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)
    assert code_of(["plan", "squares.yaml"]) == 0
    assert code_of(["run", "squares.yaml"]) == 0
    run = place / "runs" / "squares"
    plan, made = read(Plan, run / "plan.json"), read(Records, run / "records.json")
    assert (made.status, made.units.score) == ("done", "mAP")
    for key in ("parameters", "memory.parameters", "memory.gradients", "memory.saved", "flops.step"):
        assert plan.predicted[key] == made.measured[key], key
    assert made.checks["weights read back equal"] is True
    assert float(made.checks["pruned: ONNX, largest difference of scores"]) < 1e-4
    steps, losses, classes = made.tables
    assert [row[0] for row in steps.rows][:3] == ["trained", "cut, nothing else", "... normalisation measured again"]
    assert (len(steps.rows), len(losses.rows)) == (9, 7)
    assert losses.heads == ("step", "against", "map", "map50")
    assert classes.heads == ("mAP", "large", "small") or classes.heads == ("mAP", "small", "large")
    lost = made.quality["trained.map50"] - made.quality["cut.map50"]
    assert next(row for row in losses.rows if row[1] == "trained")[3] == f"{lost:+.4f}"
    assert made.quality["trained.map50"] > 0.5
    page = (run / "report.html").read_text()
    assert page.count("data:image/png;base64") == 2
    assert "What each step lost" in page.replace("\xa0", " ")


def test_what_was_made_finds_boxes_in_new_pictures(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """By the weights and by the ONNX file the same boxes, in pictures of other sizes; a broken one is named."""
    monkeypatch.setenv("BURNISH_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)
    bundle = open_bundle(place / "runs" / "squares")
    whole = read(Records, place / "runs" / "squares" / "records.json").measured["parameters"]
    assert sum(p.numel() for p in load_network(bundle).parameters()) < 0.6 * whole
    pictures = [
        scene(np.random.default_rng(seed), *size)[0] for seed, size in enumerate(((48, 64), (37, 61), (20, 33)))
    ]
    results = [
        find(labeller_of(bundle, engine, 1), [one.transpose(2, 0, 1) for one in pictures])
        for engine in ("torch", "onnx")
    ]
    for ours, theirs in zip(*results, strict=True):
        assert len(ours.boxes) > 0
        np.testing.assert_allclose(np.sort(ours.scores), np.sort(theirs.scores), atol=1e-3)
    (place / "new").mkdir()
    for number, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(place / "new" / f"{number}.png")
    assert code_of(["predict", "runs/squares", "new", "--out", "found", "--engine", "int8"]) == 0
    said = capsys.readouterr().out
    assert "found: boxes in 3 pictures" in said
    assert "small" in said
    content = json.loads((place / "found" / "boxes.json").read_text())
    assert len(content["images"]) == 3
    assert all(box["score"] >= 0.3 and box["bbox"][2] > 0 for box in content["annotations"])
    assert sorted(path.name for path in (place / "found" / "overlays").iterdir()) == [
        "0.png.png",
        "1.png.png",
        "2.png.png",
    ]
    (place / "new" / "broken.png").write_bytes(b"no picture")
    assert code_of(["predict", "runs/squares", "new", "--out", "found"]) == 4
    assert "broken.png: cannot be read as a picture" in capsys.readouterr().err


def test_pruning_after_the_export_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The order matters: what is exported is not cut any more, and nothing is written."""
    monkeypatch.chdir(place)
    file = "runs/squares/model/model.onnx"
    assert code_of(["run", "squares.yaml", f"train.init={file}", "--out", "runs/late"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"train.init {file}: is exported already; pruning and training come before the export" in said
    assert not (place / "runs" / "late" / "checkpoints").exists()
