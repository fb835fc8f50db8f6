"""In exact mode the scores of a request have the same last digits in any company, however its prompt was cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_engine import FAMILIES, SIZES, ids_of, make, requests, run

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.models.decoder import Decoder
from burnish.serve.engine import Engine, Limits, Request
from burnish.serve.runners.exact import Exact
from burnish.serve.runners.onnx_runner import OnnxRunner
from burnish.serve.runners.runner import Runner
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.sampling import Sampling

ALONE = Limits(pages=100, page=16, rows=1, tokens=64)
CROWDED = Limits(pages=30, page=5, rows=6, tokens=11)  # pieces of prompts, pages apart, sequences that give way


def blocks_of_four() -> Runner:
    """A model of an odd feed-forward size, its matrices in 4-bit blocks."""
    config = ModelConfig(**SIZES | {"hidden": 64, "ffn": 96, "heads": 4, "head_dim": 16, "init_std": 0.3})
    return OnnxRunner(Decoder(config, torch.Generator().manual_seed(0)).eval(), config, 1, weights="q4")


RUNNERS: dict[str, Callable[[], Runner]] = {
    **{name: (lambda name=name: TorchRunner(*make(name))) for name in FAMILIES if name != "experts"},
    "onnxruntime": lambda: OnnxRunner(*make("llama"), 1),
    "onnxruntime, 4 bits": blocks_of_four,
}


def check_exact(name: str, wrapped: Callable[[Runner], Any] = Exact) -> None:
    """The named check: probabilities of all tokens, to the last bit, alone and in company."""
    runner, asked = wrapped(RUNNERS[name]()), requests(7)
    asked = [Request(one.prompt, Sampling(max_new_tokens=one.options.max_new_tokens), top=2) for one in asked]
    alone = [run(Engine(runner, ALONE), [one])[0] for one in asked]
    engine = Engine(runner, CROWDED)
    together = run(engine, asked, at_once=3)
    assert engine.schedule.preempted > 0
    for own, other in zip(alone, together, strict=True):
        assert ids_of(own) == ids_of(other)
        assert [output.logprobs for output in own] == [output.logprobs for output in other]


@pytest.mark.parametrize("name", RUNNERS)
def test_every_bit_is_the_same_alone_and_in_company(name: str) -> None:
    check_exact(name)


def test_exact_is_near_to_what_is_not() -> None:
    model, config = make("qwen3", torch.float64)
    asked = requests(4)
    plain = run(Engine(TorchRunner(model, config), ALONE), asked)
    assert list(map(ids_of, run(Engine(Exact(TorchRunner(model, config)), ALONE), asked))) == list(map(ids_of, plain))


def test_experts_are_refused() -> None:
    with pytest.raises(UserError, match="--exact: which tokens share"):
        Exact(TorchRunner(*make("experts")))


@pytest.mark.sabotage
def test_sabotage_queries_that_are_attended_to_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exact, "exact", False)
    with pytest.raises(AssertionError):
        check_exact("llama")


@pytest.mark.sabotage
def test_sabotage_products_of_as_many_rows_as_there_are() -> None:
    class Loose(TorchRunner):
        exact = True

    with pytest.raises(AssertionError):
        check_exact("llama", lambda runner: Loose(runner.model, runner.config))
