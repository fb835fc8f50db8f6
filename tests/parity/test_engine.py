"""The engine gives each request what it gets alone, whoever runs beside it, however the pool is cut and whenever it is full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.models.decoder import Decoder
from burnish.serve.engine import Busy, Engine, Limits, Output, Request
from burnish.serve.generate import complete
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.sampling import Sampling

SIZES = {
    "vocab": 97,
    "hidden": 48,
    "ffn": 80,
    "layers": 3,
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 8,
    "max_positions": 256,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "one key head": {"kv_heads": 1, "tied": True},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3", "head_dim": 16},
    "gpt2": {"family": "gpt2", "kv_heads": 6},
    "window": {"family": "mistral", "window": 7},
    "window in later layers": {"family": "qwen2", "window": 5, "window_from": 1},
    "experts": {"family": "mixtral", "experts": 4, "topk": 2},
}


def make(name: str, dtype: torch.dtype = torch.float32, **sizes: int) -> tuple[Decoder, ModelConfig]:
    config = ModelConfig(**SIZES | {"init_std": 0.3} | sizes | FAMILIES[name])
    return Decoder(config, torch.Generator().manual_seed(0)).to(dtype).eval(), config


def requests(count: int, longest: int = 40, seed: int = 0, **options: Any) -> list[Request]:
    draw = np.random.default_rng(seed)
    made = []
    for number in range(count):
        prompt = tuple(int(t) for t in draw.integers(0, SIZES["vocab"], draw.integers(1, longest)))
        made.append(Request(prompt, Sampling(max_new_tokens=int(draw.integers(1, 25)), seed=number, **options)))
    return made


def run(engine: Engine, asked: list[Request], at_once: int = 100) -> list[list[Output]]:
    """All requests, some of them joining while others run."""
    outputs: list[list[Output]] = [[] for _ in asked]
    waiting = list(enumerate(asked))
    while waiting or engine.busy:
        for number, request in waiting[:at_once]:
            engine.submit(request, outputs[number].append)
        del waiting[:at_once]
        engine.step()
    return outputs


def ids_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.ids]


def check_alone(name: str, limits: Limits, asked: list[Request], at_once: int = 100) -> Engine:
    """The named check: every request's tokens are those it gets alone from the plain loop."""
    model, config = make(name, torch.float64)
    engine = Engine(TorchRunner(model, config), limits)
    for request, found in zip(asked, run(engine, asked, at_once), strict=True):
        (alone,) = complete(model, [request.prompt], request.options)
        assert ids_of(found) == alone.ids
        assert found[-1].reason == alone.reason
    assert engine.pages.free == engine.pages.count
    return engine


ROOMY = Limits(pages=400, page=4, rows=16, tokens=24)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_together_equals_alone(name):
    check_alone(name, ROOMY, requests(9), at_once=3)


