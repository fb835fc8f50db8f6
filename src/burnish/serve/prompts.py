"""Continue prompts with any model that can be opened: its weights, its own tokenizer, its own ends of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from burnish.config import ModelConfig
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError
from burnish.load.model import TRAINED_LENGTH, load_model
from burnish.load.source import open_model
from burnish.load.tokenizer import ends_of, tokenizer_of
from burnish.models.decoder import Decoder
from burnish.serve.engine import Engine, Limits, Output, Request
from burnish.serve.generate import check_prompts, complete
from burnish.serve.opening import Settings, make_runner
from burnish.serve.sampling import Sampling, row_generators
from burnish.serve.speculative.gate import LENGTHS
from burnish.serve.speculative.opening import make_draft, small_model

PAGE = 16


class Helped(NamedTuple):
    """How an engine continues prompts: with the draft of that name, in its exact mode; `tell` gets what came of the draft."""

    draft: str | None
    exact: bool = False
    tell: Callable[[str], None] = lambda text: None


def continued(
    source: str | Path,
    prompts: list[str],
    settings: Mapping[str, Any],
    warn: Callable[[str], None] = lambda text: None,
    helped: Helped | None = None,
) -> list[str]:
    """Each prompt with what the model of `source` writes after it; `settings` are those of `Sampling`.

    `warn` is told when more is asked for than the model has seen in training; `helped`: by an engine, with a draft. Raises
    UserError as `open_model`, `load_model` and `complete` do.
    """
    checkpoint = open_model(source)
    decoder, config = load_model(checkpoint, dtype=torch.float32)
    tokenizer = tokenizer_of(checkpoint, config)
    options = Sampling(eos=ends_of(checkpoint, config) or None, **settings)
    encoded = [tokenizer.encode_prompt(prompt) for prompt in prompts]
    longest = max(map(len, encoded), default=0)
    seen = checkpoint.config.get(TRAINED_LENGTH)
    if isinstance(seen, int) and longest + options.max_new_tokens > seen:
        fix = f"--max-new-tokens {seen - longest} stays within it" if longest < seen else "shorten the prompt"
        warn(
            f"{longest} tokens and {options.max_new_tokens} new ones are more than the {seen} that the model was trained "
            f"on at once; what it writes beyond them is likely to make no sense ({fix})"
        )
    if helped is not None:
        texts = _by_engine((decoder, config, tokenizer), encoded, options, helped)
    else:
        texts = [one.text for one in complete(decoder, encoded, options, decode=tokenizer.decode)]
    return [prompt + text for prompt, text in zip(prompts, texts, strict=True)]


def _by_engine(
    target: tuple[Decoder, ModelConfig, Tokenizer], prompts: Sequence[list[int]], options: Sampling, helped: Helped
) -> list[str]:
    """What an engine with room for all of them writes; each draws what it draws without one.

    Raises UserError as `check_prompts` and `small_model` do, and for scores that are not finite.
    """
    model, config, tokenizer = target
    check_prompts(prompts, options, config.vocab, config.max_positions)
    small = None if helped.draft is None else small_model(helped.draft, target)
    settings = Settings(0, runner="torch", exact=helped.exact)
    pages = sum(-(-(len(prompt) + options.max_new_tokens + LENGTHS[-1]) // PAGE) for prompt in prompts)
    limits = Limits(pages, PAGE, rows=len(prompts), queue=len(prompts))
    engine = Engine(make_runner(model, config, settings), limits, tokenizer.decode)
    if helped.draft is not None:
        engine.speculate(
            make_draft(small, config.vocab, (pages, PAGE), lambda part, own: make_runner(part, own, settings))
        )
    found: list[list[Output]] = [[] for _ in prompts]
    for row, draw in enumerate(row_generators(options.seed, len(prompts))):
        own = replace(options, seed=options.seed + row)
        engine.submit(Request(tuple(prompts[row]), own, draw=draw), found[row].append)
    while engine.busy:
        engine.step()
    for row, outputs in enumerate(found):
        if outputs[-1].reason == "error":
            raise UserError(f"row {row}: the model's scores are not finite; its weights may be damaged")
    if engine.speculator is not None:
        helped.tell(engine.speculator.summary())
    return ["".join(output.text for output in outputs) for outputs in found]
