"""A 3-D network from volumes to labels: planned, trained, exported, and used on volumes turned and spaced in other ways."""

import json
from pathlib import Path

import numpy as np
import pytest

import scan_files as files
from burnish.cli import code_of
from burnish.records import Plan, Records, read
from burnish.vision.bundle import load_network, open_bundle
from burnish.vision.scans import read_scan

STEPS, SPACING = 40, 2.0
SHAPE = (18, 20, 14)
LEARNED, ELSEWHERE = (
    0.94,
    0.75,
)  # Dice; all bright voxels together have 0.93 at most, a volume flipped has less than that


def ball(seed: int, spacing: float = SPACING) -> tuple[np.ndarray, np.ndarray]:
    """A volume of `SHAPE` x SPACING millimetres with a bright ball in noise, and a plate as bright that only a 3-D network
    tells from it: in a slice across both are alike."""
    draw = np.random.default_rng(seed)
    shape = [round(side * SPACING / spacing) for side in SHAPE]
    x, y, z = (axis * spacing for axis in np.mgrid[: shape[0], : shape[1], : shape[2]])
    at = np.array([11, 14, 14]) + draw.uniform(-2, 2, 3)
    inside = ((x - at[0]) ** 2 + (y - at[1]) ** 2 + (z - at[2]) ** 2) < 8**2
    plate = (abs(z - at[2]) < 1.5) & ((x - 28) ** 2 + (y - 30) ** 2 < 8**2) & ~inside
    image = (inside | plate) * 300 + draw.normal(400, 30, inside.shape)
    return image.astype(np.int16), inside.astype(np.uint8)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volumes")
    for part in ("images", "labels"):
        (folder / "data" / part).mkdir(parents=True)
    affine = np.diag([SPACING, SPACING, SPACING, 1])
    for number in range(4):
        for part, array in zip(("images", "labels"), ball(number), strict=True):
            files.write_nifti(folder / "data" / part / f"p{number}.nii.gz", array, affine)
    recipe = {
        "network": {"dimensions": 3, "channels": [8, 16]},
        "images": {"train": [str(folder / "data")], "validation_fraction": 0.25, "patch": [16, 16, 12]},
        "augment": {"enabled": False},
        "optim": {"lr": 0.02},
        "train": {"steps": STEPS, "global_batch": 4, "micro_batch": 2, "eval_every": 20, "checkpoint_every": 20},
        "output": {"overlays": 1},
        "machine": {"threads": 1},
    }
    (folder / "balls.yaml").write_text(json.dumps(recipe))
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BURNISH_CACHE", str(place / "cache"))
        patch.chdir(place)
        assert code_of(["run", "balls.yaml"]) == 0
    return place / "runs" / "balls"


def dice(found: np.ndarray, label: np.ndarray) -> float:
    return 2 * ((found > 0) & (label > 0)).sum() / ((found > 0).sum() + (label > 0).sum())


def test_a_network_of_volumes_learns_as_planned(run: Path) -> None:
    plan, made = read(Plan, run / "plan.json"), read(Records, run / "records.json")
    for key in ("parameters", "memory.parameters", "memory.gradients", "memory.saved", "flops.step"):
        assert plan.predicted[key] == made.measured[key], key
    assert made.quality["trained.dice"] > LEARNED
    assert float(made.checks["trained: ONNX, largest difference of scores"]) < 1e-4
    assert {
        tensor.ndim for name, tensor in load_network(open_bundle(run)).state_dict().items() if "conv.weight" in name
    } == {5}


TURNED = np.array([[0, 0, 2.0, 5], [-2.0, 0, 0, 2], [0, 2.0, 0, -4], [0, 0, 0, 1]])  # axes and directions exchanged
FINER = np.diag([-1.5, 1.5, -1.5, 1.0])


@pytest.mark.parametrize(("affine", "spacing"), [(TURNED, 2.0), (FINER, 1.5)], ids=["turned", "finer"])
def test_volumes_in_other_grids_are_labelled_in_theirs(
    affine: np.ndarray, spacing: float, run: Path, tmp_path: Path
) -> None:
    """Windows are smaller than the volume; both engines find the ball where it is."""
    image, label = ball(9, spacing)
    file = files.write_nifti(tmp_path / "new.nii.gz", image, affine)
    found = {}
    for engine in ("torch", "onnx"):
        asked = ["predict", str(run), str(file), "--out", str(tmp_path / engine), "--engine", engine, "--threads", "1"]
        assert code_of(asked) == 0
        scan = read_scan(tmp_path / engine / "new.nii.gz")
        assert scan.array.shape[1:] == image.shape
        np.testing.assert_allclose(scan.affine, affine, atol=1e-5)
        found[engine] = scan.array[0]
    assert (found["torch"] != found["onnx"]).mean() < 1e-3
    assert dice(found["torch"], label) > ELSEWHERE
    assert dice(np.flip(found["torch"], 0), label) < ELSEWHERE  # the ball is in no middle
