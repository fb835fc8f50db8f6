"""Recipes of vision: what is refused and how, what is derived from the images, splits by patient, and where weights start."""

import json

import numpy as np
import pytest
import torch

import scan_files as files
from burnish import recipe_files
from burnish.cli import code_of
from burnish.errors import UserError
from burnish.recipe import Train
from burnish.vision.bundle import Card, save_card, save_weights
from burnish.vision.fingerprint import fingerprint, settle
from burnish.vision.networks import build
from burnish.vision.patches import batches_of
from burnish.vision.prepared import Case, as_classes, prepare, read_pair
from burnish.vision.recipe import VisionRecipe, replace
from burnish.vision.scan_lessons import lessons_of, sliced
from burnish.vision.scans import Scan
from burnish.vision.sections import Images, Network
from burnish.vision.sources import Entry, entries, split_of
from burnish.vision.start import start_from


def recipe(**changes):
    base = VisionRecipe(name="r", images=Images(train=("x",)), train=Train(steps=4, global_batch=4, micro_batch=2))
    return replace(base, changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network.kind": "transformer"}, "network.kind"),
        ({"images.patch": [20, 96]}, "20 is no multiple of 8"),
        ({"images.patch": [32, 32, 32]}, "3 sides, network.dimensions is 2"),
        ({"images.pach": [32, 32]}, "did you mean 'patch'"),
        ({"images.validation": ["x"]}, "a scan cannot be both"),
        ({"images.normalise": "window"}, "lower and the upper"),
        ({"network.channels": [16]}, "two levels"),
        ({"network.kind": "segresnet", "network.channels": [8, 16, 30]}, "doubles"),
        ({"train.micro_batch": 8}, "exceeds train.global_batch"),
        ({"schedule.warmup_steps": 9}, "exceed train.steps"),
        ({"images.patient": "(a)(b)"}, "one group"),
        ({"images.patient": "("}, "no pattern"),
        ({"prune.target": 0.5}, "prune.retrain_steps"),
        ({"augment.flip": [True]}, "augment.flip"),
        ({"network.out_channels": 1}, "no class"),
        ({"network.dimensions": 3, "images.validation_slices": 0.2}, "network.dimensions=2"),
        ({"images.spacing": [1, 1]}, "three sizes"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(changes, said):
    with pytest.raises(UserError, match=said) as failure:
        recipe(**changes)
    assert "\n" not in str(failure.value)


def test_a_recipe_reads_back_as_it_was_written(tmp_path):
    for name in ("brain-extraction", "brain-regions"):
        made, _ = recipe_files.load_any(name)
        (tmp_path / "r.yaml").write_text(recipe_files.to_yaml(made))
        assert recipe_files.load_any(str(tmp_path / "r.yaml"))[0] == made


def test_verbs_of_decoders_say_so(capsys):
    assert code_of(["recipe", "show", "brain-extraction", "train.steps=70"]) == 0
    assert "steps: 70" in capsys.readouterr().out
    with pytest.raises(UserError, match="one of vision"):
        recipe_files.load("brain-extraction")


def scan(array, affine=None, kind="nifti"):
    return Scan(array[None], np.eye(4) if affine is None else affine, kind)


def test_settings_follow_from_the_images_and_stay_where_they_are_given():
    image = files.marked(np.int16, (40, 30, 20))
    label = (image == 100) * 7 + (image == 3) * 2
    found = fingerprint([(scan(image, np.diag([1.0, 1.5, 2.0, 1.0])), label)])
    assert (found.size, found.spacing, found.values) == ((40, 30, 20), (1.0, 1.5, 2.0), (2, 7))
    made, notes = settle(recipe(), found)
    assert made.images.classes == {"value 2": (2,), "value 7": (7,)}  # gaps are no classes
    assert made.network.in_channels == 1
    assert made.network.out_channels == 3
    assert made.images.patch == (40, 32)
    assert made.images.spacing == (1.0, 1.5, 2.0)
    assert made.images.normalise == "percentile"
    assert any("images.patch=(40, 32)" in note for note in notes)
    kept, _ = settle(recipe(**{"images.patch": [16, 16], "images.spacing": [2, 2, 2]}), found)
    assert (kept.images.patch, kept.images.spacing) == ((16, 16), (2.0, 2.0, 2.0))
    with pytest.raises(UserError, match=r"network\.in_channels is 3"):
        settle(recipe(**{"network.in_channels": 3}), found)


def test_ct_and_pictures_are_told_apart():
    image = np.full((16, 16, 4), -1000, np.int16)
    image[4:9, 4:9] = np.arange(50).reshape(5, 5, 2).repeat(2, axis=2)
    made, _ = settle(recipe(), fingerprint([(scan(image), (image > -1000).astype(int))]))
    assert made.images.normalise == "window"
    assert made.images.window[0] >= 0
    picture = np.zeros((16, 16, 1), np.uint8)
    label = np.zeros((16, 16, 1), int)
    label[3, 3] = 1
    assert settle(recipe(), fingerprint([(scan(picture, kind="picture"), label)]))[0].images.normalise == "unit"
    with pytest.raises(UserError, match="no label file"):
        settle(recipe(), fingerprint([(scan(picture), np.zeros((16, 16, 1), int))]))
    many = np.arange(16 * 16 * 4).reshape(16, 16, 4)
    with pytest.raises(UserError, match="is it an image"):
        fingerprint([(scan(image), many)])


@pytest.fixture
def dataset(tmp_path):
    """Six scans of three patients, NIfTI images with labels beside them."""
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    for number in range(6):
        name = f"sub-{number // 2}_run-{number % 2}.nii.gz"
        files.write_nifti(tmp_path / "images" / name, files.marked(), files.AFFINES["oblique"])
        files.write_nifti(
            tmp_path / "labels" / name, (files.marked() == 100).astype(np.uint8), files.AFFINES["oblique"]
        )
    return tmp_path


def test_a_patient_is_on_one_side(dataset):
    images = Images(train=(str(dataset),), validation_fraction=0.34, patient=r"(sub-\d)_.*")
    split = split_of(images, 0)
    sides = [{entry.patient for entry in side} for side in (split.train, split.validation)]
    assert (len(split.train), len(split.validation)) == (4, 2)
    assert not sides[0] & sides[1]
    assert split_of(images, 0) == split
    with pytest.raises(UserError, match="must leave one"):
        split_of(images.model_copy(update={"validation_fraction": 0.1}), 0)


def test_a_datalist_names_its_own_patients(dataset):
    rows = [{"image": f"images/sub-{k}_run-0.nii.gz", "label": f"labels/sub-{k}_run-0.nii.gz"} for k in range(3)]
    rows[1]["patient"] = "same"
    content = {"training": rows[:2], "test": [rows[2] | {"patient": "same"}]}
    (dataset / "list.json").write_text(json.dumps(content))
    found = entries(str(dataset / "list.json"))
    assert [entry.patient for entry in found] == ["sub-0_run-0", "same"]
    source = str(dataset / "list.json")
    with pytest.raises(UserError, match=r"patient 'same' is in images.train and images.test"):
        split_of(Images(train=(source,), test=(source,)), 0)
    with pytest.raises(UserError, match="expected a list"):
        entries(source, "validation")


def test_what_is_missing_in_a_folder_is_named(dataset):
    (dataset / "labels" / "sub-2_run-1.nii.gz").unlink()
    with pytest.raises(UserError, match="no label for 'sub-2_run-1'"):
        entries(str(dataset))
    with pytest.raises(UserError, match="expected the folders"):
        entries(str(dataset / "labels"))
    with pytest.raises(UserError, match="no set that can be fetched"):
        entries("brian")


def test_labels_that_lie_elsewhere_are_refused(dataset):
    image = dataset / "images" / "sub-0_run-0.nii.gz"
    label = files.write_nifti(dataset / "other.nii", np.zeros(files.SHAPE, np.uint8), files.AFFINES["ras"])
    with pytest.raises(UserError, match="voxels from its image"):
        read_pair(Entry("a", (image,), label, "a"))
    small = files.write_nifti(dataset / "small.nii", np.zeros((2, 2, 2), np.uint8), files.AFFINES["oblique"])
    with pytest.raises(UserError, match="its image has"):
        read_pair(Entry("a", (image,), small, "a"))
    half = files.write_nifti(dataset / "half.nii", np.full(files.SHAPE, 0.5, np.float32), files.AFFINES["oblique"])
    with pytest.raises(UserError, match="whole numbers"):
        read_pair(Entry("a", (image,), half, "a"))


def test_scans_are_prepared_once(dataset, tmp_path, monkeypatch):
    images = Images(train=("x",), classes={"it": ()}, patch=(8, 8), normalise="percentile", spacing=(2.0, 2.0, 2.0))
    found = entries(str(dataset))
    cases, key = prepare(found, images, 2, cache=tmp_path / "cache")
    monkeypatch.setattr("burnish.vision.prepared.read_scan", None)  # files are not read again
    again, other = prepare(found, images, 2, cache=tmp_path / "cache")
    assert (key, len(cases)) == (other, 6)
    np.testing.assert_array_equal(cases[0].image, again[0].image)
    assert cases[0].image.shape[1:] == cases[0].label.shape
    assert as_classes(np.array([0, 3, 5, 9]), {"a": (5,), "b": (9, 3)}).tolist() == [0, 2, 1, 2]


def case(slices=40):
    label = np.zeros((slices, 16, 16), np.uint8)
    label[5:35, 4:9, 4:9] = 1
    return Case(
        "c", np.random.default_rng(0).random((1, slices, 16, 16), np.float32), label, np.eye(4), (1.0, 1.0, 1.0)
    )


def test_held_out_slices_are_never_learned_from():
    made = recipe(**{"images.patch": [16, 16], "images.validation_slices": 0.25, "images.train_slices": 0})
    own, held = sliced(case(), made)
    assert sorted([*own, *held]) == list(range(40))
    assert 8 <= len(held) <= 12
    lessons = lessons_of(made, [case()], [])
    batches = batches_of(replace(made, {"augment.enabled": False}), lessons.pool, 3)
    seen = np.concatenate([batch.images.numpy() for k in range(12) for batch in batches(k)])
    outside = np.asarray(lessons.held[0].image)[0]
    assert not any(np.array_equal(one[0], other) for one in seen for other in outside)
    few, _ = sliced(case(), replace(made, {"images.train_slices": 5}))
    assert len(few) == 5
    assert set(few) <= set(own)


def test_batches_are_a_function_of_the_step():
    made = recipe(**{"images.patch": [8, 8], "images.classes": {"it": []}})
    pool = lessons_of(made, [case()], []).pool
    one, other = batches_of(made, pool, 7), batches_of(made, pool, 7)
    for step in (3, 0, 3):
        for a, b in zip(one(step), other(step), strict=True):
            assert a.images.shape == (2, 1, 8, 8)
            torch.testing.assert_close(a.images, b.images, rtol=0, atol=0)
            assert torch.equal(a.labels, b.labels)
    assert not torch.equal(one(0)[0].images, one(1)[0].images)


def network(out=2, channels=(4, 8)):
    torch.manual_seed(out)
    return build(Network(in_channels=1, out_channels=out, channels=channels))


def test_weights_that_fit_are_taken_and_others_named(tmp_path):
    theirs, section = network(2), Network(in_channels=1, out_channels=2, channels=(4, 8))
    (tmp_path / "run" / "model").mkdir(parents=True)
    save_card(tmp_path / "run" / "model", Card(network=section, images=Images(train=("x",))))
    save_weights(tmp_path / "run" / "model", theirs)
    bundle = tmp_path / "bundle" / "models"
    bundle.mkdir(parents=True)
    torch.save({"model": theirs.state_dict()}, bundle / "model.pt")
    torch.save({f"module.{k}": v for k, v in theirs.state_dict().items()}, tmp_path / "plain.pt")
    for name in ("run", "bundle", "plain.pt", "run/model/model.safetensors"):
        ours = network(5)
        first = next(iter(theirs.state_dict()))
        lines = start_from(ours, str(tmp_path / name))
        assert torch.equal(ours.state_dict()[first], theirs.state_dict()[first])
        assert "other shapes, drawn anew" in lines[1]
        assert "(2,) for (5,)" in lines[1] or "2," in lines[1]


def test_a_start_that_is_none_is_refused(tmp_path):
    with pytest.raises(UserError, match="no weights there"):
        start_from(network(), str(tmp_path))
    torch.save({"x": torch.zeros(3)}, tmp_path / "x.pt")
    with pytest.raises(UserError, match="none of its 1 tensors fits"):
        start_from(network(), str(tmp_path / "x.pt"))
    torch.save(network(), tmp_path / "whole.pt")  # a pickled module would run what it holds
    with pytest.raises(UserError, match="save the state_dict"):
        start_from(network(), str(tmp_path / "whole.pt"))
