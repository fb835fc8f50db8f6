"""Offered networks: every kind of network a recipe can name, with norms and activations it is offered with, tiny."""

import torch
from torch import nn

from burnish.vision.networks import build
from burnish.vision.sections import Network

PLAIN = {
    "unet": {},
    "basic-unet": {"channels": (8, 8, 16, 16, 32)},
    "segresnet": {"norm": "group"},
    "dynunet": {"norm": "instance", "act": "leaky-relu"},
    "attention-unet": {},
    "unet, residual, instance, prelu": {"kind": "unet", "residual": 2, "norm": "instance", "act": "prelu"},
    "segresnet, batch": {"kind": "segresnet"},
    "centernet": {"head": 12},
}
SOLID = {f"{name}, 3-D": {"kind": name, "dimensions": 3, **settings} for name, settings in list(PLAIN.items())[:5]}
OFFERED = {**PLAIN, **SOLID}


def section(name: str, **more: object) -> Network:
    """The section of a recipe."""
    settings = {"kind": name, "in_channels": 1, "out_channels": 3, "channels": (8, 16, 32)} | OFFERED[name] | more
    return Network.model_validate(settings)


def network(name: str, **more: object) -> nn.Module:
    """A network with weights of its own seed, its norms with statistics of something."""
    torch.manual_seed(0)
    own = section(name, **more)
    model = build(own)
    with torch.no_grad():
        model.train()(torch.randn(2, own.in_channels, *sides(name)))
    return model.eval()


def sides(name: str) -> tuple[int, ...]:
    """Sides of images that every level divides."""
    return (32,) * section(name).dimensions
