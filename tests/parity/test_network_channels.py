"""Channels of networks that are not ours: what is cut computes exactly what it computed with those channels unread."""

import copy
import json

import pytest
import torch
from torch import nn

from burnish.errors import UserError
from burnish.vision import channels
from burnish.vision.channels import groups
from burnish.vision.kept_channels import Kept, apply
from burnish.vision.networks import build
from burnish.vision.observed_network import observe
from burnish.vision.prune import Target, choose, magnitude, taylor
from offered_networks import OFFERED, network, section, sides


def unread(model: nn.Module, kept: Kept) -> nn.Module:
    """A copy in which no convolution or product reads a channel that leaves."""
    made = copy.deepcopy(model)
    for name, module in made.named_modules():
        dim = 0 if getattr(module, "transposed", False) else 1
        weight = getattr(module, "weight", None)
        if weight is not None and weight.dim() > 1 and getattr(module, "groups", 1) == 1:
            entry = kept.tensors.get(f"{name}.weight", {}).get(dim)
            gone = sorted(set(range(entry[0])) - set(entry[1])) if entry else []
            weight.data.index_fill_(dim, torch.tensor(gone, dtype=torch.long), 0)
    return made


def same(model: nn.Module, sizes: tuple[int, ...], target: Target) -> Kept:
    """Cut a copy, compare it in float64 with the one whose channels are not read; the table."""
    model = model.double().eval()
    kept = choose(model, sizes, target)
    cut, images = apply(copy.deepcopy(model), kept), torch.randn(sizes, dtype=torch.float64)
    torch.testing.assert_close(cut(images), unread(model, kept)(images), rtol=0, atol=1e-12)
    assert sum(p.numel() for p in cut.parameters()) < sum(p.numel() for p in model.parameters())
    return kept


@pytest.mark.parametrize("name", [name for name in OFFERED if not name.startswith("segresnet") or "batch" in name])
def test_what_is_cut_computes_what_it_computed(name):
    kept = same(network(name), (3, 1, *sides(name)), Target(0.4, round_to=1))
    assert all(0 < len(left) < width for width, left in kept.layers.values())


