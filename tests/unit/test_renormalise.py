"""Statistics of norms measured again: the means over batches, nothing else touched."""

import copy

import pytest
import torch
from torch import nn

from blobs import blobs, dice_of, learn
from burnish.vision.kept_channels import apply
from burnish.vision.networks import build
from burnish.vision.prune import Target, choose
from burnish.vision.renormalise import reestimate
from burnish.vision.sections import Network


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5)).double().eval()


def batches(count: int = 3) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(4, 2, 5, 7, generator=draw, dtype=torch.float64) * (1 + k) + k for k in range(count)]


def holds() -> None:
    model, given = small(), batches()
    assert reestimate(model, given) == 3
    seen = [model[0](images).transpose(0, 1).flatten(1) for images in given]
    torch.testing.assert_close(model[1].running_mean, torch.stack([one.mean(1) for one in seen]).mean(0))
    torch.testing.assert_close(model[1].running_var, torch.stack([one.var(1) for one in seen]).mean(0))


def test_the_plain_mean_over_batches():
    holds()


def test_weights_modes_and_momenta_stay():
    model = small()
    model[2].train()
    before = copy.deepcopy(model)
    reestimate(model, batches())
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert model[1].momentum == before[1].momentum
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_without_a_batch_everything_stays():
    model = small()
    model[1].running_mean += 3
    assert reestimate(model, []) == 0
    assert model[1].running_mean.tolist() == [3, 3, 3, 3]


def test_it_brings_back_what_pruning_took():
    torch.manual_seed(0)
    model = build(Network(in_channels=1, out_channels=3, channels=(16, 32, 64)))
    learn(model, 40)
    cut = apply(model, choose(model, (1, 1, 32, 32), Target(0.25, round_to=1)))
    images, labels = blobs(24, seed=7)
    with torch.no_grad():
        raw = dice_of(cut(images), labels)
        reestimate(cut, [blobs(8, seed=60 + k)[0] for k in range(6)])
        assert dice_of(cut(images), labels) > raw


@pytest.mark.sabotage
def test_a_running_mean_in_place_of_the_plain_one_is_noticed(monkeypatch):
    monkeypatch.setattr(nn.BatchNorm2d, "momentum", property(lambda self: 0.1, lambda self, value: None), raising=False)
    with pytest.raises(AssertionError):
        holds()
