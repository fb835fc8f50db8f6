"""The pool of the engine is what its size says: bytes of keys and values exactly, and a step makes no more than predicted."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.measure_live import LiveBytes
from burnish.models.decoder import Decoder
from burnish.pool_size import Step, opened_bytes, pool_within, position_bytes, step_bytes
from burnish.serve.engine import Engine, Limits, Request
from burnish.serve.fitting import fit_to
from burnish.serve.opening import Settings, make_engine
from burnish.serve.paged import Pool
from burnish.serve.runners.onnx_runner import Buffers, OnnxRunner
from burnish.serve.runners.runner import Made
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.sampling import Sampling
from burnish.serve.speculative.model_draft import ModelDraft
from burnish.serve.speculative.opening import small_model

SIZES = {"vocab": 331, "hidden": 64, "ffn": 160, "layers": 3, "heads": 8, "kv_heads": 2, "max_positions": 256}


def make(dtype: torch.dtype = torch.float32, **sizes: int) -> tuple[Decoder, ModelConfig]:
    config = ModelConfig(**SIZES | sizes)
    return Decoder(config, torch.Generator().manual_seed(0)).to(dtype).eval(), config


@pytest.mark.parametrize(("dtype", "element"), [(torch.float32, 4), (torch.bfloat16, 2)])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_the_bytes_of_the_pool_are_those_predicted(dtype: torch.dtype, element: int, kv_heads: int) -> None:
    model, config = make(dtype, kv_heads=kv_heads)
    size = pool_within(config, 2**20, 7, Step(16, 4, element, element))
    engine = Engine(TorchRunner(model, config), Limits(size.pages, size.page, 4, 16))
    assert engine.pool.bytes == size.pool_bytes == size.positions * position_bytes(config, element)
    assert size.pool_bytes + size.step_bytes <= 2**20


def check_rounded(kv_heads: int = 2) -> None:
    """The named check: in the memory that is left beside a step, positions of 8 bits take a quarter of those of float32."""
    model, config = make(kv_heads=kv_heads)
    engine, size = make_engine(model, config, Settings(2**21, page=7, rows=4, tokens=16, runner="torch", kv="int8"))
    _, plain = make_engine(model, config, Settings(2**21, page=7, rows=4, tokens=16, runner="torch"))
    assert engine.pool.bytes == size.pool_bytes == size.positions * position_bytes(config, 1)
    assert plain.pool_bytes * size.positions == 4 * size.pool_bytes * plain.positions
    assert size.pool_bytes + size.step_bytes <= 2**21


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_the_bytes_of_a_pool_of_8_bits_are_those_predicted(kv_heads: int) -> None:
    check_rounded(kv_heads)


@pytest.mark.sabotage
def test_sabotage_a_pool_that_is_priced_as_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "bytes", property(lambda self: 4 * self.keys.nbytes + 4 * self.values.nbytes))
    with pytest.raises(AssertionError):
        check_rounded()


@pytest.mark.parametrize("kv", ["float", "int8"])
@pytest.mark.parametrize("draft", ["skip:1", "ngram"])
def test_a_draft_s_pages_are_counted_in_the_memory(draft: str, kv: Literal["float", "int8"]) -> None:
    model, config = make()
    settings = Settings(2**22, page=7, rows=4, tokens=32, runner="torch", kv=kv, draft=draft)
    small = small_model(draft, (model, config, None))  # type: ignore[arg-type]
    engine, size = make_engine(model, config, settings, small=small)
    assert engine.speculator is not None
    guessing = engine.speculator.draft
    own = guessing.forward.pool.bytes if isinstance(guessing, ModelDraft) else 0
    assert bool(own) == draft.startswith("skip")
    assert engine.pool.bytes + own == size.pool_bytes
    assert size.pool_bytes + size.step_bytes <= settings.memory


def check_steps(kv: bool = False) -> None:
    """The named check: after the first step nothing stays, and within a step no more stands than is predicted."""
    model, config = make()
    engine = Engine(TorchRunner(model, config, fit_to(model, kv, head=False)), Limits(64, page=16, rows=4, tokens=64))
    for number in range(6):
        engine.submit(Request((number + 1,) * (20 + 7 * number), Sampling(max_new_tokens=12)), lambda output: None)
    engine.step()
    with LiveBytes() as live:
        while engine.busy:
            engine.step()
    assert live.now() == live.start
    step = Step(64, 4, 4, 1 if kv else 4, threads=torch.get_num_threads())
    assert live.peak - live.start <= step_bytes(config, 64, 4, 4) + opened_bytes(config, step)


@pytest.mark.parametrize("kv", [False, True])
def test_no_bytes_stay_after_a_step_and_its_most_are_predicted(kv: bool) -> None:
    check_steps(kv)


def test_a_memory_without_room_for_a_page_is_refused_with_what_would_do() -> None:
    _, config = make()
    with pytest.raises(UserError, match=r"--memory 10\.0.KiB: a step of 64 tokens and one page of 16 positions take"):
        pool_within(config, 10 * 1024, 16, Step(64, 4, 4, 4))


def test_the_pool_is_no_larger_than_all_rows_can_fill() -> None:
    _, config = make()
    assert pool_within(config, 2**40, 16, Step(64, 4, 4, 4)).positions == 4 * config.max_positions


@pytest.mark.sabotage
def test_sabotage_a_step_that_keeps_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    monkeypatch.setattr(Pool, "write", lambda self, layer, slots, k, v: kept.append(k))
    with pytest.raises(AssertionError):
        check_steps()


BESIDE = 24  # tensors of a step that are of no layer: what goes in, scores, and what is chosen from them


def temporaries(steps: int) -> int:
    """Tensors that torch makes in the last of some steps in which every row takes one token, beside graphs' own store."""
    model, config = make()
    engine = Engine(OnnxRunner(model, config, 1), Limits(pages=64, page=16, rows=4, tokens=64))
    for number in range(4):
        engine.submit(Request((number + 1,) * 12, Sampling(max_new_tokens=steps + 2)), lambda output: None)
    for _ in range(steps):
        engine.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        engine.step()
    assert found.profiler is not None
    events = found.profiler.kineto_results.events()
    return sum(event.name() == "[memory]" and event.nbytes() > 0 for event in events)


def check_temporaries() -> None:
    """The named check: a layer makes its output, its scaled queries, and two tensors a row; no more as sequences grow."""
    assert temporaries(2) == temporaries(20) <= SIZES["layers"] * (2 + 2 * 4) + BESIDE


def test_a_step_makes_a_bounded_number_of_tensors() -> None:
    check_temporaries()


@pytest.mark.sabotage
def test_sabotage_buffers_made_anew_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OnnxRunner._opened

    def anew(self: OnnxRunner, number: int, given: dict[str, torch.Tensor], places: torch.Tensor) -> Made:
        made = opened(self, number, given, places.clone())
        self.buffers = Buffers(self.config, self.buffers.tokens)
        return made

    monkeypatch.setattr(OnnxRunner, "_opened", anew)
    with pytest.raises(AssertionError):
        check_temporaries()