def test_a_group_norm_keeps_as_many_channels_in_each_group():
    model = network("segresnet", channels=(16, 32))
    kept = choose(model, (2, 1, 32, 32), Target(0.5, round_to=1))
    width, left = kept.layers["convInit.conv"]
    assert [sum(1 for one in left if one // 2 == block) for block in range(8)] == [1] * 8
    assert width == 16
    assert apply(model, kept)(torch.randn(1, 1, 48, 40)).shape == (1, 3, 48, 40)


@pytest.mark.parametrize("name", ["unet", "attention-unet", "dynunet"])
def test_built_from_section_and_table_a_state_dict_fits(name, tmp_path):
    model = network(name)
    kept = choose(model, (2, 1, 32, 32), Target(0.5))
    cut = apply(model, kept)
    kept.save(tmp_path / "kept.json")
    torch.save(cut.state_dict(), tmp_path / "weights.pt")
    again = apply(build(section(name)), Kept.load(tmp_path / "kept.json"))
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    images = torch.randn(3, 1, 48, 32)
    assert torch.equal(again.eval()(images), cut(images))


class Residual(nn.Module):
    """A stem, two sums, one of them with a convolution in its way, and a flattened end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.narrow, self.wide = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 8, 3, padding=1)
        self.down, self.way = nn.Conv2d(8, 10, 3, 2, 1), nn.Conv2d(8, 10, 1, 2)
        self.each = nn.Conv2d(10, 10, 3, padding=1, groups=10)
        self.end, self.last = nn.Linear(10 * 4, 7), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.wide(torch.relu(self.narrow(x)))
        x = torch.relu(self.each(self.down(x)) + self.way(x))
        x = nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)
        return self.last(torch.relu(self.end(x)))


def test_flt_086_what_reads_through_a_flatten_follows():
    kept = same(Residual(), (2, 2, 9, 11), Target(0.9, round_to=1))
    assert len(kept.layers["down"][1]) == 1
    assert len(kept.tensors["end.weight"][1][1]) == 4  # all pixels of the one channel


def test_flt_087_both_sides_of_a_sum_are_cut_together():
    kept = same(Residual(), (3, 2, 9, 11), Target(0.5, round_to=1))
    assert kept.tensors["stem.weight"][0] == kept.tensors["wide.weight"][0]
    assert kept.tensors["down.weight"][0] == kept.tensors["way.weight"][0] == kept.tensors["each.weight"][0]
    assert kept.tensors["narrow.weight"][0] == kept.tensors["wide.weight"][1]


class Shared(nn.Module):
    """One convolution called twice, its weight shared with another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.other = nn.Conv1d(1, 6, 1), nn.Conv1d(6, 6, 3, padding=1), nn.Conv1d(6, 6, 3)
        self.other.weight = self.twice.weight
        self.last = nn.Conv1d(6, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.twice(torch.relu(self.twice(self.first(x)))))
        return self.last(torch.relu(self.other(x)))


def test_shared_weights_are_cut_once_and_stay_shared():
    model = Shared().double()
    kept = choose(model, (2, 1, 9), Target(0.5, round_to=1))
    cut = apply(copy.deepcopy(model), kept)
    assert cut.other.weight is cut.twice.weight
    assert cut.twice.weight.shape == (3, 3, 3)
    images = torch.randn(2, 1, 9, dtype=torch.float64)
    torch.testing.assert_close(cut(images), unread(model, kept)(images))


class Window(nn.Module):
    """Attention over pixels: channels become heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.qkv, self.end = (
            nn.Conv2d(1, 8, 1),
            nn.LayerNorm(8),
            nn.Linear(8, 24),
            nn.Linear(8, 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x).flatten(2).transpose(1, 2))
        q, k, v = self.qkv(x).view(x.shape[0], -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return self.end(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_attention_is_refused_with_the_reason():
    with pytest.raises(UserError, match=r"Window: no channels can be pruned \(stem: \w+ may move channels"):
        choose(Window(), (2, 1, 4, 4), Target(0.5))


def test_the_end_of_a_network_stays_and_says_why():
    found = groups(network("unet"), (2, 1, 32, 32))
    assert found.kept == {"model.2.conv": "output of the network"}
    assert len(found.groups) == 4


def test_channels_of_grouped_convolutions_stay():
    model = nn.Sequential(nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 6, 1), nn.Conv2d(6, 2, 1))
    found = groups(model, (2, 1, 8, 8))
    assert [one.name for one in found.groups] == ["2"]
    assert found.kept["0"] == "1 convolves 2 groups of channels"


@pytest.mark.parametrize(("kind", "share"), [("flops", 0.5), ("bytes", 0.6)])
def test_a_target_is_met_and_hardly_more(kind, share):
    model = network("unet", channels=(16, 32, 64))
    kept = choose(model, (1, 1, 32, 32), Target(share, kind, round_to=1))
    both = (copy.deepcopy(model), apply(copy.deepcopy(model), kept))
    if kind == "flops":
        before, after = (float(observe(one, (1, 1, 32, 32)).forward_flops) for one in both)
    else:
        before, after = (float(sum(t.nbytes for t in one.state_dict().values())) for one in both)
    assert (1 - share) * 0.9 * before < after <= (1 - share) * before


def test_a_latency_is_measured():
    kept = choose(network("unet", channels=(32, 64)), (1, 1, 64, 64), Target(0.05, "latency", round_to=1))
    assert kept.reached.startswith("latency ")


def test_a_target_out_of_reach_says_what_can_be_reached():
    with pytest.raises(UserError, match=r"cannot be reached, .* can; give a share of at most 0\.\d+"):
        choose(network("unet"), (1, 1, 32, 32), Target(0.99, "bytes"))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_shares_that_are_none(share):
    with pytest.raises(UserError, match="give a share above 0 and below 1"):
        Target(share)


def test_round_to_keeps_multiples():
    kept = choose(network("unet", channels=(16, 32, 64)), (1, 1, 32, 32), Target(0.37, round_to=8))
    assert {len(left) % 8 for _, left in kept.layers.values()} == {0}


def test_the_smallest_weights_leave_and_taylor_asks_the_loss():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 1, 1)).double()
    with torch.no_grad():
        model[0].weight[:, 0, 0, 0] = torch.tensor([3.0, 1.0, 2.0, 4.0])
        model[0].bias.fill_(1.0)
        model[2].weight[0, :, 0, 0] = torch.tensor([1.0, 1.0, 1.0, 0.0])
    by_weight = choose(model, (1, 1, 4, 4), Target(0.5, round_to=1), {"0.weight": magnitude(model)["0.weight"]})
    assert by_weight.layers["0"] == (4, (0, 3))
    images = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    scores = taylor(model, [lambda m: m(images).square().sum()])
    assert float(scores["0.weight"][3].sum()) == 0.0  # nothing reads it
    assert choose(model, (1, 1, 4, 4), Target(0.5, round_to=1), scores).layers["0"] == (4, (0, 2))


def test_a_table_of_another_network_cuts_nothing():
    model = network("unet")
    before = [p.clone() for p in model.parameters()]
    kept = choose(network("unet", channels=(16, 32, 64)), (1, 1, 32, 32), Target(0.5))
    with pytest.raises(UserError, match="another network's"):
        apply(model, kept)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("broken", ["", "[]", '{"format": 9}', "kept twice"])
def test_a_file_that_is_no_table_is_told(broken, tmp_path):
    path = tmp_path / "kept.json"
    content = {"format": 1, "layers": {"a": [4, [1, 1]]}, "tensors": {}}
    path.write_text(json.dumps(content) if broken == "kept twice" else broken)
    with pytest.raises(UserError, match=r"kept\.json: no table of kept channels"):
        Kept.load(path)


@pytest.mark.sabotage
@pytest.mark.parametrize("broken", ["sum", "norm", "flatten"])
def test_a_tie_that_is_forgotten_is_noticed(broken, monkeypatch):
    if broken == "sum":
        monkeypatch.setattr(channels._Ties, "tie", lambda self, one, other: None)
    elif broken == "norm":
        monkeypatch.setattr(channels, "NORMS", {"batch_norm": (1, 2, 3)})
    else:
        right = channels._product
        monkeypatch.setattr(channels, "_product", lambda o, n, t, given: right(o, n, t, sorted(given * 1)[::-1]))
    with pytest.raises((AssertionError, RuntimeError, UserError, IndexError)):
        test_flt_087_both_sides_of_a_sum_are_cut_together()
