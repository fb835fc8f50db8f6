"""Importance of parts: each kind against its formula spelled out, blind to padding; the table of what stays."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from burnish.compress import importance, prune_model
from burnish.compress.importance import by_activation, by_first_order, by_norm
from burnish.compress.prune_table import load_table, notes, save_table
from burnish.compress.samples import Samples
from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.techniques import prune

SIZES = {"vocab": 41, "hidden": 24, "ffn": 20, "layers": 3, "heads": 6, "kv_heads": 3, "init_std": 0.2}
ROWS = [[5, 9, 9, 2, 31, 3, 8], [17, 2], [6, 4, 4, 8, 0], [11]]


def decoder(**changes) -> Decoder:
    """In float64, vectors other than 0 and 1."""
    model = Decoder(ModelConfig(**SIZES | changes), torch.Generator().manual_seed(0)).double()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64), alpha=0.1)
    return model


def samples() -> Samples:
    return Samples.of(ROWS)


def weights(model: Decoder) -> float:
    """Sum of squares of all matrices of the layers."""
    return sum(float(p.detach().square().sum()) for block in model.layers for p in block.parameters() if p.dim() > 1)


def test_norms_are_what_the_smaller_model_lacks():
    model, asked = decoder(), prune.Config(channels=0.4, groups=0.34, layers=0.34, importance="norm", multiple=3)
    found, table = by_norm(model), prune.search(asked, model, None)
    gone = 0.0
    for row in table.layers:
        if not row.stays:
            gone += float(found.layers[row.layer])
            continue
        gone += float(found.groups[row.layer].sum() - found.groups[row.layer][list(row.groups)].sum())
        gone += float(found.channels[row.layer].sum() - found.channels[row.layer][list(row.channels)].sum())
    assert weights(model) - weights(prune.apply(asked, model, Mesh(), table)) == pytest.approx(gone, rel=1e-12)
    assert [len(row.groups) for row in table.kept] == [2, 2]
    assert [len(row.channels) for row in table.kept] == [12, 12]


def inputs_and_outputs(model: Decoder, row: list[int]) -> list[tuple]:
    """Of a row alone, by layer: what enters it, what leaves it, what o and what down read."""
    seen: list[list] = [[None] * 4 for _ in model.layers]
    hooks = []
    for own, block in zip(seen, model.layers, strict=True):

        def whole(_, given, out, own=own):
            own[0], own[1] = given[0][0], out[0]

        hooks.append(block.register_forward_hook(whole))
        for place, part in ((2, block.attention.o), (3, block.mlp.down)):
            hooks.append(part.register_forward_pre_hook(lambda _, x, own=own, k=place: own.__setitem__(k, x[0][0])))
    model(torch.tensor([row]))
    for hook in hooks:
        hook.remove()
    return seen


@torch.no_grad()
def activations() -> tuple:
    """(found, spelled out over rows without padding)."""
    model = decoder()
    layers, groups, channels = torch.zeros(3), torch.zeros(3, 3), torch.zeros(3, 20)
    layers, groups, channels = layers.double(), groups.double(), channels.double()
    for row in ROWS:
        for k, (entered, left, o, down) in enumerate(inputs_and_outputs(model, row)):
            for token in range(len(row)):
                x, y = entered[token], left[token]
                layers[k] += 1 - float(x @ y / (x.norm() * y.norm()))
            groups[k] += o.abs().sum(0).view(3, -1).sum(1)
            channels[k] += down.abs().sum(0)
    count = sum(map(len, ROWS))
    found = by_activation(model, samples(), rows=3)
    return found, (layers / count, groups / count, channels / count)


def check_activations() -> None:
    found, wanted = activations()
    for name, values in zip(("layers", "groups", "channels"), wanted, strict=True):
        torch.testing.assert_close(getattr(found, name), values, rtol=1e-9, atol=1e-12)


def test_activations_are_means_over_real_tokens():
    check_activations()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_first_order_is_the_gradient_of_a_gate(family):
    """Each part times a gate of 1: the gate's gradient, squared, a batch at a time."""
    model = decoder(**({"family": "gpt2", "kv_heads": 6} if family == "gpt2" else {}))
    groups, size = model.shape.kv_heads, model.shape.heads // model.shape.kv_heads * model.shape.head_dim
    found = by_first_order(model, samples(), rows=2)
    total = [torch.zeros(3, groups, dtype=torch.float64), torch.zeros(3, 20, dtype=torch.float64)]
    total += [torch.zeros(3, dtype=torch.float64)]
    for batch in (ROWS[:2], ROWS[2:]):
        gates = [torch.ones_like(t, requires_grad=True) for t in total]
        hooks = []
        for k, block in enumerate(model.layers):
            wide = gates[0][k].repeat_interleave(size)
            hooks += [
                block.attention.o.register_forward_pre_hook(lambda _, x, g=wide: (x[0] * g,)),
                block.mlp.down.register_forward_pre_hook(lambda _, x, g=gates[1][k]: (x[0] * g,)),
                block.attention.o.register_forward_hook(lambda _, x, y, g=gates[2][k]: y * g),
                block.mlp.down.register_forward_hook(lambda _, x, y, g=gates[2][k]: y * g),
            ]
        scores = [model.logits(model(torch.tensor([row])))[0, :-1] for row in batch]
        labels = torch.tensor([token for row in batch for token in row[1:]])
        F.cross_entropy(torch.cat(scores), labels).backward()
        for sum_, gate in zip(total, gates, strict=True):
            sum_ += gate.grad.square() / 2
        for hook in hooks:
            hook.remove()
    for name, values in zip(("groups", "channels", "layers"), total, strict=True):
        torch.testing.assert_close(getattr(found, name), values, rtol=1e-8, atol=1e-16)


