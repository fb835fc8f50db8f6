"""Predict: files and folders into labels of their own grid, going on where it stopped, and a run's folder used as it is."""

import json

import numpy as np
import pytest

import scan_files as files
from burnish.cli import code_of
from burnish.errors import PartlyDone, UserError
from burnish.vision import predict as predicting
from burnish.vision.bundle import Card, labeller_of, open_bundle, save_card, save_weights
from burnish.vision.networks import build
from burnish.vision.scans import read_scan
from burnish.vision.sections import Images, Inference, Network


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A network of one product of weights that calls bright what is above half the window."""
    import torch

    folder = tmp_path_factory.mktemp("bundle")
    network = Network(dimensions=2, in_channels=1, out_channels=2, channels=(4, 8))
    images = Images(train="x", classes={"bright": ()}, patch=(8, 8), normalise="window", window=(0.0, 100.0))
    torch.manual_seed(0)
    save_card(folder, Card(recipe="bright", network=network, images=images, inference=Inference(memory_gib=0.1)))
    save_weights(folder, build(network))
    return open_bundle(folder)


@pytest.fixture
def bright(bundle):
    """Its labeller with a network that is right."""
    import dataclasses

    return dataclasses.replace(labeller_of(bundle), predict=lambda x: np.concatenate((1 - x, x), axis=1))


def test_a_corrupt_file_among_a_hundred_is_named_and_the_rest_is_done(tmp_path, bundle, bright):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    names = list(files.AFFINES)
    for number in range(100):
        array = np.roll(files.marked(), number, axis=1)
        files.write_nifti(source / f"scan-{number:03d}.nii", array, files.AFFINES[names[number % len(names)]])
    broken = source / "scan-042.nii"
    broken.write_bytes(broken.read_bytes()[:400])
    with pytest.raises(PartlyDone, match=r"99 of 100 scans .*scan-042.nii: cannot be read") as failure:
        predicting.predict(bundle, bright, "torch", source, out)
    assert failure.value.exit_code == 4
    for number in (0, 1, 2, 3, 4, 99):
        scan, labels = read_scan(source / f"scan-{number:03d}.nii"), read_scan(out / f"scan-{number:03d}.nii.gz")
        np.testing.assert_array_equal(labels.array[0], scan.array[0] == 100)
        np.testing.assert_allclose(labels.affine, scan.affine, atol=1e-5)
    assert not (out / "scan-042.nii.gz").exists()


def test_a_folder_goes_on_where_it_stopped(tmp_path, bundle, bright):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(4):
        files.write_nifti(source / f"s{number}.nii.gz", files.marked(), np.eye(4))
    assert len(predicting.predict(bundle, bright, "torch", source, out).written) == 4
    (out / "s2.nii.gz").unlink()
    files.write_nifti(source / "s3.nii.gz", files.marked(np.float64), np.eye(4))
    again = predicting.predict(bundle, bright, "torch", source, out)
    assert [path.name for path in again.written] == ["s2.nii.gz", "s3.nii.gz"]
    assert again.there == 2
    import dataclasses

    other = dataclasses.replace(bright, inference=Inference(keep_largest=True))
    assert len(predicting.predict(bundle, other, "torch", source, out).written) == 4


def test_kinds_of_scans_in_one_folder(tmp_path, bundle, bright):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    files.write_nrrd(source / "a.nrrd", files.marked(), files.AFFINES["oblique"])
    files.write_series(source / "b", files.marked(), files.AFFINES["las"])
    files.write_picture(source / "c.png", files.marked()[:, :, 4].astype(np.uint8))
    written = predicting.predict(bundle, bright, "torch", source, out).written
    assert [path.name for path in written] == ["a.nrrd", "b.nii.gz", "c.png"]
    for path in written:
        assert read_scan(path).array.sum() == 1
    assert predicting.predict(bundle, bright, "torch", source / "b", tmp_path / "one").written[0].name == "b.nii.gz"


def test_what_cannot_be_labelled_is_one_line(tmp_path, bundle, bright):
    colours = files.write_picture(tmp_path / "c.png", np.zeros((9, 9, 3), np.uint8))
    for source, said in ((colours, "1 channels"), (tmp_path / "no", "no such file")):
        with pytest.raises(UserError, match=said):
            predicting.predict(bundle, bright, "torch", source, tmp_path / "out")
    with pytest.raises(UserError, match="is where the scans are"):
        predicting.predict(bundle, bright, "torch", tmp_path, tmp_path)
    with pytest.raises(UserError, match="nothing for engine 'int8'"):
        labeller_of(bundle, "int8")
    with pytest.raises(UserError, match=r"network\.json"):
        open_bundle(tmp_path)


def test_the_verb(tmp_path, bundle, capsys):
    files.write_nifti(tmp_path / "a.nii.gz", files.marked(), np.eye(4))
    assert code_of(["predict", str(bundle.path), str(tmp_path / "a.nii.gz"), "--out", str(tmp_path / "out")]) == 0
    assert "1 labelled by bright (torch)" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "predicted.json").read_text())["files"]
    assert read_scan(tmp_path / "out" / "a.nii.gz").array.shape == (1, *files.SHAPE)
    assert code_of(["predict", str(tmp_path), str(tmp_path / "a.nii.gz")]) == 2
