"""Boxes move with what they are around: patches cut, scaled, shifted and flipped, and the batches made of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.recipe import Train
from burnish.vision.box_lessons import BoxLessons, cut
from burnish.vision.box_targets import EXTRA
from burnish.vision.box_variation import areas, moved, varied
from burnish.vision.recipe import VisionRecipe, replace
from burnish.vision.sections import Augment, Images, Network
from burnish.vision.seen_picture import SeenPicture

HEIGHT, WIDTH = 40, 56


def lit(boxes: list[tuple[int, int, int, int]]) -> torch.Tensor:
    """A dark image, each box of it full of light."""
    image = torch.zeros(1, HEIGHT, WIDTH)
    for left, top, right, bottom in boxes:
        image[0, top:bottom, left:right] = 1
    return image


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.tuples(st.integers(4, 36), st.integers(4, 24), st.integers(6, 16), st.integers(6, 12)),
    st.tuples(st.floats(0.7, 1.4), st.floats(0.7, 1.4)),
    st.tuples(st.floats(-0.15, 0.15), st.floats(-0.15, 0.15)),
    st.tuples(st.booleans(), st.booleans()),
)
def test_light_stays_in_its_box(box, scale, shift, flip):
    """Where the light of the varied image begins and ends, to a pixel, is where its box does."""
    x, y, w, h = box
    boxes = torch.tensor([[x, y, x + w, y + h]], dtype=torch.float32)
    image, found, labels = moved(lit([(x, y, x + w, y + h)]), boxes, torch.tensor([3]), scale, shift, flip)
    assert image.shape == (1, HEIGHT, WIDTH)
    if not len(found):
        return
    assert labels.tolist() == [3]
    rows, columns = (image[0] > 0.5).nonzero(as_tuple=True)
    seen = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], dtype=torch.float32)
    torch.testing.assert_close(found[0], seen, rtol=0, atol=1.0)
    assert areas(found)[0] > 0


def test_nothing_asked_changes_nothing_and_a_flip_twice_is_none():
    image = torch.rand(3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
    boxes, labels = torch.tensor([[3.0, 5.0, 20.0, 30.0], [30.0, 1.0, 50.0, 9.0]]), torch.tensor([0, 1])
    none = Augment(flip=(), scale=0, shift=0)
    same = varied(image, boxes, labels, none, torch.Generator().manual_seed(1))
    assert all(torch.equal(a, b) for a, b in zip(same, (image, boxes, labels), strict=True))
    both = (True, True)
    once = moved(image, boxes, labels, (1.0, 1.0), (0.0, 0.0), both)
    torch.testing.assert_close(once[1][0], torch.tensor([36.0, 10.0, 53.0, 35.0]))
    twice = moved(*once, (1.0, 1.0), (0.0, 0.0), both)
    torch.testing.assert_close(twice[0], image, rtol=0, atol=1e-5)
    torch.testing.assert_close(twice[1], boxes)


def test_a_box_mostly_outside_goes_and_the_rest_is_cut():
    boxes = torch.tensor([[0.0, 10.0, 20.0, 20.0], [20.0, 10.0, 30.0, 20.0]])
    _, found, labels = moved(lit([]), boxes, torch.tensor([0, 1]), (1.0, 1.0), (0.0, -0.25), (False, False))
    torch.testing.assert_close(found, torch.tensor([[6.0, 10.0, 16.0, 20.0]]))
    assert labels.tolist() == [1]


def picture(**changes) -> SeenPicture:
    pixels = np.random.default_rng(0).integers(0, 256, (1, HEIGHT, WIDTH), dtype=np.uint8)
    boxes = np.array([[4, 4, 20, 16], [30, 20, 50, 38], [0, 0, 56, 40]], np.float32)
    made = {"boxes": boxes, "labels": np.array([0, 1, 0]), "crowd": np.array([False, False, True])} | changes
    return SeenPicture("p", Path("p.png"), pixels, **made)


def test_a_cut_beyond_the_picture_repeats_its_edge_and_leaves_crowds_out():
    own = picture()
    image, boxes, labels = cut(own, (-4, -6), (48, 64))
    np.testing.assert_array_equal(image[:, 4:44, 6:62], own.pixels)
    np.testing.assert_array_equal(image[:, 0, 6:62], own.pixels[:, 0])
    assert boxes.tolist() == [[10, 8, 26, 20], [36, 24, 56, 42]]
    assert labels.tolist() == [0, 1]
    _, boxes, labels = cut(own, (8, 24), (32, 32))
    assert boxes.tolist() == [[6, 12, 26, 30]]
    assert labels.tolist() == [1]


def recipe(**changes) -> VisionRecipe:
    base = VisionRecipe(
        name="r",
        task="detection",
        network=Network(kind="centernet", in_channels=1, out_channels=2, channels=(4, 8)),
        images=Images(train=("x",), patch=(32, 48), normalise="unit"),
        augment=Augment(rotate=0, flip=(False, True), scale=0.2, shift=0.1),
        train=Train(steps=4, global_batch=5, micro_batch=2),
    )
    return replace(base, changes)


def test_a_batch_is_a_function_of_seed_and_step():
    lessons = BoxLessons((picture(), picture(labels=np.array([1, 1, 0]))), (), ("a", "b"))
    one, other = lessons.batches(recipe(), 3), lessons.batches(recipe(), 3)
    for step in (0, 1):
        ours, theirs = one(step), other(step)
        assert [tuple(part.images.shape) for part in ours] == [(2, 1, 32, 48), (2, 1, 32, 48), (1, 1, 32, 48)]
        assert ours[0].targets.shape == (2, 2 + EXTRA, 8, 12)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.images, b.images)
            assert torch.equal(a.targets, b.targets)
    assert not torch.equal(one(0)[0].images, one(1)[0].images)
    assert not torch.equal(one(0)[0].images, lessons.batches(recipe(), 4)(0)[0].images)


def test_micro_batches_add_up_to_the_loss_of_the_whole():
    """However rows are split, sums of loss and of boxes are the same."""
    from burnish.vision.losses import loss_of
    from burnish.vision.networks import build

    lessons = BoxLessons((picture(),), (), ("a", "b"))
    own = recipe(**{"train.global_batch": 4, "train.micro_batch": 4})
    torch.manual_seed(0)
    loss = loss_of(own.network, build(own.network)).double().eval()
    sums = []
    for micro in (4, 1, 3):
        parts = lessons.batches(replace(own, {"train.micro_batch": micro}), 0)(0)
        total = sum(loss(part.images.double(), part.targets.double()).item() for part in parts)
        sums.append((total, sum(part.boxes for part in parts)))
    assert sums[0][1] > 0
    for total, boxes in sums[1:]:
        assert (total, boxes) == (pytest.approx(sums[0][0], rel=1e-10), sums[0][1])