@pytest.mark.parametrize("page", [1, 3, 16])
def test_a_pool_that_is_too_small_for_all_at_once(page):
    """Sequences give way and are computed again; nothing is lost."""
    limits = Limits(pages=80 // page, page=page, rows=8, tokens=16)
    engine = check_alone("llama", limits, requests(12))
    assert engine.schedule.preempted > 0


def test_prompts_in_pieces_of_one_token():
    check_alone("one key head", Limits(pages=60, page=5, rows=2, tokens=2), requests(4))


def test_a_beginning_is_computed_once():
    first = tuple(range(1, 30))
    asked = [Request((*first, 40 + k, k), Sampling(max_new_tokens=5)) for k in range(4)]
    model, config = make("llama", torch.float64)
    engine = Engine(TorchRunner(model, config), ROOMY)
    alone = run(engine, asked[:1])
    again = run(engine, asked[1:])
    assert alone[0][-1].reused == 0
    assert [outputs[-1].reused for outputs in again] == [28, 28, 28]
    for request, found in zip(asked, alone + again, strict=True):
        assert ids_of(found) == complete(model, [request.prompt], request.options)[0].ids


def test_sampled_tokens_do_not_depend_on_the_company():
    asked = requests(6, temperature=0.9, top_k=20, top_p=0.95, min_p=0.01, presence_penalty=0.5, frequency_penalty=0.2)
    model, config = make("qwen3", torch.float64)
    alone = [ids_of(run(Engine(TorchRunner(model, config), ROOMY), [request])[0]) for request in asked]
    assert [ids_of(found) for found in run(Engine(TorchRunner(model, config), ROOMY), asked)] == alone
    assert len(set(map(tuple, alone))) > 3


def test_logprobs_are_the_models_own():
    model, config = make("llama", torch.float64)
    (outputs,) = run(
        Engine(TorchRunner(model, config), ROOMY),
        [Request((5, 6, 7), Sampling(max_new_tokens=4, temperature=2.0), top=3)],
    )
    tokens = [5, 6, 7, *ids_of(outputs)]
    with torch.no_grad():
        wanted = model.logits(model(torch.tensor([tokens])))[0].double().log_softmax(-1)
    for number, output in enumerate(outputs):
        own, top = output.logprobs[0]
        assert own == pytest.approx(wanted[2 + number, output.ids[0]].item(), abs=1e-9)
        assert top == pytest.approx(dict(zip(*(x.tolist() for x in reversed(wanted[2 + number].topk(3))), strict=True)))


def test_cancelled_and_late_requests_give_their_pages_back():
    model, config = make("llama")
    engine = Engine(TorchRunner(model, config), ROOMY)
    seen: list[Output] = []
    asked = Request(tuple(range(1, 40)), Sampling(max_new_tokens=50))
    number = engine.submit(asked, seen.append)
    engine.submit(Request(asked.prompt, asked.options, deadline=0.0), seen.append)
    waiting = engine.submit(asked, seen.append)
    engine.step()
    engine.cancel(waiting)
    engine.step()
    engine.cancel(number)
    engine.cancel(number)
    assert [output.reason for output in seen if output.reason] == ["deadline", "cancelled", "cancelled"]
    assert not engine.busy
    assert engine.pages.free == engine.pages.count


def test_the_pool_is_as_many_bytes_as_its_shape_says():
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        model, config = make("one key head", dtype)
        engine = Engine(TorchRunner(model, config), Limits(pages=10, page=8))
        assert engine.pool.bytes == 2 * 3 * 80 * 1 * 8 * size


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ((), {}, "prompt: it is empty"),
        ((97,), {}, "outside the vocabulary 0..96"),
        (
            (1,) * 30,
            {"max_new_tokens": 11},
            "exceed the 40 positions that the pool has room for; max_new_tokens must be 10",
        ),
        ((1,) * 50, {"max_new_tokens": 1}, "use under 40 tokens"),
        ((1,), {"stop": ("x",)}, "stop: stop strings need the tokenizer"),
    ],
)
def test_what_can_never_run_is_refused_in_one_line(prompt, options, said):
    model, config = make("llama")
    engine = Engine(TorchRunner(model, config), Limits(pages=10, page=4))
    with pytest.raises(UserError, match=said):
        engine.submit(Request(prompt, Sampling(**options)), print)
    assert not engine.busy


def test_a_full_queue_says_so():
    model, config = make("llama")
    engine = Engine(TorchRunner(model, config), Limits(pages=10, page=4, queue=1))
    engine.submit(Request((1,), Sampling(max_new_tokens=2)), lambda output: None)
    with pytest.raises(Busy, match="1 requests are waiting"):
        engine.submit(Request((1,), Sampling(max_new_tokens=2)), print)


@pytest.mark.sabotage
def test_sabotage_pieces_of_memory_joined_without_their_weights(monkeypatch):
    from burnish.serve import attention

    joined = attention.joined
    monkeypatch.setattr(attention, "joined", lambda q, held, runs, causal: joined(q, held, runs[-1:], causal))
    with pytest.raises(AssertionError):
        check_alone("llama", ROOMY, requests(9))


@pytest.mark.sabotage
def test_sabotage_pages_of_who_gives_way_are_kept(monkeypatch):
    from burnish.serve.schedule import Schedule

    monkeypatch.setattr(Schedule, "_give_back", lambda self, sequence: None)
    with pytest.raises((AssertionError, IndexError)):
        check_alone("llama", ROOMY, requests(9))
