"""Sliding windows and what stands around them: coverage, blending, memory, axes, the metric's empty masks."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import UserError
from burnish.vision.inference import Labeller, keep_largest, label_image, label_scan
from burnish.vision.metric import dice, hd95, scored
from burnish.vision.networks import build
from burnish.vision.scans import Scan
from burnish.vision.sections import Images, Inference, Network
from burnish.vision.segmentation_loss import SegmentationLoss
from burnish.vision.windows import gaussian, slabs, starts


def halves(pieces):
    """A network that calls bright what is above 0.5."""
    return np.concatenate((1 - pieces, pieces), axis=1)


def labeller(predict=halves, patch=(8, 8, 8), dimensions=3, **inference):
    network = Network(kind="unet", dimensions=dimensions, in_channels=1, out_channels=2, channels=(4, 8))
    images = Images(train="x", classes={"bright": ()}, patch=patch, normalise="window", window=(0.0, 100.0))
    return Labeller(predict, network, images, Inference(**inference))


def whole(image, predict, window, overlap=0.25, batch=3, flat=False):
    parts = list(slabs(image, predict, window, overlap, batch, flat))
    assert [first for first, _ in parts] == list(np.cumsum([0, *(p.shape[1] for _, p in parts)])[:-1])
    return np.concatenate([part for _, part in parts], axis=1)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, 100), st.sampled_from([0.0, 0.25, 0.5, 0.9]))
def test_windows_cover_every_voxel(length, side, overlap):
    """FLT-113: a step is at least one, whatever the side and the overlap."""
    found = starts(length, side, overlap)
    covered = np.zeros(length, int)
    for first in found:
        assert 0 <= first <= max(length - side, 0)
        covered[first : first + side] += 1
    assert covered.min() >= 1
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("shape", "window"), [((7, 9, 11), (4, 4, 1)), ((5, 4, 3), (8, 8, 8)), ((13, 8, 9), (8, 8, 4))]
)
def test_a_network_that_copies_is_copied_whatever_the_windows(shape, window):
    """FLT-113 (a window one voxel wide), FLT-114 (a volume smaller than the window): no voxel without a score."""
    image = np.random.default_rng(0).random((1, *shape), np.float32)
    found = whole(image, halves, window)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, halves(image[None])[0], rtol=1e-5, atol=1e-6)


def test_slices_go_through_a_flat_network():
    image = np.random.default_rng(1).random((1, 7, 9, 10), np.float32)
    seen = []

    def predict(pieces):
        seen.append(pieces.shape)
        return halves(pieces)

    np.testing.assert_allclose(whole(image, predict, (1, 16, 8), flat=True), halves(image[None])[0], rtol=1e-5)
    assert {shape[2:] for shape in seen} == {(16, 8)}
    assert max(shape[0] for shape in seen) == 3


def test_blending_is_monais():
    """The same windows, weights and scores as MONAI's sliding window where both take the same steps."""
    from monai.inferers import sliding_window_inference

    torch.manual_seed(0)
    network = build(Network(dimensions=3, in_channels=1, out_channels=3, channels=(4, 8))).eval()
    image = torch.rand(1, 1, 24, 16, 20)
    with torch.no_grad():
        theirs = sliding_window_inference(image, (16, 16, 16), 2, network, overlap=0.5, mode="gaussian")[0].numpy()
        ours = whole(image[0].numpy(), lambda x: network(torch.from_numpy(x)).numpy(), (16, 16, 16), overlap=0.5)
    agree = (ours.argmax(axis=0) == theirs.argmax(axis=0)).mean()
    assert agree > 0.99
    np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_weights_are_largest_in_the_middle_and_never_zero():
    made = gaussian((9, 9, 9))
    assert made.max() == made[4, 4, 4] == 1
    assert made.min() > 0


@pytest.mark.sabotage
def test_windows_that_do_not_reach_the_end_are_noticed(monkeypatch):
    """FLT-113."""
    from burnish.vision import windows

    monkeypatch.setattr(windows, "starts", lambda length, side, overlap: list(range(0, max(length - side, 1), side)))
    with pytest.raises((AssertionError, ValueError)), np.errstate(all="ignore"):
        test_a_network_that_copies_is_copied_whatever_the_windows((13, 8, 9), (8, 8, 4))


def test_memory_does_not_grow_with_the_number_of_windows():
    """FLT-115: patches are not kept; four times the slices take hardly more."""

    def peak(slices):
        image = np.zeros((1, slices, 64, 64), np.float32)
        tracemalloc.start()
        for _ in slabs(image, halves, (8, 8, 8), 0.5, 4):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(64) < 1.2 * peak(16)


