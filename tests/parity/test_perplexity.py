"""Sliding-window perplexity equals a float64 reference and what transformers' model says of the same windows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from burnish.config import ModelConfig
from burnish.evaluation import text as evaluation
from burnish.evaluation.text import perplexity, windows
from burnish.load.model import load_folder
from burnish.models.decoder import Decoder

QUICKSTART = Path(__file__).parents[1] / "fixtures" / "quickstart"
SHAPE = ModelConfig(vocab=61, hidden=32, ffn=48, layers=2, heads=4, kv_heads=2, max_positions=64, init_std=0.4)


def context_of(token: int, length: int, stride: int) -> int:
    """Where the context of a token begins: in the first window whose end lies behind it."""
    return 0 if token < length else math.ceil((token + 1 - length) / stride) * stride


@torch.no_grad()
def reference(model: Decoder, ids: list[int], length: int, stride: int) -> float:
    """One token at a time, in float64, without windows or batches."""
    wide = Decoder(SHAPE)
    wide.load_state_dict(model.state_dict())
    wide.double()
    total = 0.0
    for token in range(1, len(ids)):
        context = ids[context_of(token, length, stride) : token]
        scores = wide.logits(wide(torch.tensor([context]))[0, -1])
        total -= float(torch.log_softmax(scores, 0)[ids[token]])
    return total


def text_of(tokens: int, seed: int = 0) -> list[int]:
    return torch.randint(SHAPE.vocab, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def check(tokens: int, length: int, stride: int, batch: int) -> None:
    model = Decoder(SHAPE, torch.Generator().manual_seed(1))
    ids = text_of(tokens)
    score = perplexity(model, ids, length, stride, batch)
    assert score.tokens == tokens - 1
    assert score.nats == pytest.approx(reference(model, ids, length, stride), rel=1e-5)


@pytest.mark.parametrize(
    ("tokens", "length", "stride", "batch"),
    [
        (50, 16, 8, 1),
        (50, 16, 8, 3),
        (50, 16, 15, 4),
        (50, 16, 1, 7),
        (50, 64, 32, 2),
        (33, 16, 5, 2),
        (2, 16, 8, 1),
        (17, 2, 1, 5),
    ],
)
def test_equals_a_float64_reference(tokens: int, length: int, stride: int, batch: int) -> None:
    check(tokens, length, stride, batch)


@torch.no_grad()
def test_equals_transformers_on_the_windows_of_the_guide() -> None:
    """The loop of the Hugging Face guide, each window's loss weighted by the tokens that it scores."""
    theirs = AutoModelForCausalLM.from_pretrained(QUICKSTART, dtype=torch.float32).eval()
    ours, config = load_folder(QUICKSTART, dtype=torch.float32)
    ids = torch.randint(config.vocab, (1, 700), generator=torch.Generator().manual_seed(2))
    length, stride, total, previous_end, scored = 256, 96, 0.0, 0, 0
    for begin in range(0, ids.size(1), stride):
        end = min(begin + length, ids.size(1))
        inputs = ids[:, begin:end]
        targets = inputs.clone()
        targets[:, : -(end - previous_end)] = -100
        count = int((targets[:, 1:] != -100).sum())
        total += float(theirs(inputs, labels=targets).loss) * count
        scored += count
        previous_end = end
        if end == ids.size(1):
            break
    score = perplexity(ours, ids[0].tolist(), length, stride, 3)
    assert score.tokens == scored == 699
    assert score.perplexity == pytest.approx(math.exp(total / scored), rel=1e-4)


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(2, 40), st.data())
def test_every_token_but_the_first_is_scored_once_with_context(tokens: int, length: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, length - 1))
    scored = [token for window in windows(tokens, length, stride) for token in range(window.first, window.end)]
    assert scored == list(range(1, tokens))
    for begin, first, end in windows(tokens, length, stride):
        assert begin < first < end <= begin + length
        assert {context_of(token, length, stride) for token in range(first, end)} == {begin}


@pytest.mark.sabotage
def test_a_window_without_its_context_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = windows
    monkeypatch.setattr(evaluation, "windows", lambda *sizes: (w._replace(begin=w.first - 1) for w in right(*sizes)))
    with pytest.raises(AssertionError):
        check(50, 16, 8, 3)
