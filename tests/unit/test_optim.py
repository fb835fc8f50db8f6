"""Learning rates against numbers worked out by hand, and which parameters decay."""

import pytest
import torch
from torch import nn

from burnish.recipe import Optim, Schedule
from burnish.train.optim import begun, build_optimizer, fill_state, lr_at


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.2), (1, 0.4), (3, 0.8), (4, 1.0), (8, 0.55), (6, 0.8681980515339464), (12, 0.1), (99, 0.1)],
)
def test_cosine_after_warmup(step, expected):
    schedule = Schedule(kind="cosine", warmup_steps=4, min_lr_ratio=0.1)
    assert lr_at(step, schedule, 13) == pytest.approx(expected, rel=1e-12)  # 4 warm-up steps, then 8 intervals


@pytest.mark.parametrize(("step", "expected"), [(0, 0.5), (1, 1.0), (15, 1.0), (17, 0.6), (18, 0.4), (19, 0.2)])
def test_warmup_stable_decay(step, expected):
    schedule = Schedule(kind="wsd", warmup_steps=1, min_lr_ratio=0.2, decay_steps=4)
    assert lr_at(step, schedule, 20) == pytest.approx(expected, rel=1e-12)


def test_constant_and_scaled_by_the_peak():
    schedule = Schedule(kind="constant", warmup_steps=3, min_lr_ratio=0.5)
    assert [lr_at(step, schedule, 9, peak=8e-4) for step in (0, 2, 3, 8)] == pytest.approx([2e-4, 6e-4, 8e-4, 8e-4])


@pytest.mark.parametrize("kind", ["cosine", "wsd", "constant"])
def test_shortest_runs_are_finite_and_positive(kind):
    schedule = Schedule(kind=kind, min_lr_ratio=0.5, decay_steps=1)
    assert 0.5 <= lr_at(0, schedule, 1) <= 1.0
    assert lr_at(0, Schedule(kind=kind, warmup_steps=1, decay_steps=0), 1) == 0.5


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 5, bias=True)
        self.head.weight = self.embed.weight
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)


def test_only_matrices_decay_and_a_tied_weight_is_listed_once():
    model = Tied()
    optimizer = build_optimizer(model, Optim(lr=0.5, weight_decay=0.25, betas=(0.8, 0.9), eps=1e-6))
    decayed, plain = optimizer.param_groups
    assert [id(p) for p in decayed["params"]] == [id(model.embed.weight)]
    assert {id(p) for p in plain["params"]} == {id(model.norm.weight), id(model.norm.bias), id(model.head.bias)}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.25, 0.0)
    assert decayed["fused"]
    assert (decayed["betas"], decayed["eps"]) == ((0.8, 0.9), 1e-6)


def test_one_update_by_hand():
    """First step with gradient g: m_hat = g, v_hat = g^2, so w -= lr (sign(g) + decay w), up to eps."""
    linear = nn.Linear(1, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[2.0], [-4.0]]))
        linear.bias.copy_(torch.tensor([2.0, -4.0]))
    optimizer = build_optimizer(linear, Optim(lr=0.1, weight_decay=0.5, eps=1e-12))
    linear.weight.grad = torch.tensor([[3.0], [-0.01]])
    linear.bias.grad = torch.tensor([3.0, -0.01])
    optimizer.step()
    torch.testing.assert_close(linear.weight.detach(), torch.tensor([[1.8], [-3.7]]))
    torch.testing.assert_close(linear.bias.detach(), torch.tensor([1.9, -3.9]))


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="no parameter to train"):
        build_optimizer(nn.Linear(2, 2).requires_grad_(False), Optim())


@pytest.mark.parametrize("fused", [True, False])
def test_state_filled_early_is_what_the_first_step_would_make(fused):
    """Two optimizers over equal weights, one filled early: the same states and weights after three steps, bit for bit."""
    models = [nn.Linear(5, 3), nn.Linear(5, 3)]
    models[1].load_state_dict(models[0].state_dict())
    lazy, early = (torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused) for model in models)
    fill_state(early)
    assert not begun(early)
    assert not begun(lazy)
    for number in range(3):
        for model, optimizer in zip(models, (lazy, early), strict=True):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.5 - number)
            optimizer.step()
    assert begun(early)
    for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert early.state[ours].keys() == lazy.state[theirs].keys()
        for key, value in early.state[ours].items():
            other = lazy.state[theirs][key]
            assert (value.dtype, value.tolist()) == (other.dtype, other.tolist())
    kept = early.state[next(models[1].parameters())]["exp_avg"]
    fill_state(early)  # leaves one that has begun alone
    assert early.state[next(models[1].parameters())]["exp_avg"] is kept


def test_other_optimizers_are_left_alone():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    fill_state(optimizer)
    assert not optimizer.state
