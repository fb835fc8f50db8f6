"""AWQ's search: statistics without padding, folds that change nothing, never worse than rounding, and lost by no kill."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from awq_models import FAMILIES, SIZES, config_of, decoder, divergence, logits, samples
from burnish.compress import awq_scales, awq_search, clip
from burnish.compress.awq_table import Table, load_table, save_table, text_of
from burnish.compress.fold import folds_of
from burnish.compress.gram import Gram
from burnish.describe import Shapes, describe
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.ops.int4_linear import Int4Linear
from burnish.techniques import awq
from burnish.weight_format import IntWeights

SMALL = awq.Config(group=32, ratios=8)
RTN = awq.Config(method="rtn", group=32)
families = pytest.mark.parametrize("name", FAMILIES)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def compressed(model: Decoder, config: awq.Config, table: Table | None) -> Decoder:
    return awq.apply(config, copy.deepcopy(model), Mesh(), table)


@families
@pytest.mark.parametrize("symmetric", [True, False])
def test_no_fold_and_no_matrix_is_worse_than_rounding(name: str, symmetric: bool) -> None:
    config = SMALL.model_copy(update={"symmetric": symmetric})
    model, own = decoder(name), samples(name)
    before = copy.deepcopy(model.state_dict())
    table = awq.search(config, model, own)
    assert table is not None
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    rows = [row for layer in table.layers for row in layer.folds]
    assert all(row.loss <= row.rounded for row in rows)
    assert sum(row.family != "identity" for row in rows) > len(rows) / 2
    for layer in table.layers:
        by_name = {row.name.split(".", 2)[2]: row for row in layer.matrices}
        for one in folds_of(model.shape):
            own_rows = [by_name[matrix] for matrix in one.matrices]
            assert sum(row.loss for row in own_rows) <= sum(row.rounded for row in own_rows) * 1.0001
    base = logits(model, own)
    rounded = compressed(model, RTN.model_copy(update={"symmetric": symmetric}), None)
    assert divergence(compressed(model, config, table), base, own) < 0.9 * divergence(rounded, base, own)


def worse_than_none() -> list[float]:
    """Losses in parts of rounding's for a grid with one bad scale: the inverse of the weights, whatever the activations."""
    config = awq.Config(group=32, ratios=1, scales="duo", clip=False)
    table = awq.search(config, decoder("qwen3"), samples("qwen3"))
    return [row.loss / row.rounded for layer in table.layers for row in layer.folds]


def test_no_scale_at_all_is_always_in_the_grid() -> None:
    assert max(worse_than_none()) <= 1


@torch.no_grad()
def test_what_the_table_says_of_a_loss_is_what_the_module_does() -> None:
    """The error of one matrix on the very tokens, in float64."""
    model, own = decoder("one value head"), samples("one value head")
    table = awq.search(SMALL, model, own)
    seen: dict[str, Tensor] = {}
    block = model.layers[0]
    handle = block.mlp.down.register_forward_pre_hook(lambda _, given: seen.update(x=given[0][own.mask]))
    logits(model, own)
    handle.remove()
    made = compressed(model, SMALL, table)
    row = next(row for row in table.layers[0].matrices if row.name == "layers.0.mlp.down")
    scale = next((torch.tensor(f.scale) for f in table.layers[0].folds if f.source == "mlp.up"), None)
    x = seen["x"].double()
    wide = torch.ones(x.shape[1]) if scale is None or not len(scale) else scale
    off = (x / wide) @ made.layers[0].mlp.down.dequantized().double().t() - x @ block.mlp.down.weight.double().t()
    assert row.loss == pytest.approx(float(off.square().sum(1).mean()), rel=1e-3)
    signal = (x @ block.mlp.down.weight.double().t()).square().sum(1).mean()
    assert row.energy == pytest.approx(float(signal), rel=1e-4)


