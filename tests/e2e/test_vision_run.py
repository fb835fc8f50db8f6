"""A vision recipe from files to labels: run, stopped and gone on with, pruned, exported, reported, and used on new scans."""

import json
from pathlib import Path

import numpy as np
import pytest

import scan_files as files
from burnish.cli import code_of
from burnish.records import Plan, Records, read
from burnish.vision.bundle import load_network, open_bundle
from burnish.vision.scans import read_scan

STEPS = 12


def blobs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A volume of a bright ellipsoid in noise, and where it is."""
    draw = np.random.default_rng(seed)
    x, y, z = np.mgrid[:24, :20, :10]
    at = np.array([12, 10, 5]) + draw.uniform(-2, 2, 3)
    inside = ((x - at[0]) / 7) ** 2 + ((y - at[1]) / 5) ** 2 + ((z - at[2]) / 4) ** 2 < 1
    return (inside * 300 + draw.normal(400, 30, inside.shape)).astype(np.int16), inside.astype(np.uint8) * 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scans of four patients in folders, a recipe of them, and a cache of their own."""
    folder = tmp_path_factory.mktemp("vision")
    for part in ("images", "labels"):
        (folder / "data" / part).mkdir(parents=True)
    for number in range(4):
        image, label = blobs(number)
        affine = list(files.AFFINES.values())[number]
        files.write_nifti(folder / "data" / "images" / f"p{number}.nii.gz", image, affine)
        files.write_nifti(folder / "data" / "labels" / f"p{number}.nii.gz", label, affine)
    recipe = {
        "network": {"channels": [8, 16]},
        "images": {"train": [str(folder / "data")], "validation_fraction": 0.25, "spacing": [2, 2, 3]},
        "optim": {"lr": 0.01},
        "train": {"steps": STEPS, "global_batch": 6, "micro_batch": 3, "eval_every": 6, "checkpoint_every": 4},
        "prune": {"target": 0.5, "retrain_steps": 8, "max_drop": 1.0},
        "output": {"overlays": 2},
        "inference": {"keep_largest": True},
        "machine": {"threads": 1},
    }
    (folder / "blobs.yaml").write_text(json.dumps(recipe))
    return folder


def test_from_scans_to_labels_of_new_ones(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)
    assert code_of(["plan", "blobs.yaml"]) == 0
    assert code_of(["train", "blobs.yaml"]) == 0
    run = place / "runs" / "blobs"
    trained = read(Records, run / "records.json")
    assert (trained.status, len(trained.curve)) == ("trained", STEPS)
    assert trained.evals[-1].score is not None
    assert code_of(["run", "blobs.yaml"]) == 0
    plan, made = read(Plan, run / "plan.json"), read(Records, run / "records.json")
    assert made.status == "done"
    assert made.curve == trained.curve
    for key in ("parameters", "memory.parameters", "memory.gradients", "memory.saved", "flops.step"):
        assert plan.predicted[key] == made.measured[key], key
    assert made.checks["weights read back equal"] is True
    assert float(made.checks["pruned: ONNX, largest difference of scores"]) < 1e-4
    assert made.tables[0].rows[0][0] == "trained"
    assert len(made.tables[0].rows) == 6
    assert {"trained.dice", "pruned.dice", "control.dice", "pruned.drop", "score"} <= made.quality.keys()
    page = (run / "report.html").read_text()
    assert page.count("data:image/png;base64") == 2
    assert "images/s" in page
    assert "tokens" not in page.split("<main")[1].split("recipe.lock")[0].split("Versions")[0]
    assert code_of(["report", str(run)]) == 0


def test_what_was_made_labels_new_scans(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pruned network, rebuilt without a pickle, in a grid that no training scan has; both engines say the same."""
    monkeypatch.setenv("BURNISH_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)
    bundle = open_bundle(place / "runs" / "blobs")
    assert sum(p.numel() for p in load_network(bundle).parameters()) < 0.5 * 1400
    image, _ = blobs(9)
    files.write_nrrd(place / "new.nrrd", image, files.AFFINES["permuted"])
    for engine in ("torch", "onnx"):
        assert code_of(["predict", "runs/blobs", "new.nrrd", "--out", engine, "--engine", engine]) == 0
    labels = [read_scan(place / engine / "new.nrrd", label=True) for engine in ("torch", "onnx")]
    np.testing.assert_array_equal(labels[0].array, labels[1].array)
    np.testing.assert_allclose(labels[0].affine, files.AFFINES["permuted"], atol=1e-6)
    assert labels[0].array.shape == (1, *image.shape)


def test_other_settings_do_not_go_on_with_a_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("BURNISH_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)
    assert code_of(["run", "blobs.yaml", "optim.lr=0.02"]) == 2
    assert "optim.lr: 0.01 -> 0.02" in capsys.readouterr().err
    assert code_of(["run", "blobs.yaml"]) == 0
    assert "done already" in capsys.readouterr().err
