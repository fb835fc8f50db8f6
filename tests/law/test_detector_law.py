"""The law for detectors: traced at one size, whole or pruned, they take at another what was predicted."""

import copy

import pytest
import torch
from torch import nn

from burnish.vision import trace
from burnish.vision.kept_channels import apply
from burnish.vision.networks import build
from burnish.vision.observed_network import observe
from burnish.vision.operators import operators_of
from burnish.vision.prune import Target, choose
from burnish.vision.sections import Network
from burnish.vision.trace import predict

KINDS = {
    "centernet": Network(kind="centernet", in_channels=3, out_channels=4, channels=(8, 12, 16), head=12),
    "efficientnet-lite0": Network(
        kind="efficientnet-lite0", in_channels=3, out_channels=1, channels=(12, 12, 16), head=8
    ),
}
TRACED = (2, 3, 32, 32)


def holds(model: nn.Module, sizes: tuple[int, ...]) -> bool:
    return predict(operators_of(model, TRACED), sizes) == observe(model, sizes)


@pytest.mark.parametrize(("name", "pruned"), [("centernet", False), ("centernet", True), ("efficientnet-lite0", True)])
def test_another_size_takes_what_was_predicted(name, pruned):
    model = build(KINDS[name])
    if pruned:
        before = sum(p.numel() for p in model.parameters())
        apply(model, choose(model, TRACED, Target(0.4)))
        assert sum(p.numel() for p in model.parameters()) < 0.55 * before
    assert holds(model, (3, 3, 48, 80))
    assert holds(model, (1, 3, 16, 64))


def test_a_pruned_detector_computes_what_it_did_without_the_channels_that_are_gone():
    """Channels of every kind of layer, those that a channelwise convolution and a sum tie too; in float64."""
    own = KINDS["efficientnet-lite0"]
    torch.manual_seed(0)
    model = build(own).double()
    with torch.no_grad():
        model.train()(torch.randn(TRACED, dtype=torch.float64))
    kept = choose(model.eval(), TRACED, Target(0.3, round_to=1))
    wanted = apply(build(own).double(), kept)
    wanted.load_state_dict(apply(copy.deepcopy(model), kept).state_dict())
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.groups == 1:
            size, left = kept.tensors.get(f"{name}.weight", {}).get(1, (0, ()))
            gone = torch.tensor([one for one in range(size) if one not in left], dtype=torch.long)
            module.weight.data.index_fill_(1, gone, 0)
    images = torch.randn(3, 3, 32, 48, dtype=torch.float64)
    torch.testing.assert_close(wanted.eval()(images), model(images), rtol=0, atol=1e-11)


@pytest.mark.sabotage
def test_an_activation_that_is_forgotten_is_noticed(monkeypatch):
    model = build(KINDS["efficientnet-lite0"])
    assert holds(model, (1, 3, 32, 48))
    monkeypatch.setattr(trace, "READ", tuple(kind for kind in trace.READ if kind != "relu6"))
    monkeypatch.setattr(trace, "NOTHING", (*trace.NOTHING, "relu6"))
    assert not holds(model, (1, 3, 32, 48))
