"""A detector's targets, loss and decoding on scenes made by hand: what is put in comes out again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from burnish.errors import UserError
from burnish.recipe import Train
from burnish.train.optim import build_optimizer
from burnish.vision.box_targets import EXTRA, targets_of
from burnish.vision.boxes import GEOMETRY, STRIDE, decoded, highest_around
from burnish.vision.detection_loss import DetectionLoss, box_loss, heat_loss
from burnish.vision.efficientnet_lite import SamePadded, _renamed, from_published
from burnish.vision.networks import build
from burnish.vision.recipe import OPTIM, VisionRecipe, replace
from burnish.vision.sections import Images, Network
from burnish.vision.start import start_from

CLASSES = 3
TINY = Network(kind="centernet", in_channels=1, out_channels=CLASSES, channels=(4, 8, 16), head=8)


def as_found(targets):
    """Targets [K + EXTRA, rows, columns] as the maps of a network that has learned them to the last digit."""
    heat = targets[:-EXTRA].double().clamp(1e-6, 1 - 1e-6)
    return torch.cat((torch.logit(heat).float(), targets[-EXTRA:-1]))[None].numpy()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 5),
            st.floats(2.0, 30.0),
            st.floats(2.0, 30.0),
            st.integers(0, CLASSES - 1),
        ),
        min_size=1,
        max_size=8,
        unique_by=lambda one: one[:2],
    )
)
def test_boxes_apart_come_back_as_they_were(drawn):
    """Centres in cells of a coarse lattice: each is a peak of its own."""
    half = torch.tensor([[w / 2, h / 2] for _, _, w, h, _ in drawn])
    centres = torch.tensor([[16.0 * column + 9, 16.0 * row + 11] for row, column, *_ in drawn])
    boxes = torch.cat((centres - half, centres + half), dim=1)
    labels = torch.tensor([one[-1] for one in drawn])
    (found,) = decoded(as_found(targets_of(boxes, labels, CLASSES, (20, 24))), len(drawn))
    np.testing.assert_allclose(found.scores, 1.0, atol=1e-5)
    ours = sorted((int(label), *np.round(box, 3)) for label, box in zip(found.labels, found.boxes, strict=True))
    theirs = sorted((int(label), *np.round(box.numpy(), 3)) for label, box in zip(labels, boxes, strict=True))
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


def test_cells_near_a_centre_learn_the_same_box():
    """A wide box: its neighbours to the side are high, and say where it is as seen from them."""
    targets = targets_of(torch.tensor([[8.0, 20.0, 88.0, 24.0]]), torch.tensor([1]), CLASSES, (24, 24))
    weight = targets[-1]
    near = weight.nonzero()
    assert len(near) > 3
    assert set(near[:, 0].tolist()) == {5}
    for row, column in near.tolist():
        width, height, right, down = targets[CLASSES:-1, row, column].tolist()
        assert (width, height) == (20.0, 1.0)
        assert ((column + right) * STRIDE, (row + down) * STRIDE) == (48.0, 22.0)
    assert (targets[1] == 1).sum() == 1
    assert targets[[0, 2]].abs().sum() == 0


def test_of_two_boxes_in_one_cell_the_smaller_is_learned():
    boxes = torch.tensor([[0.0, 0.0, 40.0, 40.0], [19.0, 19.0, 22.0, 22.0]])
    for order in ([0, 1], [1, 0]):
        targets = targets_of(boxes[order], torch.tensor([0, 1])[order], CLASSES, (12, 12))
        assert targets[CLASSES : CLASSES + 2, 5, 5].tolist() == [0.75, 0.75]
        assert (targets[0, 5, 5], targets[1, 5, 5]) == (1.0, 1.0)


def test_a_centre_at_the_edge_and_a_picture_without_boxes():
    edge = targets_of(torch.tensor([[40.0, 40.0, 56.0, 56.0]]), torch.tensor([2]), CLASSES, (12, 12))
    assert edge[2, 11, 11] == 1
    assert targets_of(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), CLASSES, (12, 12)).abs().sum() == 0


def test_the_loss_is_that_of_the_papers():
    """Against the formulas written out cell by cell, in float64."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 2, 3, 5, generator=draw, dtype=torch.float64)
    heat = torch.rand(2, 2, 3, 5, generator=draw, dtype=torch.float64)
    heat[0, 1, 2, 3] = heat[1, 0, 0, 0] = 1
    wanted = 0.0
    for p, y in zip(logits.sigmoid().flatten().tolist(), heat.flatten().tolist(), strict=True):
        wanted -= (1 - p) ** 2 * np.log(p) if y == 1 else (1 - y) ** 4 * p**2 * np.log(1 - p)
    assert heat_loss(logits, heat).item() == pytest.approx(wanted, rel=1e-12)
    found, true = torch.zeros(1, 4, 2, 2), torch.full((1, 4, 2, 2), 2.0)
    weight = torch.tensor([[[[1.0, 0.5], [0.0, 0.0]]]])
    assert box_loss(found, true, weight).item() == pytest.approx(0.4 * 2 * 2 * 1.5 + 2 * 2 * 1.5)
    assert heat_loss(torch.full((1, 1, 2, 2), -200.0), torch.ones(1, 1, 2, 2)).isfinite()


