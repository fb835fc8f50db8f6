"""Opening a draft by what `--draft` says: `ngram`, `skip:N`, or a model with the same tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from burnish.config import ModelConfig
from burnish.data.tokenizer import Tokenizer, tokenizers_library
from burnish.errors import UserError
from burnish.load.model import load_model
from burnish.load.source import open_model
from burnish.load.tokenizer import tokenizer_of
from burnish.models.decoder import Decoder
from burnish.serve.pages import Pages
from burnish.serve.runners.runner import Runner
from burnish.serve.speculative.draft import Draft
from burnish.serve.speculative.model_draft import ModelDraft
from burnish.serve.speculative.ngram import NgramDraft
from burnish.serve.speculative.skipped import skipped

NGRAM, SKIP = "ngram", re.compile(r"skip:(\d+)")
Run = Callable[[Decoder, ModelConfig], Runner]


class Small(NamedTuple):
    """A model that guesses: what it is called, itself, its config, and how many tokens it shares with the target."""

    name: str
    model: Decoder
    config: ModelConfig
    shared: int


def small_model(name: str, target: tuple[Decoder, ModelConfig, Tokenizer]) -> Small | None:
    """The model that a draft's name stands for, with a target and its tokenizer; None for one that needs none.

    Raises UserError for a model whose tokens are others, and as `open_model`, `load_model` and `skipped` do.
    """
    model, config, tokenizer = target
    if name == NGRAM:
        return None
    if found := SKIP.fullmatch(name):
        return Small(name, *skipped(model, config, int(found[1])), config.vocab)
    checkpoint = open_model(name)
    small, shape = load_model(checkpoint, dtype=torch.float32)
    shared = shared_tokens(name, tokenizer, tokenizer_of(checkpoint, shape), (config.vocab, shape.vocab))
    return Small(name, small, shape, shared)


def make_draft(small: Small | None, vocab: int, room: tuple[int, int], runner_of: Run) -> Draft:
    """What guesses for a target of `vocab` scores. `room`: pages and positions of a page, as the target has them."""
    if small is None:
        return NgramDraft()
    return ModelDraft(small.name, runner_of(small.model.eval(), small.config), Pages(*room), small.shared, vocab)


def shared_tokens(name: str, target: Tokenizer, draft: Tokenizer, lengths: tuple[int, int]) -> int:
    """How many tokens both have. `lengths` of their scores may differ: what is beyond the tokens is padding.

    Raises UserError naming the first token that is another one, or that one of them lacks.
    """
    if target.vocab != draft.vocab or min(lengths) < target.vocab:
        raise UserError(
            f"--draft {name}: it has {min(draft.vocab, lengths[1]):,} tokens, the model {target.vocab:,}; "
            f"use a draft with the same tokenizer, ngram or skip:N"
        )
    ours, theirs = spelled(target), spelled(draft)
    for token in range(target.vocab):
        if ours.get(token) != theirs.get(token):
            raise UserError(
                f"--draft {name}: its token {token} is {theirs.get(token)!r}, the model's {ours.get(token)!r}; use a "
                f"draft with the same tokenizer, ngram or skip:N"
            )
    return target.vocab


def spelled(tokenizer: Tokenizer) -> dict[int, str]:
    """Each token as it is spelled."""
    words = tokenizers_library().Tokenizer.from_str(tokenizer.to_json()).get_vocab(with_added_tokens=True)
    return {token: word for word, token in words.items()}
