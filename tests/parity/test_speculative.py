"""What is written with a draft is what is written without: token for token where nothing is drawn, in law where something is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_engine import ROOMY, ids_of, make, requests, run

from burnish.config import ModelConfig
from burnish.models.decoder import Decoder
from burnish.serve.engine import Engine, Limits, Output, Request
from burnish.serve.pages import Pages
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.sampling import Sampling, probabilities
from burnish.serve.speculative.draft import Draft
from burnish.serve.speculative.model_draft import ModelDraft
from burnish.serve.speculative.ngram import NgramDraft
from burnish.serve.speculative.skipped import skipped

KINDS = ("ngram", "smaller model", "layers left out", "the target itself")
LENGTHS = (1, 3, 7)


def draft_of(kind: str, model: Decoder, config: ModelConfig, pages: int = 400, page: int = 4) -> Draft:
    """A draft of each kind; the smaller model has random weights and its words are padded to another number."""
    if kind == "ngram":
        return NgramDraft()
    if kind == "smaller model":
        sizes = {"layers": 1, "hidden": 24, "ffn": 32, "heads": 3, "kv_heads": 1, "vocab": config.vocab + 7}
        config = config.model_copy(update=sizes)
        model = Decoder(config, torch.Generator().manual_seed(1)).to(torch.float64).eval()
    elif kind == "layers left out":
        model, config = skipped(model, config, 1)
    return ModelDraft(kind, TorchRunner(model, config), Pages(pages, page), 97, 97)


def check_exact(
    kind: str, length: int | None, asked: list[Request], limits: Limits = ROOMY, name: str = "llama"
) -> Any:
    """The named check: each request has the tokens and the reason of the engine without a draft; nothing is left behind."""
    model, config = make(name, torch.float64)
    wanted = run(Engine(TorchRunner(model, config), limits), asked)
    engine, draft = Engine(TorchRunner(model, config), limits), draft_of(kind, model, config)
    speculator = engine.speculate(draft, length)
    found = run(engine, asked)
    assert [ids_of(one) for one in found] == [ids_of(one) for one in wanted]
    assert [one[-1].reason for one in found] == [one[-1].reason for one in wanted]
    assert engine.pages.free == engine.pages.count
    if isinstance(draft, ModelDraft):
        assert draft.pages.free == draft.pages.count
    return speculator


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_token_for_token_the_same(kind, rows):
    limits = Limits(pages=200, page=5, rows=rows, tokens=40)
    for length in LENGTHS:
        assert check_exact(kind, length, requests(8, seed=length), limits).counts.drafted > 0


@pytest.mark.parametrize("name", ["one key head", "window", "gpt2", "experts"])
def test_families(name):
    check_exact("layers left out", 3, requests(5), name=name)


def check_follows() -> None:
    """The named check: all that the target guesses of itself stands, as the draft's cache follows the sequence."""
    counts = check_exact("the target itself", 4, requests(9)).counts
    assert counts.stood == counts.drafted > 50


def test_the_drafts_cache_follows_the_sequence():
    check_follows()


def test_a_pool_that_is_full():
    limits = Limits(pages=20, page=4, rows=8, tokens=16)
    for kind in ("ngram", "the target itself"):
        check_exact(kind, 5, requests(12), limits)


def test_a_draft_whose_pool_is_full_guesses_nothing():
    model, config = make("llama", torch.float64)
    engine = Engine(TorchRunner(model, config), ROOMY)
    speculator = engine.speculate(draft_of("the target itself", model, config, pages=3), 3)
    asked = requests(6)
    wanted = run(Engine(TorchRunner(model, config), ROOMY), asked)
    assert [ids_of(one) for one in run(engine, asked)] == [ids_of(one) for one in wanted]
    assert speculator.counts.plain > 0


def test_an_end_inside_a_round_ends_there():
    """EOS, a stop string and the last token asked for (FLT-108)."""
    model, config = make("llama", torch.float64)
    texts = lambda ids: "".join(chr(97 + token % 26) for token in ids)  # noqa: E731
    (free,) = run(Engine(TorchRunner(model, config), ROOMY), [Request((5, 6), Sampling(max_new_tokens=24))])
    written = ids_of(free)
    stop = texts(written)[9:12]
    for options in (
        Sampling(max_new_tokens=24, eos=written[10]),
        Sampling(max_new_tokens=24, stop=(stop,)),
        Sampling(max_new_tokens=11),
    ):
        found: list[list[Output]] = []
        for length in (None, 7):
            engine = Engine(TorchRunner(model, config), ROOMY, texts)
            if length:
                engine.speculate(draft_of("the target itself", model, config), length)
            found += run(engine, [Request((5, 6), options, top=2)])
        plain, drafted = found
        assert ids_of(plain) == ids_of(drafted)
        assert "".join(one.text for one in plain) == "".join(one.text for one in drafted)
        assert plain[-1].reason == drafted[-1].reason
        for one, other in zip(plain, drafted, strict=True):
            assert [own for own, _ in one.logprobs] == pytest.approx([own for own, _ in other.logprobs], abs=1e-9)