class Shown(nn.Module):
    """A network that gives what it is made with."""

    def __init__(self, maps):
        super().__init__()
        self.maps = nn.Parameter(maps)

    def forward(self, images):
        return self.maps


def test_what_is_right_costs_least():
    targets = targets_of(torch.tensor([[8.0, 8.0, 24.0, 40.0]]), torch.tensor([1]), CLASSES, (12, 12))[None]
    right = torch.from_numpy(as_found(targets[0]))
    cost = DetectionLoss(Shown(right))(torch.zeros(1, 1, 48, 48), targets).item()
    for channel in range(CLASSES + GEOMETRY):
        wrong = right.clone()
        wrong[:, channel] += 10.0 if channel < CLASSES else 1.0  # of heat: a class is seen everywhere
        assert DetectionLoss(Shown(wrong))(torch.zeros(1, 1, 48, 48), targets).item() > cost + 1e-3


def test_peaks_are_cells_that_no_neighbour_exceeds():
    values = np.random.default_rng(0).normal(size=(2, 7, 5)).astype(np.float32)
    pooled = nn.functional.max_pool2d(torch.from_numpy(values)[None], 3, 1, 1)[0].numpy()
    np.testing.assert_array_equal(highest_around(values), pooled)


def test_boxes_are_cut_to_the_picture_and_the_best_come_first():
    maps = np.full((1, 1 + GEOMETRY, 8, 8), -9.0, np.float32)
    maps[0, 0, 1, 1], maps[0, 0, 6, 6], maps[0, 0, 4, 1] = 2.0, 3.0, 1.0
    maps[0, 1:] = np.array([4, 4, 0.5, 0.5])[:, None, None]
    (found,) = decoded(maps, 2, (24, 30))
    np.testing.assert_allclose(found.boxes, [[18, 18, 30, 24], [0, 0, 14, 14]], atol=1e-5)
    np.testing.assert_allclose(found.scores, 1 / (1 + np.exp([-3.0, -2.0])), rtol=1e-6)
    with pytest.raises(UserError, match="not finite"):
        decoded(maps * np.nan, 2)


def test_a_tiny_detector_learns_two_scenes():
    """Bright squares of three sizes, each a class: after a few steps both scenes are read without a mistake."""
    torch.manual_seed(0)
    images, boxes = torch.zeros(2, 1, 32, 48), []
    for row, own in enumerate(([(4, 4, 6, 0), (30, 14, 12, 1)], [(20, 8, 16, 2), (4, 20, 6, 0)])):
        for x, y, side, _ in own:
            images[row, 0, y : y + side, x : x + side] = 1
        boxes.append(torch.tensor([[x, y, x + side, y + side] for x, y, side, _ in own], dtype=torch.float32))
    labels = [torch.tensor([0, 1]), torch.tensor([2, 0])]
    targets = torch.stack([targets_of(b, k, CLASSES, (8, 12)) for b, k in zip(boxes, labels, strict=True)])
    loss = DetectionLoss(build(TINY))
    optimizer = build_optimizer(loss, OPTIM.model_copy(update={"lr": 0.02}))
    for _ in range(120):
        optimizer.zero_grad()
        (loss(images, targets) / 4).backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.02
        optimizer.step()
    with torch.no_grad():
        found = decoded(loss.model.train()(images).numpy(), 2)
    for one, own, known in zip(found, boxes, labels, strict=True):
        order = np.lexsort((one.boxes[:, 0],))
        assert one.labels[order].tolist() == known[own[:, 0].argsort()].tolist()
        np.testing.assert_allclose(one.boxes[order], own[own[:, 0].argsort()], atol=1.5)


