"""INT8 after training: calibration that padding and order do not reach, folds that change nothing, tables, refusals."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from burnish.compress import ranges as ranges_file
from burnish.compress.fold import apply_fold, widened
from burnish.compress.int8_choice import BETTER, apart, some_rows, states
from burnish.compress.int8_table import Table, load_table, save_table, text_of
from burnish.compress.ranges import channels, edges, inputs_of, ranges
from burnish.compress.samples import Samples
from burnish.compress.smooth import best, error, folds_in, strength_scale
from burnish.describe import Shapes, describe
from burnish.encoders.describe import describe_encoder
from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.ops.int8_linear import Int8Linear
from burnish.techniques import int8
from burnish.techniques.int8 import Config
from int8_models import decoder, encoder, samples

KINDS = {"decoder": decoder, "encoder": encoder}
kinds = pytest.mark.parametrize("kind", KINDS)


def compressed(model: Any, config: Config, given: Samples) -> tuple[Any, Table | None]:
    made = copy.deepcopy(model)
    table = int8.search(config, made, given)
    return int8.apply(config, made, Mesh(), table), table


def padded(given: Samples, pad: int, width: int, left: bool) -> Samples:
    """The same real tokens in wider rows, with another token as padding, on the other side."""
    rows = [ids[mask].tolist() for ids, mask in zip(given.ids, given.mask, strict=True)]
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for k, row in enumerate(rows):
        at = width - len(row) if left else 0
        ids[k, at : at + len(row)] = torch.tensor(row)
        mask[k, at : at + len(row)] = True
    return Samples(ids, mask)


def check_padding(kind: str) -> None:
    model, _ = KINDS[kind]()
    config = Config(calibrator="max", smooth="off")
    plain = int8.search(config, model, samples())
    for left in (False, True):
        other = int8.search(config, model, padded(samples(), 96, 40, left))
        assert plain is not None
        assert other is not None
        assert plain.key == other.key
        for a, b in zip(plain.inputs, other.inputs, strict=True):
            assert a.threshold == pytest.approx(b.threshold, rel=1e-3)
            assert (a.low, a.high) == pytest.approx((b.low, b.high), rel=1e-4)


@kinds
def test_padding_enters_no_statistic(kind: str) -> None:
    check_padding(kind)


@kinds
@pytest.mark.parametrize("calibrator", ["search", "entropy", "relative"])
def test_any_order_of_rows_gives_the_same_scales(kind: str, calibrator: str) -> None:
    model, _ = KINDS[kind]()
    given, order = samples(), torch.tensor([3, 0, 4, 2, 1])
    config = Config(calibrator=calibrator, smooth="off")
    tables = [int8.search(config, model, one) for one in (given, Samples(given.ids[order], given.mask[order]))]
    for a, b in zip(*(table.tried for table in tables if table is not None), strict=True):
        assert (a.kind, a.calibrator, a.error) == (b.kind, b.calibrator, pytest.approx(b.error, rel=1e-2))
    for a, b in zip(*(table.inputs for table in tables if table is not None), strict=True):
        assert a.name == b.name
        if a.calibrator == b.calibrator:  # of two that are as good either may be taken
            assert a.threshold == pytest.approx(b.threshold, rel=0.05)  # products of another batch end differently


def test_the_same_batches_in_another_order_give_the_same_bits() -> None:
    model, _ = decoder()
    given = samples(lengths=(9, 9, 9, 9))
    one, two = (ranges(model, own, rows=1) for own in (given, Samples(given.ids.flip(0), given.mask)))
    for name, seen in one.items():
        assert (seen.low, seen.high) == (two[name].low, two[name].high)
        assert (seen.histogram.counts == two[name].histogram.counts).all()


@kinds
def test_statistics_are_those_of_the_inputs(kind: str) -> None:
    model, _ = KINDS[kind]()
    given, held = samples(), dict[str, Tensor]()
    for name in inputs_of(model):
        model.get_submodule(name).register_forward_pre_hook(lambda _, x, name=name: held.update({name: x[0]}))
    found, seen = channels(model, given, rows=99), ranges(model, given, rows=99)
    assert {name.split(".", 2)[2] for name in found} == {
        "attention.q",
        "attention.o",
        "mlp.down",
        "mlp.gate" if kind == "decoder" else "mlp.up",
    }
    for name, known in found.items():
        real = held[name][given.mask].double()
        assert known.tokens == given.tokens == len(real)
        torch.testing.assert_close(known.largest.double(), real.abs().amax(0))
        torch.testing.assert_close(known.squares, real.square().sum(0))
        assert edges(seen)[name] == pytest.approx((real.min().item(), real.max().item()))


@kinds
def test_folds_change_no_result(kind: str) -> None:
    model, _ = KINDS[kind]()
    given, known = samples(), channels(model, samples())
    wanted = states(model, given)
    for number, layer in enumerate(model.layers):
        for fold in folds_in(model):
            own = known[f"layers.{number}.{fold.matrices[0]}"]
            weight = torch.cat([layer.get_submodule(name).weight.detach() for name in fold.readers])
            apply_fold(layer, fold, strength_scale(weight, own, 0.6, layer, fold))
    assert apart(states(model, given), wanted) < 1e-11


def test_smoothing_never_expects_more_than_none() -> None:
    model, _ = decoder()
    known = channels(model, samples())
    for number, layer in enumerate(model.layers):
        for fold in folds_in(model):
            own = known[f"layers.{number}.{fold.matrices[0]}"]
            strength, scale, least, plain = best(layer, fold, own, int8.STRENGTHS)
            weight = torch.cat([layer.get_submodule(name).weight for name in fold.readers]).detach()
            assert least == pytest.approx(error(weight, own, widened(scale, layer, fold)))
            assert least <= plain
            assert (strength is None) == (least == plain)


def test_the_expected_error_is_what_rounding_gives() -> None:
    """Against products rounded in float64; the formula takes roundings for noise, which they are when there are many."""
    drawn = torch.Generator().manual_seed(0)
    x, weight = torch.randn(4000, 64, generator=drawn), torch.randn(50, 64, generator=drawn)
    known = ranges_file.Channels.of(64)
    known.add(x)
    step, steps = x.abs().max() / 127, weight.abs().amax(1, keepdim=True) / 127
    rounded = (x / step).round() * step @ ((weight / steps).round() * steps).t()
    measured = float((rounded - x @ weight.t()).square().sum(1).mean())
    assert error(weight, known, torch.ones(64)) == pytest.approx(measured, rel=0.05)


def with_outliers() -> tuple[Any, Any]:
    """A decoder whose norms make three channels fifty times as large, taken back in what reads them."""
    model, config = decoder()
    for layer in model.layers:
        for fold in folds_in(model)[::2]:
            scale = torch.ones(48)
            scale[[3, 17, 40]] = 1 / 50
            apply_fold(layer, fold, scale)
    return model, config


def test_outlier_channels_are_smoothed() -> None:
    model, _ = with_outliers()
    given = samples()
    wanted = states(model, given)
    lost = {
        smooth: apart(states(compressed(model, Config(smooth=smooth), given)[0], given), wanted)
        for smooth in ("off", "search")
    }
    assert lost["search"] < lost["off"] / 20


@kinds
@pytest.mark.parametrize("activations", ["static", "dynamic"])
def test_integers_stand_in_the_place_of_every_matrix(kind: str, activations: str) -> None:
    model, _ = KINDS[kind]()
    made, _ = compressed(model, Config(activations=activations, keep=("layers.1.mlp.down", "o")), samples())
    names = {name for names in inputs_of(model).values() for name in names}
    kept = {name for name in names if name == "layers.1.mlp.down" or name.endswith(".o")}
    assert {name for name, module in made.named_modules() if isinstance(module, Int8Linear)} == names - kept
    assert apart(states(made, samples()), states(model, samples())) < 0.02


def test_the_best_calibrator_of_each_kind_is_taken() -> None:
    model, _ = with_outliers()
    table = int8.search(Config(smooth="off"), model, samples())
    assert table is not None
    so_far = table.tried[0].error
    for kind in dict.fromkeys(row.kind for row in table.tried[1:]):
        own = [row for row in table.tried if row.kind == kind]
        chosen = next(row.calibrator for row in table.inputs if row.name.endswith(kind))
        least = min([so_far, *(row.error for row in own if row.calibrator == chosen)])
        assert least <= min(row.error for row in own) / BETTER
        so_far = least
    assert so_far < table.tried[0].error / 2


def test_rows_looked_at_do_not_depend_on_their_order() -> None:
    given = samples(lengths=tuple(range(1, 30)))
    order = torch.randperm(29, generator=torch.Generator().manual_seed(0))
    a, b = some_rows(given, 5), some_rows(Samples(given.ids[order], given.mask[order]), 5)
    assert torch.equal(a.ids, b.ids)
    assert len(some_rows(samples()).ids) == 5


def test_a_table_is_a_line_a_tensor_and_reads_back(tmp_path: Path) -> None:
    model, _ = decoder()
    made, table = compressed(model, Config(), samples())
    assert table is not None
    save_table(table, tmp_path / "t.json")
    again = load_table(tmp_path / "t.json")
    assert again == table
    for row in table.inputs:
        assert sum(f'"name": "{row.name}"' in line for line in text_of(table).splitlines()) == 1
    other = int8.apply(Config(), copy.deepcopy(model), Mesh(), again)
    assert all(torch.equal(a, b) for a, b in zip(made.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_table_of_something_else_is_refused() -> None:
    model, _ = decoder()
    table = int8.search(Config(), model, samples())
    with pytest.raises(UserError, match="made with calibrator search, not max"):
        int8.apply(Config(calibrator="max"), copy.deepcopy(model), Mesh(), table)
    with torch.no_grad():
        model.layers[0].mlp.up.weight[0, 0] += 1
    with pytest.raises(UserError, match="for a model"):
        int8.apply(Config(), model, Mesh(), table)
    with pytest.raises(UserError, match="no table of scales"):
        int8.apply(Config(), model, Mesh())
    with pytest.raises(UserError, match="samples of text"):
        int8.search(Config(), model, None)


def test_without_anything_to_calibrate_no_samples_are_needed() -> None:
    config, (model, _) = Config(activations="dynamic", smooth="off"), decoder()
    assert int8.search(config, model, None) is None
    assert isinstance(int8.apply(config, model, Mesh()).layers[0].mlp.down, Int8Linear)


@pytest.mark.parametrize("where", ["weight", "activation"])
def test_what_is_not_finite_is_named(where: str) -> None:
    model, _ = decoder()
    if where == "weight":
        model.layers[1].mlp.up.weight.data[2, 3] = float("nan")
    else:
        model.layers[1].mlp_norm.weight.data[:] = 3e38
        model.layers[1].mlp.gate.weight.data[:] = 1
    with pytest.raises(UserError, match=r"layers\.1\.mlp"):
        int8.search(Config(), model, samples())


def test_refusals() -> None:
    shapes = Shapes(rows=1, seq=8)
    work = describe(decoder()[1], shapes)
    routed = describe(decoder("qwen3_moe", experts=4, topk=2, tied=False)[1], shapes)
    with pytest.raises(UserError, match="on one rank, not on 2"):
        int8.check(Config(), work, Mesh(tp=2))
    with pytest.raises(UserError, match="experts have no 8-bit products"):
        int8.check(Config(), routed, Mesh())
    with pytest.raises(UserError, match="0 to 1"):
        int8.check(Config(smooth=1.5), work, Mesh())
    int8.check(Config(), describe_encoder(encoder()[1], shapes), Mesh())


@pytest.mark.sabotage
def test_sabotage_padding_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Samples.batches
    monkeypatch.setattr(
        Samples, "batches", lambda self, rows: ((ids, torch.ones_like(mask)) for ids, mask in true(self, rows))
    )
    with pytest.raises(AssertionError):
        check_padding("encoder")
