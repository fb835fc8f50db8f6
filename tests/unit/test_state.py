"""Checkpoints: exact to the bit, whole or absent, checked when read."""

import json
import os
import shutil

import pytest
import torch
from safetensors import SafetensorError
from tiny_training import tiny_batch, tiny_trainable, weights

from burnish.errors import UserError
from burnish.train import pieces
from burnish.train.state import Best, State, latest, load_checkpoint, read_state, save_checkpoint

IDENTITY = {"optim": {"lr": 0.01, "betas": (0.9, 0.95)}, "train": {"seed": 3}}


def _trained(steps=2, tied=True, seed=0):
    trainable = tiny_trainable(tied, seed)
    for number in range(steps):
        trainable.step([tiny_batch(2, seed=number)], 0.01)
    return trainable


def _save(folder, trainable, step, keep=2, best=None):
    return save_checkpoint(folder, trainable, State(step, step * 4, IDENTITY, best, step), keep)


@pytest.mark.parametrize("tied", [True, False])
def test_training_goes_on_bit_for_bit(tmp_path, tied):
    first = _trained(tied=tied)
    path = _save(tmp_path, first, 2, best=Best(2, 3.25))
    again = tiny_trainable(tied, seed=9)
    state = load_checkpoint(path, again, IDENTITY)
    assert (state.step, state.next_sample, state.best, state.evaluated) == (2, 8, Best(2, 3.25), 2)
    for number in range(2, 6):
        assert first.step([tiny_batch(2, seed=number)], 0.01) == again.step([tiny_batch(2, seed=number)], 0.01)
    assert all(torch.equal(value, weights(first)[name]) for name, value in weights(again).items())
    assert {s["step"].item() for s in again.optimizer.state.values()} == {6.0}


class Count:
    """Something a technique carries."""

    def __init__(self, value=0.0):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]

    def notes(self):
        return []


def test_what_techniques_carry_goes_with_the_checkpoint(tmp_path):
    trainable, again = _trained(1), tiny_trainable()
    trainable.carried = {"first": Count(0.1), "second": Count(-3.0)}
    path = _save(tmp_path, trainable, 1)
    again.carried = {"second": Count()}
    load_checkpoint(path, again, IDENTITY)
    assert again.carried["second"].value == -3.0
    load_checkpoint(path, tiny_trainable(), IDENTITY)  # whoever only wants the weights carries nothing
    before = weights(again)
    again.carried = {"third": Count()}
    with pytest.raises(UserError, match="holds no third"):
        load_checkpoint(_save(tmp_path, _trained(2, seed=4), 2), again, IDENTITY)
    assert all(torch.equal(value, before[name]) for name, value in weights(again).items())


def test_flt_015_random_state_is_that_of_the_moment_of_saving(tmp_path):
    trainable = _trained(1)
    torch.manual_seed(5)
    path = _save(tmp_path, trainable, 1)
    expected = torch.rand(4)
    torch.rand(100)
    load_checkpoint(path, tiny_trainable(), IDENTITY)
    assert torch.equal(torch.rand(4), expected)


def test_tied_weight_is_stored_once(tmp_path):
    from safetensors.torch import load_file

    tied, untied = (load_file(_save(tmp_path / str(t), _trained(1, t), 1) / "model.safetensors") for t in (True, False))
    assert untied.keys() - tied.keys() == {"model.head.weight"}


def test_newest_and_best_are_kept(tmp_path):
    trainable = _trained(1)
    for step in (1, 2, 3, 4):
        _save(tmp_path, trainable, step, keep=2, best=Best(1, 2.0))
    assert sorted(os.listdir(tmp_path)) == ["step-000001", "step-000003", "step-000004"]


def test_steps_are_ordered_as_numbers(tmp_path):
    trainable = _trained(1)
    for step in (999_999, 1_000_000, 1_000_001):
        _save(tmp_path, trainable, step)
    assert sorted(os.listdir(tmp_path)) == ["step-1000000", "step-1000001"]
    assert latest(tmp_path)[0].name == "step-1000001"


def _truncate(path):
    (path / "optimizer.safetensors").write_bytes((path / "optimizer.safetensors").read_bytes()[:-1])


def _flip(path):
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_truncate, "optimizer.safetensors is damaged"),
        (_flip, "model.safetensors is damaged"),
        (lambda path: (path / "state.json").unlink(), "state.json is missing"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json is missing or damaged"),
        (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json is missing or damaged"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing or damaged"),
    ],
)
def test_damaged_checkpoint_is_skipped_by_name_and_refused_if_asked_for(tmp_path, damage, reason):
    trainable = _trained(1)
    good, bad = _save(tmp_path, trainable, 1), _save(tmp_path, trainable, 2)
    damage(bad)
    found, skipped = latest(tmp_path)
    assert found == good
    assert len(skipped) == 1
    assert str(bad) in skipped[0]
    assert reason in skipped[0]
    before = weights(trainable)
    with pytest.raises(UserError, match=reason.split()[0]):
        load_checkpoint(bad, trainable, IDENTITY)
    assert all(torch.equal(value, before[name]) for name, value in weights(trainable).items())


def test_unfinished_folders_are_not_seen_and_are_cleared(tmp_path):
    good = _save(tmp_path, _trained(1), 1)
    shutil.copytree(good, tmp_path / ".step-000002.77")
    assert latest(tmp_path) == (good, [])
    _save(tmp_path, _trained(1), 2)
    assert sorted(os.listdir(tmp_path)) == ["step-000001", "step-000002"]


def test_no_checkpoint_at_all(tmp_path):
    assert latest(tmp_path / "none") == (None, [])


def test_other_settings_are_refused_naming_each_difference(tmp_path):
    path = _save(tmp_path, _trained(1), 1)
    other = {"optim": {"lr": 0.02, "betas": (0.9, 0.95)}, "train": {"seed": 3, "steps": 7}}
    with pytest.raises(UserError, match=r"optim\.lr: 0\.01 -> 0\.02; train\.steps: None -> 7"):
        load_checkpoint(path, tiny_trainable(), other)
    load_checkpoint(path, tiny_trainable(), json.loads(json.dumps(IDENTITY)))  # a tuple is what JSON makes of it


def test_model_of_another_shape_is_refused_naming_the_tensor(tmp_path):
    path = _save(tmp_path, _trained(1), 1)
    with pytest.raises(UserError, match=r": model\.head\.weight is absent in the checkpoint and \(37, 16\)"):
        load_checkpoint(path, tiny_trainable(tied=False), IDENTITY)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("disk full")])
def test_full_disk_leaves_the_previous_checkpoint_as_it_was(tmp_path, monkeypatch, error):
    good = _save(tmp_path, _trained(1), 1)
    calls = []

    def save_file(tensors, path):
        calls.append(path)
        path.write_bytes(b"half")
        if len(calls) == 2:
            raise error

    monkeypatch.setattr(pieces, "save_file", save_file)
    with pytest.raises(UserError, match=r"cannot write a checkpoint \((No space|disk full)"):
        _save(tmp_path, _trained(1), 2, keep=1)
    assert os.listdir(tmp_path) == [good.name]
    assert latest(tmp_path) == (good, [])


def test_folder_that_is_a_file_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write a checkpoint") as caught:
        _save(tmp_path / "file", _trained(1), 1)
    assert "\n" not in str(caught.value)


def test_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path):
    trainable = _trained(1)
    path = _save(tmp_path, trainable, 1)
    _flip(path)
    assert latest(tmp_path)[0] is None
    assert _save(tmp_path, trainable, 1) == path
    assert latest(tmp_path) == (path, [])
    assert read_state(path).step == 1
