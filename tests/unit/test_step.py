"""One optimizer step: what accumulation, clipping, empty windows and unused parameters do."""

import pytest
import torch
import torch.nn.functional as F
from tiny_training import OPTIM, VOCAB, split, tiny_batch, tiny_trainable, weights
from torch import nn

from burnish.data.batch import Batch
from burnish.errors import UserError
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import NonFiniteError, clip_factor, norm, plain_step, plain_trainable


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sizes", [[1] * 6, [4, 2], [2, 3, 1]])
def test_flt_023_unequal_micro_batches_equal_one_big_batch(tied, sizes):
    """Rows with 11, 1, 5, 0, 7 and 2 labels: a mean of means would differ by tens of percent."""
    whole = tiny_batch(6, counted=[11, 1, 5, 0, 7, 2])
    one, several = tiny_trainable(tied), tiny_trainable(tied)
    for _ in range(3):
        expected, found = one.step([whole], 0.01), several.step(split(whole, sizes), 0.01)
        assert found.labels == expected.labels == 26
        assert found.tokens == expected.tokens == 66
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(several)[name], value, rtol=1e-3, atol=2e-5, msg=name)
    assert found.loss < 0.95 * torch.tensor(float(VOCAB)).log().item()


def test_loss_and_norm_are_those_of_plain_torch():
    trainable, batch = tiny_trainable(), tiny_batch(3, counted=[4, 11, 6])
    model = trainable.parts[0].model
    logits = model.logits(model(torch.from_numpy(batch.ids)))
    expected = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten())
    expected.backward()
    size = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    model.zero_grad()
    result = trainable.step([batch], 0.01)
    assert result.loss == pytest.approx(expected.item(), rel=1e-6)
    assert result.grad_norm == pytest.approx(size.item(), rel=1e-5)
    assert result.labels == 21


def test_update_is_that_of_clipped_adamw():
    ours, theirs = tiny_trainable(clip=0.1), tiny_trainable()
    model, batch = theirs.parts[0].model, tiny_batch(2)
    for lr in (0.02, 0.01):
        assert ours.step([batch], lr).grad_norm > 0.2  # clipping has something to do
        logits = model.logits(model(torch.from_numpy(batch.ids)))
        F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for group in theirs.optimizer.param_groups:
            group["lr"] = lr
        theirs.optimizer.step()
        theirs.optimizer.zero_grad()
    for name, value in weights(theirs).items():
        torch.testing.assert_close(weights(ours)[name], value, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize(("grad_norm", "largest", "factor"), [(4.0, 1.0, 0.25), (0.5, 1.0, 1.0), (9.0, 0.0, 1.0)])
def test_clip_factor(grad_norm, largest, factor):
    assert clip_factor(grad_norm, largest) == pytest.approx(factor, rel=1e-6)


def test_norm_of_a_large_gradient_keeps_its_digits():
    gradients = [torch.full((4096, 1024), 1e-3), torch.full((5,), 2.0)]
    assert norm(gradients).item() == pytest.approx((4096 * 1024 * 1e-6 + 20.0) ** 0.5, rel=1e-6)


def test_flt_026_step_without_labels_changes_nothing():
    trainable = tiny_trainable()
    trainable.step([tiny_batch(2)], 0.01)
    before, counters = weights(trainable), [s["step"].item() for s in trainable.optimizer.state.values()]
    result = trainable.step([tiny_batch(2, counted=[0, 0]), tiny_batch(1, counted=[0])], 0.01)
    assert (result.loss, result.labels, result.tokens, result.grad_norm) == (0.0, 0, 33, 0.0)
    assert all(torch.equal(value, before[name]) for name, value in weights(trainable).items())
    assert [s["step"].item() for s in trainable.optimizer.state.values()] == counters == [1.0] * len(before)


def test_gradients_are_gone_after_a_step():
    trainable = tiny_trainable()
    trainable.step([tiny_batch(2), tiny_batch(1)], 0.01)
    assert all(p.grad is None for p in trainable.parts[0].parameters())


def test_packed_rows_pass_positions_and_pieces_on():
    trainable, batch = tiny_trainable(), tiny_batch(2)
    packed = Batch(batch.ids, batch.labels, batch.positions.copy(), ((4, 7), (11,)))
    packed.positions[0, 4:] = range(7)
    apart = trainable.parts[0]
    ids, labels = torch.from_numpy(batch.ids), torch.from_numpy(batch.labels)
    with torch.no_grad():
        expected = sum(
            apart(ids[row : row + 1, a:b], labels[row : row + 1, a:b]).item()
            for row, a, b in ((0, 0, 4), (0, 4, 11), (1, 0, 11))
        )
    assert trainable.step([packed], 0.0).loss == pytest.approx(expected / 22, rel=1e-6)


def test_flt_040_trainable_parameter_without_gradient_is_refused_by_name():
    trainable = tiny_trainable()
    loss = trainable.parts[0]
    loss.model.layers[1].spare = nn.Linear(3, 3)
    optimizer = build_optimizer(loss, OPTIM)
    before = weights(trainable)
    with pytest.raises(UserError, match=r"model\.layers\.1\.spare\.weight, model\.layers\.1\.spare\.bias"):
        plain_step(loss, optimizer, 1.0)([tiny_batch(2)], 0.01)
    assert all(torch.equal(value, before[name]) for name, value in weights(trainable).items())
    loss.model.layers[1].spare.requires_grad_(False)
    assert plain_step(loss, build_optimizer(loss, OPTIM), 1.0)([tiny_batch(2)], 0.01).loss > 1


def test_frozen_embedding_trains_the_rest():
    trainable = tiny_trainable(tied=False)
    loss = trainable.parts[0]
    loss.model.embed.weight.requires_grad_(False)
    trainable = plain_trainable(loss, build_optimizer(loss, OPTIM), 1.0)
    before = weights(trainable)
    trainable.step([tiny_batch(2)], 0.01)
    same = [name for name, value in weights(trainable).items() if torch.equal(value, before[name])]
    assert same == ["model.embed.weight"]


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_what_is_not_finite_is_not_applied(bad):
    trainable = tiny_trainable()
    trainable.step([tiny_batch(2)], 0.01)
    model = trainable.parts[0].model
    before = weights(trainable)
    moments = [s["exp_avg"].clone() for s in trainable.optimizer.state.values()]
    if bad == "loss":
        handle = model.norm.register_forward_hook(lambda module, inputs, output: output * float("nan"))
    else:
        handle = model.layers[0].mlp.down.weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(NonFiniteError) as caught:
        trainable.step([tiny_batch(2)], 0.01)
    handle.remove()
    assert (caught.value.loss == caught.value.loss) == (bad == "gradient")
    assert all(torch.equal(value, before[name]) for name, value in weights(trainable).items())
    assert all(torch.equal(s["exp_avg"], m) for s, m in zip(trainable.optimizer.state.values(), moments, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert trainable.step([tiny_batch(2)], 0.01).loss > 1  # and training can go on


def test_loss_module_sums_over_chunks_of_any_size():
    trainable, batch = tiny_trainable(), tiny_batch(3)
    ids, labels = torch.from_numpy(batch.ids), torch.from_numpy(batch.labels)
    model = trainable.parts[0].model
    with torch.no_grad():
        sums = [LanguageModelLoss(model, chunk)(ids, labels).item() for chunk in (1, 10, 512)]
    assert sums == pytest.approx([sums[0]] * 3, rel=1e-6)
    assert sums[0] > 33 * 3
