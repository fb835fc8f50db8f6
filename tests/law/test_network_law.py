"""The law for networks that are not ours: traced at one size, they take at another what was predicted."""

import pytest
import torch
from torch import nn

from burnish.errors import UserError
from burnish.vision import trace
from burnish.vision.networks import build
from burnish.vision.observed_network import observe
from burnish.vision.operators import operators_of
from burnish.vision.trace import predict
from offered_networks import OFFERED, network, section, sides


def holds(name: str, sizes: tuple[int, ...]) -> bool:
    """Traced on nothing but sizes at two images, observed for others."""
    with torch.device("meta"):
        bare = build(section(name))
    return predict(operators_of(bare, (2, 1, *sides(name))), sizes) == observe(network(name), sizes)


@pytest.mark.parametrize("name", OFFERED)
def test_another_size_takes_what_was_predicted(name):
    assert holds(name, (3, 1, *(48, 32, 16)[: section(name).dimensions]))


class Odd(nn.Module):
    """Strides and paddings that no side divides by, a sum of two ways, a channelwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 6, (3, 5), stride=(2, 3), padding=(1, 0), dilation=(2, 1), bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.each = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.up = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1)
        self.prelu, self.gate = nn.PReLU(4), nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.one(x)))
        x = nn.functional.max_pool2d(x + self.each(x), 3, 2, 1, ceil_mode=True)
        x = self.prelu(self.up(x))
        return x * torch.sigmoid(self.gate(x))


@pytest.mark.parametrize("sizes", [(1, 2, 17, 23), (3, 2, 40, 31), (2, 2, 19, 58)])
def test_odd_sides_too(sizes):
    assert predict(operators_of(Odd(), (2, 2, 33, 35)), sizes) == observe(Odd(), sizes)


def test_parameters_stay_and_flops_grow_with_the_pixels():
    read = operators_of(network("unet"), (2, 1, 32, 32))
    one, four = predict(read, (1, 1, 32, 32)), predict(read, (1, 1, 64, 64))
    assert (four.parameters, four.forward_flops) == (one.parameters, 4 * one.forward_flops)


def test_sides_that_do_not_fit_are_told():
    with pytest.raises(UserError, match=r"cat of \[1, \d+, \d+, \d+\] and .* does not fit; give sides that the levels"):
        predict(operators_of(network("unet"), (2, 1, 32, 32)), (1, 1, 33, 32))


def test_an_operator_that_is_not_known_is_told():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.PixelShuffle(2))
    with pytest.raises(UserError, match="sizes of pixel_shuffle are not known"):
        predict(operators_of(model, (2, 1, 8, 8)), (1, 1, 10, 10))


@pytest.mark.sabotage
@pytest.mark.parametrize("kind", ["batch_norm", "instance_norm", "group_norm"])
def test_statistics_that_are_forgotten_are_noticed(kind, monkeypatch):
    name = {"batch_norm": "unet", "instance_norm": "dynunet", "group_norm": "segresnet"}[kind]
    sizes = (3, 1, 48, 32)
    assert holds(name, sizes)
    monkeypatch.setattr(trace, "STATISTICS", {k: v for k, v in trace.STATISTICS.items() if k != kind})
    assert not holds(name, sizes)


@pytest.mark.sabotage
def test_a_stride_that_is_forgotten_is_noticed(monkeypatch):
    right = trace._window
    monkeypatch.setattr(trace, "_window", lambda sides, k, s, p, d, up=False: right(sides, k, s, p, (1,) * len(d), up))
    with pytest.raises(AssertionError):
        test_odd_sides_too((3, 2, 40, 31))
