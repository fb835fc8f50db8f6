"""Continue prompts with any model that can be opened: its weights, its own tokenizer, its own ends of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from burnish.load.model import TRAINED_LENGTH, load_model
from burnish.load.source import open_model
from burnish.load.tokenizer import ends_of, tokenizer_of
from burnish.serve.generate import complete
from burnish.serve.sampling import Sampling


def continued(
    source: str | Path,
    prompts: list[str],
    settings: Mapping[str, Any],
    warn: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Each prompt with what the model of `source` writes after it; `settings` are those of `Sampling`.

    `warn` is told when more is asked for than the model has seen in training. Raises UserError as `open_model`,
    `load_model` and `complete` do.
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
    done = complete(decoder, encoded, options, decode=tokenizer.decode)
    return [prompt + one.text for prompt, one in zip(prompts, done, strict=True)]