def test_reading_samples_leaves_the_model_as_it_was():
    model = decoder()
    model.head.weight.requires_grad_(False)
    before = {name: (p.requires_grad, p.clone()) for name, p in model.named_parameters()}
    by_first_order(model, samples(), rows=2)
    by_activation(model, samples(), rows=2)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == before[name][0]
        assert parameter.grad is None
        assert torch.equal(parameter, before[name][1])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_of_equals_the_first_stay():
    assert prune_model.largest(torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0]), 2) == (1, 2)
    assert prune_model.largest(torch.tensor([3.0, 1.0, 2.0]), 2) == (0, 2)


def test_a_table_is_saved_a_line_a_layer_and_refused_for_others(tmp_path):
    model, asked = decoder(), prune.Config(channels=0.4, groups=0.34, layers=0.34, importance="first-order")
    table = prune.search(asked, model, samples())
    save_table(table, tmp_path / "table.json")
    lines = (tmp_path / "table.json").read_text().splitlines()
    assert len(lines) == 2 + 3
    assert [json.loads(line.rstrip(","))["layer"] for line in (*lines[2:4], lines[4].removesuffix("]}"))] == [0, 1, 2]
    assert load_table(tmp_path / "table.json") == table
    assert sum(row.importance for row in table.layers) == pytest.approx(1)
    assert all(0 < row.channels_share <= 1 and 0 < row.groups_share <= 1 for row in table.kept)
    assert table.key.samples == samples().fingerprint
    other = decoder()
    with torch.no_grad():
        other.embed.weight[3, 3] += 1
    with pytest.raises(UserError, match="is for a model"):
        prune.apply(asked, other, Mesh(), table)
    with pytest.raises(UserError, match="made with rows 4, not 2"):
        prune.apply(asked.model_copy(update={"rows": 2}), model, Mesh(), table)


def test_the_notes_name_what_goes_and_who_keeps_least():
    model, asked = decoder(), prune.Config(channels=0.4, layers=0.34, importance="norm", multiple=3)
    table = prune.search(asked, model, None)
    gone = next(row for row in table.layers if not row.stays)
    least = min(table.kept, key=lambda row: row.channels_share)
    layers, channels = notes(table)
    assert layers == f"prune: out of 3 layers go {gone.layer}, with {gone.importance:.1%} of the importance by norm"
    assert f"have {least.channels_share:.1%} (layer {least.layer}) to" in channels
    found = by_norm(model).channels[least.layer]
    assert least.channels_share == pytest.approx(float(found.sort().values[-12:].sum() / found.sum()))


@pytest.mark.sabotage
def test_a_mean_over_padding_too_is_noticed(monkeypatch):
    check_activations()
    watching = importance._watching
    monkeypatch.setattr(importance, "_watching", lambda model, mask, read: watching(model, torch.ones_like(mask), read))
    with pytest.raises(AssertionError):
        check_activations()
