"""A network with norms that have no weights: pruned, it runs without a warning."""

import warnings

import torch

from burnish.vision.kept_channels import apply
from burnish.vision.networks import build
from burnish.vision.prune import Target, choose
from burnish.vision.sections import Network


def test_norms_without_weights_follow_the_channels_before_them() -> None:
    torch.manual_seed(0)
    section = Network(kind="attention-unet", in_channels=1, out_channels=2, channels=(16, 32), norm="batch", act="relu")
    model = build(section).eval()
    whole = sum(p.numel() for p in model.parameters())
    apply(model, choose(model, (2, 1, 32, 32), Target(0.5, "flops")))
    assert sum(p.numel() for p in model.parameters()) < 0.8 * whole
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model(torch.randn(1, 1, 32, 32)).shape == (1, 2, 32, 32)