def test_stride_two_is_padded_as_the_weights_expect():
    """TensorFlow's "same" of even sides: all of the padding that is left over comes behind."""
    for kernel, pads in ((3, (0, 1)), (5, (1, 2))):
        layer = SamePadded(2, 2, kernel, 2, groups=2).eval()
        images = torch.randn(2, 2, 8, 10, generator=torch.Generator().manual_seed(kernel))
        padded = nn.functional.pad(images, pads * 2)
        assert torch.equal(
            layer(images), layer.norm(nn.functional.conv2d(padded, layer.conv.weight, stride=2, groups=2))
        )
        assert layer(images).shape == (2, 2, 4, 5)


def test_published_weights_go_where_they_belong():
    model = build(Network(kind="efficientnet-lite0", in_channels=3, out_channels=1, channels=(8, 8, 8)))
    ours = {name: t for name, t in model.state_dict().items() if name.startswith("backbone.st")}
    theirs = {
        "_conv_stem.weight": ours["backbone.stem.conv.weight"],
        "_blocks.0._bn2.running_var": ours["backbone.stages.0.0.project.norm.running_var"],
        "_blocks.5._expand_conv.weight": ours["backbone.stages.3.0.expand.conv.weight"],
        "_blocks.10._depthwise_conv.weight": ours["backbone.stages.4.2.each.conv.weight"],
        "_blocks.11._bn0.weight": torch.zeros(1),
        "_fc.weight": torch.zeros(1),
    }
    found = from_published(theirs)
    assert len(found) == 4
    for name, tensor in found.items():
        assert torch.equal(ours[name], tensor)


def recipe(**changes):
    base = VisionRecipe(
        name="r",
        task="detection",
        network=TINY,
        images=Images(train=("x",)),
        train=Train(steps=4, global_batch=4, micro_batch=2),
    )
    return replace(base, changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "segmentation"}, "do not go together; set task=detection"),
        ({"network.kind": "unet"}, "do not go together; use network.kind=centernet or efficientnet-lite0"),
        ({"images.patch": [20, 96]}, "20 is no multiple of 8"),
        ({"network.norm": "group"}, "norm=batch"),
        ({"network.kind": "efficientnet-lite0", "network.channels": [8, 16]}, "3 levels"),
    ],
)
def test_what_a_detector_cannot_be_is_refused(changes, said):
    with pytest.raises(UserError, match=said) as failure:
        recipe(**changes)
    assert "\n" not in str(failure.value)


def test_a_detector_starts_from_published_weights_and_not_from_an_export(tmp_path):
    """What belongs to the backbone is taken, by the names it has here; laterals and head are drawn anew."""
    model = build(Network(kind="efficientnet-lite0", in_channels=3, out_channels=1, channels=(8, 8, 8)))
    ours, names = model.state_dict(), dict(_renamed())
    theirs = {
        f"{layer}.{kind}": torch.full_like(ours[f"backbone.{own}.{kind}"], 0.5)
        for layer, own in names.items()
        for kind in ("weight", "bias", "running_mean", "running_var")
        if f"backbone.{own}.{kind}" in ours
    }
    torch.save(theirs | {"_fc.bias": torch.zeros(1000)}, tmp_path / "lite0.pth")
    lines = start_from(model, str(tmp_path / "lite0.pth"))
    learned = [name for name, _ in model.named_parameters()]
    apart = [name for name in learned if not name.startswith("backbone.st")]
    assert lines[0].endswith(f"{len(learned) - len(apart)} of {len(learned)} tensors")
    for name, tensor in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert bool(tensor.eq(0.5).all()) == name.startswith("backbone.st"), name
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(UserError, match="is exported already; pruning and training come before the export"):
        start_from(model, str(tmp_path / "model.onnx"))
