"""A detector's ONNX file beside torch, on trained weights: the same boxes and scores at batches and sizes that were not traced."""

import numpy as np
import pytest
import torch

from burnish.vision import boxes
from burnish.vision.box_targets import targets_of
from burnish.vision.boxes import decoded
from burnish.vision.losses import loss_of
from burnish.vision.networks import build
from burnish.vision.onnx_int8 import Settings, quantize
from burnish.vision.onnx_network import export
from burnish.vision.onnx_providers import ON_CPU, opened_on
from burnish.vision.sections import Network

OWN = Network(kind="centernet", in_channels=1, out_channels=2, channels=(8, 16, 16), head=16)
SIZES = ((40, 64), (48, 48), (56, 72))
LIKELY, CLOSE = 0.2, 1e-3


def scenes(count: int, height: int, width: int, seed: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Noise with a small and a large bright square each, of classes 0 and 1."""
    draw = torch.Generator().manual_seed(seed)
    images, found = torch.rand(count, 1, height, width, generator=draw) * 0.2, []
    for image in images:
        own = []
        for column, side in enumerate((6, 14)):
            x = int(torch.randint(width // 2 - side, (), generator=draw)) + column * (width // 2)
            y = int(torch.randint(height - side, (), generator=draw))
            image[0, y : y + side, x : x + side] = 0.9
            own.append([x, y, x + side, y + side])
        found.append(torch.tensor(own, dtype=torch.float32))
    return images, found


@pytest.fixture(scope="module")
def learned():
    """A detector that knows squares."""
    torch.manual_seed(0)
    model = build(OWN)
    loss = loss_of(OWN, model)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.01)
    for step in range(60):
        images, found = scenes(8, 48, 64, step)
        targets = torch.stack([targets_of(one, torch.tensor([0, 1]), 2, (12, 16)) for one in found])
        optimizer.zero_grad()
        (loss(images, targets) / 16).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def file(learned, tmp_path_factory):
    path = tmp_path_factory.mktemp("detector") / "net.onnx"
    assert export(learned, (1, 1, 48, 64), path, OWN.divisor).difference <= 1e-4
    return path


def apart(learned, session, batch: int, size: tuple[int, int]) -> float:
    """The largest difference of a box's side, in pixels, or score, over boxes that are likely."""
    images, true = scenes(batch, *size, seed=1000 + batch)
    with torch.no_grad():
        ours = decoded(learned(images).numpy(), 20, size)
    theirs = decoded(session.run(None, {"images": images.numpy()})[0], 20, size)
    worst = 0.0
    for one, other, known in zip(ours, theirs, true, strict=True):
        likely = int((one.scores > LIKELY).sum())
        assert likely >= len(known)
        pairs = ((one.boxes, other.boxes), (one.scores, other.scores), (one.labels, other.labels))
        worst = max(worst, *(float(np.abs(a[:likely] - b[:likely]).max()) for a, b in pairs))
    return worst


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batch", [1, 3])
def test_boxes_and_scores_are_torchs(learned, file, batch, size):
    assert apart(learned, opened_on(file, 1, ON_CPU), batch, size) <= CLOSE


def test_eight_bits_find_the_same_squares(learned, file, tmp_path):
    samples = [scenes(8, 48, 64, seed)[0].numpy() for seed in range(2)]
    made = quantize(file, tmp_path / "int8.onnx", samples, Settings(max_drop=0.05, threads=1))
    assert made.path is not None
    images, true = scenes(3, 48, 64, 77)
    found = decoded(opened_on(made.path, 1, ON_CPU).run(None, {"images": images.numpy()})[0], 2)
    for one, known in zip(found, true, strict=True):
        order = one.labels.argsort()
        assert one.labels[order].tolist() == [0, 1]
        np.testing.assert_allclose(one.boxes[order], known.numpy(), atol=2.5)


@pytest.mark.sabotage
def test_half_a_cell_is_noticed(learned, file, monkeypatch):
    """Boxes decoded half a cell off are not where the squares are."""
    images, true = scenes(3, 48, 64, 77)
    with torch.no_grad():
        maps = learned(images).numpy()

    def close() -> bool:
        found = decoded(maps, 2)
        return all(
            np.abs(one.boxes[one.labels.argsort()] - known.numpy()).max() < 2.5
            for one, known in zip(found, true, strict=True)
        )

    assert close()
    monkeypatch.setattr(boxes, "STRIDE", 5)
    assert not close()


def test_an_activation_that_is_cut_off_is_rounded_once(tmp_path):
    """Behind a ReLU6 a convolution's integers are those of 0 to 6, not of what was there before the cut."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU6(), torch.nn.Conv2d(8, 2, 3))
    model[0].weight.data *= 60
    images = torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    export(model, (1, 1, 32, 32), tmp_path / "float.onnx", 1)
    made = quantize(
        tmp_path / "float.onnx", tmp_path / "int8.onnx", [images.numpy()], Settings(threads=1), lambda file: 1.0
    )
    assert made.path is not None
    ours, theirs = (
        opened_on(tmp_path / name, 1, ON_CPU).run(None, {"images": images.numpy()})[0]
        for name in ("float.onnx", "int8.onnx")
    )
    decibels = 10 * np.log10(np.square(ours).mean() / np.square(ours - theirs).mean())
    assert decibels > 46  # rounded before the cut too, it is 43