def test_experts_that_no_token_reached_are_rounded_and_named() -> None:
    """One token in one row reaches two of the experts."""
    table = awq.search(SMALL, decoder("qwen3 moe"), samples("qwen3 moe", (1,)))
    assert table is not None
    idle = Counter(name.split(".")[1] for name in table.unseen)
    assert idle == {"0": 6, "1": 6}
    scaled = [row for layer in table.layers for row in layer.folds if row.source == "mlp.up" and row.scale]
    assert all(f"layers.{row.layer}.mlp.down of expert {row.expert}" not in table.unseen for row in scaled)
    compressed(decoder("qwen3 moe"), SMALL, table)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("layers.1.mlp.up.weight", r"layers\.1\.mlp\.up\.weight: the weight is not finite"),
        ("embed.weight", r"layers\.0\.attention\.q: its input is not finite"),
        ("layers.1.mlp.down.weight", r"layers\.1: its output is not finite"),
    ],
)
def test_what_is_not_finite_is_named(where: str, message: str) -> None:
    model = decoder("llama")
    with torch.no_grad():
        model.get_parameter(where)[3, 3] = 3e38 if "down" in where else torch.nan
        if "down" in where:  # finite weights, and more than float32 holds behind them
            model.get_parameter(where)[3] = 3e38 * model.get_parameter(where)[3].sign()
        model.embed.weight[:] = model.embed.weight[3] if where.startswith("embed") else model.embed.weight
    with pytest.raises(UserError, match=message):
        awq.search(SMALL, model, samples("llama"))


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_a_table_is_text_of_a_line_a_row_and_comes_back(name: str, tmp_path: Path) -> None:
    model = decoder(name)
    table = awq.search(SMALL, model, samples(name))
    assert table is not None
    save_table(table, tmp_path / "table.json")
    assert load_table(tmp_path / "table.json") == table
    rows = sum(len(layer.folds) + len(layer.matrices) for layer in table.layers)
    lines = text_of(table).splitlines()
    assert sum('"scale"' in line or '"energy"' in line for line in lines) == rows
    assert json.loads(text_of(table))["key"]["config"]["group"] == 32
    one, two = (compressed(model, SMALL, t).state_dict() for t in (table, load_table(tmp_path / "table.json")))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_table_is_refused_for_another_model_and_other_settings() -> None:
    table = awq.search(SMALL, decoder("llama"), samples("llama"))
    with pytest.raises(UserError, match="the table is for a model"):
        awq.apply(SMALL, decoder("llama", seed=1), Mesh(), table)
    with pytest.raises(UserError, match="the table was made with symmetric True, not False"):
        awq.apply(SMALL.model_copy(update={"symmetric": False}), decoder("llama"), Mesh(), table)
    with pytest.raises(UserError, match="no table of scales; search for one, or use method rtn"):
        awq.apply(SMALL, decoder("llama"), Mesh(), None)


def test_a_search_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, own = decoder("qwen2"), samples("qwen2")
    whole = awq.search(SMALL, model, own)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        awq.search(SMALL, model, own, tmp_path / "state", stop)
    assert sorted(p.name for p in (tmp_path / "state").iterdir()) == ["layer-0000.json", "search.json"]
    searched = []
    right = awq_search.search_layer
    monkeypatch.setattr(awq_search, "search_layer", lambda *given: searched.append(given[1]) or right(*given))
    assert awq.search(SMALL, model, own, tmp_path / "state") == whole
    assert searched == [1]
    with pytest.raises(UserError, match="holds a search for another samples"):
        awq.search(SMALL, model, samples("qwen2", (4, 4)), tmp_path / "state")
    with pytest.raises(UserError, match="holds a search for another config"):
        awq.search(SMALL.model_copy(update={"clip": False}), model, own, tmp_path / "state")


def test_kept_matrices_stay() -> None:
    config = awq.Config(group=32, ratios=4, keep=("mlp.down", "layers.1.attention.*"))
    made = compressed(decoder("llama"), config, awq.search(config, decoder("llama"), samples("llama")))
    integers = {name for name, module in made.named_modules() if isinstance(module, Int4Linear)}
    assert integers == {f"layers.0.attention.{m}" for m in "qkvo"} | {
        f"layers.{k}.mlp.{m}" for k in (0, 1) for m in ("gate", "up")
    }


def test_a_group_that_does_not_divide_is_refused_with_those_that_do() -> None:
    work = describe(config_of("llama"), Shapes(rows=1, seq=8))
    with pytest.raises(UserError, match=r"group 64 does not divide 96 inputs of a matrix; these do: 32, -1"):
        awq.check(awq.Config(group=64), work, Mesh())
    with pytest.raises(UserError, match="compressed on one rank, not on 2"):
        awq.check(SMALL, work, Mesh(dp=2))
    awq.check(SMALL, work, Mesh())
    assert SIZES["hidden"] % 64 == 0


def test_clips_written_are_read() -> None:
    index = torch.randint(0, len(clip.RATIOS), (5, 3), generator=torch.Generator().manual_seed(0))
    assert torch.equal(clip.read(clip.written(index)), index)
    assert clip.ratios(index).min() >= 0.5


def test_the_grid_of_a_group_is_the_best_of_those_tried() -> None:
    """Against every ratio tried one by one on the tokens themselves, in float64."""
    scheme, weight, x = IntWeights(4, 32, False, "float32"), drawn(6, 64).pow(3), drawn(200, 64, seed=1)
    gram = Gram(64)
    gram.add(x)
    found = clip.search(weight, gram.mean, scheme)
    for row in range(6):
        for group in (0, 1):
            part, seen = (
                weight[row : row + 1, 32 * group : 32 * group + 32],
                x[:, 32 * group : 32 * group + 32].double(),
            )
            errors = []
            for ratio in clip.RATIOS:
                back = clip.restored(
                    part.view(1, 1, 32), clip.grid(part.amin().view(1, 1, 1), part.amax().view(1, 1, 1), scheme, ratio)
                )
                errors.append(float((seen @ (back.view(32) - part.view(32)).double()).square().sum()))
            assert errors[int(found[row, group])] <= min(errors) * (1 + 1e-4)
    assert len(found.unique()) > 2


@pytest.mark.sabotage
def test_a_grid_without_the_identity_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(worse_than_none()) <= 1
    monkeypatch.setattr(awq_scales, "MARGIN", -1e9)  # whatever is found goes before no scale
    assert max(worse_than_none()) > 1
