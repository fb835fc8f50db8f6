"""A draft by its name; one whose tokens are others is refused by the first that is, padding is none (FLT-101)."""

from __future__ import annotations

import pytest
import torch

from burnish.config import ModelConfig
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError
from burnish.export.safetensors import save_folder
from burnish.load.checkpoint import TokenizerFiles
from burnish.models.decoder import Decoder
from burnish.serve.engine import Request
from burnish.serve.opening import Settings, open_served
from burnish.serve.sampling import Sampling
from served_model import TEXTS, chat_model


def draft_model(folder, vocab: int, texts: list[str], layers: int = 1):
    tokenizer = Tokenizer.train(texts, vocab)
    config = ModelConfig(
        vocab=tokenizer.vocab + 5, hidden=24, ffn=32, layers=layers, heads=3, kv_heads=1, max_positions=512
    )
    save_folder(
        Decoder(config, torch.Generator().manual_seed(0)),
        config,
        folder,
        tokenizer=TokenizerFiles(tokenizer.to_json(), {}, None),
    )
    return folder


def written(model, draft: str | None) -> list[int]:
    engine, served, _ = open_served(model, Settings(2**24, rows=2, runner="torch", draft=draft))
    if engine.speculator is not None:
        engine.speculator.fixed = 3
    found: list[int] = []
    prompt = served.prompt_of("The quick brown fox jumps over the lazy dog, and")
    engine.submit(Request(prompt, Sampling(max_new_tokens=12)), lambda output: found.extend(output.ids))
    while engine.busy:
        engine.step()
    assert engine.speculator is None or engine.speculator.counts.drafted + engine.speculator.counts.plain
    return found


def test_every_kind_opens_and_changes_nothing(tmp_path):
    model = chat_model(tmp_path / "model")
    padded = draft_model(tmp_path / "padded", 300, TEXTS)
    wanted = written(model, None)
    for draft in ("ngram", str(padded), str(model)):
        assert written(model, draft) == wanted


def test_flt_101_a_draft_with_more_scores_than_tokens_is_taken(tmp_path):
    """Of 305 scores 300 are tokens, the same as the model's: the rest is padding and guesses nothing."""
    model = chat_model(tmp_path / "model")
    engine, served, _ = open_served(model, Settings(2**24, rows=2, runner="torch", draft=str(padded_model(tmp_path))))
    draft = engine.speculator.draft
    assert (draft.shared, draft.vocab, draft.runner.config.vocab) == (served.vocab, 300, 305)


def padded_model(folder):
    return draft_model(folder / "padded", 300, TEXTS)


def test_other_tokens_are_refused_by_name(tmp_path):
    model = chat_model(tmp_path / "model")
    fewer = draft_model(tmp_path / "fewer", 280, TEXTS)
    other = draft_model(
        tmp_path / "other", 300, ["Quite another text with quite other words in it, again and again."] * 4
    )
    with pytest.raises(UserError, match=r"--draft .*fewer: it has 280 tokens, the model 300"):
        written(model, str(fewer))
    with pytest.raises(UserError, match=r"--draft .*other: (its token \d+ is '.*', the model's|it has)"):
        written(model, str(other))
    with pytest.raises(UserError, match="skip:5: the model has 2 layers; layers that can be left out: none"):
        written(model, "skip:5")