def test_penalties_follow_what_is_written():
    asked = requests(6, presence_penalty=1.5, frequency_penalty=0.7)
    counts = check_exact("the target itself", 5, asked).counts
    assert counts.stood == counts.drafted > 30


def test_drawn_tokens_keep_their_seed_where_the_draft_draws_nothing():
    asked = requests(6, temperature=0.8, top_k=12, top_p=0.9)
    check_exact("ngram", 3, asked)


def test_what_is_drawn_with_a_draft_is_drawn_again():
    model, config = make("llama", torch.float64)
    asked = requests(5, temperature=0.9, top_p=0.9)

    def written() -> list[list[int]]:
        engine = Engine(TorchRunner(model, config), ROOMY)
        engine.speculate(draft_of("layers left out", model, config), 3)
        return [ids_of(one) for one in run(engine, asked)]

    assert written() == written()


def variation(options: Sampling, draws: int) -> tuple[float, float]:
    """Total variation between the pairs of tokens drawn with a draft and the target's own probabilities of them, and what
    that many draws of the target itself come to."""
    sizes: dict[str, Any] = {
        "vocab": 11,
        "hidden": 16,
        "ffn": 16,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
    }
    config = ModelConfig(**sizes, max_positions=16, init_std=0.7)
    model = Decoder(config, torch.Generator().manual_seed(0)).to(torch.float64).eval()
    other = Decoder(config, torch.Generator().manual_seed(3)).to(torch.float64).eval()
    engine = Engine(TorchRunner(model, config), Limits(pages=200, page=4, rows=64, tokens=400, queue=draws))
    draft = ModelDraft("other", TorchRunner(other, config), Pages(200, 4), 11, 11)
    engine.speculate(draft, 2)
    prompt = (3, 1)
    asked = [Request(prompt, replace(options, seed=k)) for k in range(draws)]
    found = np.zeros((11, 11))
    for one in run(engine, asked, at_once=draws):
        found[tuple(ids_of(one)[1:3])] += 1 / draws
    wanted = np.zeros((11, 11, 11))
    with torch.no_grad():
        score = lambda ids: probabilities(model.logits(model(torch.tensor([ids])))[0, -1], options).numpy()  # noqa: E731
        for a in range(11):
            for b in range(11):
                wanted[a, b] = score([*prompt])[a] * score([*prompt, a])[b] * score([*prompt, a, b])
    pairs = wanted.sum(0)
    own = np.random.default_rng(0).multinomial(draws, pairs.ravel()) / draws
    return float(abs(found - pairs).sum() / 2), float(abs(own - pairs.ravel()).sum() / 2)


DRAWN = (
    Sampling(max_new_tokens=3, temperature=0.6),
    Sampling(max_new_tokens=3, temperature=1.0, top_k=5),
    Sampling(max_new_tokens=3, temperature=1.4, top_p=0.8),
)


def check_law(options: Sampling, draws: int = 800) -> None:
    """The named check: drawn with a draft, tokens are distributed as the target's own."""
    found, noise = variation(options, draws)
    assert found < 1.5 * noise + 0.01


@pytest.mark.parametrize("options", DRAWN)
def test_drawn_tokens_have_the_targets_distribution(options):
    """Also FLT-103 to FLT-105: q is what was drawn by, in float64; a draft of one token is taken as one (FLT-106)."""
    check_law(options)


@pytest.mark.sabotage
@pytest.mark.parametrize("options", DRAWN)
def test_sabotage_another_q_is_told_than_was_drawn_by(options, monkeypatch):
    """The least likely token is guessed, as if it had been drawn: nearly all of them stand."""
    from burnish.serve.speculative import model_draft

    least = lambda drawn_V, uniform: int(drawn_V.masked_fill(drawn_V == 0, 2).argmin())  # noqa: E731
    monkeypatch.setattr(model_draft, "drawn_by", least)
    with pytest.raises(AssertionError):
        check_law(options)


@pytest.mark.sabotage
def test_sabotage_a_guess_stands_though_the_target_would_not_write_it(monkeypatch):
    from burnish.serve.speculative import judge

    monkeypatch.setattr(judge, "matched", lambda guesses, target: [*guesses, target(len(guesses))])
    with pytest.raises(AssertionError):
        check_exact("smaller model", 3, requests(8))


@pytest.mark.sabotage
def test_sabotage_the_drafts_cache_is_one_short_and_nobody_sees_it(monkeypatch):
    ready = ModelDraft._ready

    def last_alone(self: ModelDraft, one: Any, count: int) -> Any:
        own = ready(self, one, count)
        if own is not None:
            own.sequence.computed = len(own.sequence.tokens) - 1
        return own

    monkeypatch.setattr(ModelDraft, "_ready", last_alone)
    with pytest.raises(AssertionError):
        check_follows()