def test_scores_beyond_the_budget_are_kept_in_a_file():
    """A volume whose scores do not fit is labelled all the same, and alike."""
    array = np.zeros((1, 40, 40, 40), np.int16)
    array[0, 10:30, 5:20, 8:36] = 100
    scan = Scan(array, np.diag([1.0, 1.0, 1.0, 1.0]), "nifti")
    own = labeller(patch=(16, 16, 16))
    own = replace(own, images=own.images.model_copy(update={"spacing": (2.0, 2.0, 2.0)}))
    roomy = label_scan(own, scan)
    tight = label_scan(replace(own, inference=Inference(memory_gib=1e-5)), scan)
    np.testing.assert_array_equal(roomy, tight)
    assert dice(roomy, array[0] > 0, 1) > 0.97


@pytest.mark.parametrize("shape", [(128, 128, 64, 1), (1, 1, 9, 9, 9), (9, 9, 9)])
def test_axes_in_another_order_are_refused(shape):
    """FLT-116: channels last are no channels first."""
    with pytest.raises(UserError, match="channel, x, y, z"):
        label_image(labeller(), np.zeros(shape, np.float32))


@pytest.mark.parametrize("shape", [(1, 40, 1, 1), (40, 40, 1), (3, 5, 7), (8, 8, 8)])
def test_labels_have_the_shape_of_the_scan(shape):
    """FLT-114; one slice too."""
    array = np.zeros((1, *shape[-3:]), np.float64)
    array[0, -1, -1, -1] = 100
    found = label_scan(labeller(), Scan(array, np.diag([1.0, -1.0, 2.0, 1.0]), "nifti"))
    assert found.shape == array.shape[1:]
    assert found[-1, -1, -1] == 1
    assert found.sum() == 1


def test_a_flipped_copy_gives_the_flipped_labels():
    """FLT-120: weights expect one orientation; a file stored the other way round is turned to it first."""
    array = np.zeros((1, 12, 10, 9), np.float32)
    array[0, 2:5, 6:9, 1:3] = 100

    def left(pieces):
        """Only what lies in the left half, as the patient has it, is seen."""
        found = halves(pieces)
        found[:, 1, 6:] = 0
        found[:, 0, 6:] = 1
        return found

    own = labeller(left, patch=(12, 10, 10))
    ras, las = np.eye(4), np.diag([-1.0, 1.0, 1.0, 1.0])
    las[0, 3] = 11
    straight = label_scan(own, Scan(array, ras, "nifti"))
    flipped = label_scan(own, Scan(array[:, ::-1].copy(), las, "nifti"))
    np.testing.assert_array_equal(straight, flipped[::-1])
    assert straight.sum() == (array > 0).sum()


def test_the_largest_piece_of_each_class_is_kept():
    labels = np.zeros((9, 9, 3), np.uint8)
    labels[0:3, 0:3], labels[5, 5], labels[7:9, 0:2], labels[0, 8] = 1, 1, 2, 2
    kept = keep_largest(labels)
    assert (kept == 1).sum() == 27
    assert (kept == 2).sum() == 12
    assert keep_largest(np.zeros((2, 2, 2), np.uint8)).sum() == 0


def test_empty_masks_have_one_convention():
    """FLT-123: nothing where nothing is scores 1, something where nothing is scores 0; never NaN."""
    nothing, all_ = np.zeros((2, 5, 5), int), np.ones((2, 5, 5), int)
    assert dice(nothing, nothing, 1) == 1.0
    assert dice(all_, nothing, 1) == 0.0
    assert dice(nothing, all_, 1) == 0.0
    assert hd95(nothing, all_, 1, (1.0, 1.0, 1.0)) is None
    scores = scored([(nothing, nothing, (1.0, 1.0, 1.0)), (all_, nothing, (1.0, 1.0, 1.0))], ["it"])
    assert scores.dice == {"it": 0.5}
    assert scores.hd95 == {}


def test_the_loss_of_empty_masks_agrees_with_the_metric():
    """FLT-124: a network that finds nothing where nothing is has no loss, one that finds all has the whole."""
    empty = torch.zeros(2, 8, 8, dtype=torch.long)

    class Sure(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def forward(self, images):
            scores = torch.full((2, 2, 8, 8), -60.0)
            scores[:, self.number] = 60.0
            return scores

    images = torch.zeros(2, 1, 8, 8)
    assert SegmentationLoss(Sure(0))(images, empty).item() == pytest.approx(0.0, abs=1e-4)
    assert SegmentationLoss(Sure(1))(images, empty).item() / 2 > 1.0


def test_distances_are_in_millimetres():
    one, other = np.zeros((20, 20, 20), int), np.zeros((20, 20, 20), int)
    one[5:10, 5:10, 5:10], other[5:10, 5:10, 8:13] = 1, 1
    assert hd95(one, other, 1, (1.0, 1.0, 2.0)) == pytest.approx(6.0)
