"""Keys and values of 8 bits: every runner attends to exactly what the integers stand for, and that is near what they were."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from test_engine import FAMILIES, ids_of, make, requests, run
from test_engine_onnx import DENSE, LIMITS, all_scores

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.models.decoder import Decoder
from burnish.serve.engine import Engine
from burnish.serve.fitting import fit_to
from burnish.serve.opening import Settings, make_engine, make_runner
from burnish.serve.paged import Pool
from burnish.serve.rounding import rounded
from burnish.serve.runners import onnx_whole
from burnish.serve.runners.exact import Exact
from burnish.serve.runners.onnx_runner import OnnxRunner
from burnish.serve.runners.runner import Runner
from burnish.serve.runners.torch_runner import TorchRunner

IDS = [(7 * k) % 97 for k in range(61)]
RUNNERS: dict[str, Any] = {
    "torch": TorchRunner,
    "onnxruntime": lambda *given: OnnxRunner(given[0], given[1], 1, fit=given[2]),
}


def fitted(name: str, runner: str, **sizes: Any) -> tuple[Runner, Decoder, ModelConfig]:
    model, config = make(name, **sizes)
    return RUNNERS[runner](model, config, fit_to(model, kv=True, head=False)), model, config


def restored(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Scores over a pool of the runner's own type that holds what the integers stand for."""
    write, scales = Pool.write, runner.scales
    assert scales is not None

    def rounding(self: Pool, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        own = (rounded(x, scale[layer]) * scale[layer] for x, scale in zip((k, v), scales, strict=True))
        write(self, layer, slots, *own)

    with monkeypatch.context() as patched:
        patched.setattr(Pool, "write", rounding)
        patched.setattr(runner, "scales", None)
        patched.setattr(runner, "whole", None, raising=False)
        return all_scores(runner, IDS)


def check_integers(monkeypatch: pytest.MonkeyPatch, name: str = "qwen3", runner: str = "torch", size: int = 16) -> None:
    """The named check: scores over integers are those over what they stand for."""
    own, *_ = fitted(name, runner, head_dim=size, hidden=6 * size)
    found, wanted = all_scores(own, IDS), restored(own, monkeypatch)
    assert (found - wanted).norm() < 1e-3 * wanted.norm()


@pytest.mark.parametrize("name", FAMILIES)
def test_torch_attends_to_what_the_integers_stand_for(name, monkeypatch):
    check_integers(monkeypatch, name)


@pytest.mark.parametrize("size", [8, 16])  # the latter has a graph of all layers
@pytest.mark.parametrize("name", DENSE)
def test_onnxruntime_attends_to_what_the_integers_stand_for(name, size, monkeypatch):
    check_integers(monkeypatch, name, "onnxruntime", size)


@pytest.mark.sabotage
def test_sabotage_integers_cut_off_in_place_of_rounded(monkeypatch):
    monkeypatch.setattr("burnish.serve.paged.rounded", lambda x, scale: (x / scale).to(torch.int8))
    with pytest.raises(AssertionError):
        check_integers(monkeypatch)


@pytest.mark.sabotage
def test_sabotage_a_graph_with_the_scales_of_another_layer(monkeypatch):
    whole_graph = onnx_whole.whole_graph
    wrong = lambda parts, scales: whole_graph(parts, scales and type(scales)(*(x.roll(1, 0) for x in scales)))  # noqa: E731
    monkeypatch.setattr("burnish.serve.runners.onnx_runner.whole_graph", wrong)
    with pytest.raises(AssertionError):
        check_integers(monkeypatch, runner="onnxruntime")


def test_the_graph_of_all_layers_and_those_of_one_write_the_same_integers():
    own, *_ = fitted("qwen3", "onnxruntime")
    held = []
    for whole in (own.whole, None):
        own.whole = whole  # type: ignore[misc]
        engine = Engine(own, LIMITS)
        outputs = run(engine, requests(1), 1)
        held.append((engine.pool.keys.int(), engine.pool.values.int(), ids_of(outputs[0])))
    for one, other in zip(held[0][:2], held[1][:2], strict=True):
        assert one.any()
        assert (one - other).abs().max() <= 1  # where a half is rounded
        assert (one != other).float().mean() < 1e-3
    assert held[0][2] == held[1][2]


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_stay_near_those_of_float(name):
    own, model, config = fitted(name, "torch", init_std=0.1)
    found, plain = all_scores(own, IDS), all_scores(TorchRunner(model, config), IDS)
    assert 0 < (found - plain).norm() < 0.03 * plain.norm()


@pytest.mark.parametrize("name", ["llama", "window"])
def test_long_texts_are_opened_by_parts(name, monkeypatch):
    own, *_ = fitted(name, "torch")
    whole = all_scores(own, IDS)
    monkeypatch.setattr("burnish.serve.attention.OPENED", 5)
    torch.testing.assert_close(all_scores(own, IDS), whole, atol=1e-4, rtol=1e-4)


def test_exact_to_the_last_digit_in_any_company():
    model, config = make("llama")
    runner = Exact(TorchRunner(model, config, fit_to(model, kv=True, head=False)))
    asked = [request.__class__(**vars(request) | {"top": 2}) for request in requests(6, temperature=0.8)]
    one, many = (run(Engine(runner, LIMITS), asked, at_once) for at_once in (1, 100))
    for alone, beside in zip(one, many, strict=True):
        assert [o.logprobs for o in alone if o.logprobs] == [o.logprobs for o in beside if o.logprobs]


def test_prompts_go_layer_by_layer_where_the_operator_is_slow():
    own, *_ = fitted("qwen3", "onnxruntime")
    assert own.whole is not None
    assert own.whole.pays(10_000_000, 1)
    assert own.whole.pays(0, 100)
    assert not own.whole.pays(0, 1000)
    model, config = make("qwen3")
    plain = OnnxRunner(model, config, 1)
    assert plain.whole is not None
    assert plain.whole.pays(0, 1000)


def test_a_draft_s_keys_are_of_8_bits_too():
    model, config = make("llama")
    from burnish.serve.speculative.opening import small_model

    small = small_model("skip:1", (model, config, None))  # type: ignore[arg-type]
    plain = Settings(2**24, rows=3, runner="torch", kv="int8", exact=True)
    asked = requests(5)
    found = []
    for settings, own in ((plain, None), (Settings(**vars(plain) | {"draft": "skip:1"}), small)):
        engine, _ = make_engine(model, config, settings, small=own)
        if engine.speculator is not None:
            engine.speculator.fixed = 2
            assert engine.speculator.draft.forward.pool.keys.dtype == torch.int8  # type: ignore[attr-defined]
        found.append([[t for o in outputs for t in o.ids] for outputs in run(engine, asked)])
    assert found[0] == found[1]


@pytest.mark.parametrize("given", [None, [[k % 97 for k in range(30)], [5], [9] * 300]])
def test_a_head_of_4_bits_is_fitted_to_texts(given):
    model, config = make("llama", hidden=64)
    made = make_runner(model, config, Settings(2**24, head="int4"), given)
    assert made.scales is None
    found, plain = all_scores(made, IDS), all_scores(TorchRunner(model, config), IDS)
    assert 0.001 < (found - plain).norm() / plain.norm() < 0.12


def test_a_tied_table_of_words_stays_as_it_is_beside_a_head_of_4_bits():
    model, config = make("one key head", hidden=64)
    made = make_runner(model, config, Settings(2**24, head="int4", runner="onnxruntime"))
    wanted = model.embed.weight.detach()[torch.tensor([3, 50])]
    torch.testing.assert_close(made.begin(torch.tensor([3, 50]), torch.tensor([0, 1])).hidden, wanted)


def test_what_no_runner_has_is_refused():
    model, config = make("llama")
    with pytest.raises(UserError, match="--head int4: 48 is no multiple of 32; int8 or float32 works"):
        make_runner(model, config, Settings(2**24, head="int4"))
    model, config = make("experts", hidden=64)
    with pytest.raises(UserError, match="--head int4: only the runner onnxruntime has such blocks"):
        make_runner(model, config, Settings(2**24, head="int4"))


@pytest.mark.parametrize("kv", [True, False])
def test_a_damaged_model_is_refused_when_it_is_fitted(kv):
    model, config = make("llama", hidden=64)
    model.norm.weight.data[3] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        partial(TorchRunner, model, config, fit_to(model, kv=kv, head=True))()
