"""A model made ready to be served: its engine, its words, its template, and how a request of theirs becomes one of ours."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.data.chat_tokens import ChatTokenizer
from burnish.data.tokenizer import Tokenizer
from burnish.data.turns import lay_out
from burnish.errors import UserError
from burnish.serve.engine import Request
from burnish.serve.sampling import Sampling

DEFAULT_TOKENS = 16  # new tokens of a completion that names no number, as OpenAI's API has it


@dataclass(frozen=True)
class Served:
    """`name` is what clients call the model, `ends` the tokens that end its texts, `room` its most positions."""

    name: str
    tokenizer: Tokenizer
    chat: ChatTokenizer | None
    ends: tuple[int, ...]
    vocab: int
    room: int
    created: int = field(default_factory=lambda: int(time.time()))

    def prompt_of(self, given: str | Sequence[int]) -> tuple[int, ...]:
        """Token ids of a prompt, which may be ids already. Raises UserError naming one that is none."""
        if isinstance(given, str):
            return tuple(self.tokenizer.encode_prompt(given))
        for token in given:
            if not 0 <= token < self.vocab:
                raise UserError(f"prompt: token {token} is outside the vocabulary 0..{self.vocab - 1}")
        return tuple(given)

    def chat_of(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Token ids of a conversation that waits for the assistant. What looks like a special token in a message stays text.

        Raises UserError for a model without a template and for what its template does not take.
        """
        if self.chat is None:
            raise UserError(f"messages: {self.name} came without a chat template; use /v1/completions")
        layout = lay_out(self.chat.template, messages, self.chat.specials)
        text = self.chat.template.render(messages, add_generation_prompt=True)
        if not text.startswith(layout.text):
            raise UserError("messages: the chat template writes them differently when it asks for an answer")
        ids, _ = self.chat.encode(replace(layout, text=text, spoken=[]))
        return tuple(ids.tolist())

    def request(
        self, prompt: tuple[int, ...], asked: Any, most: int | None, number: int, deadline: float | None
    ) -> Request:
        """Our request for the `number`-th answer to one of theirs; without `most` it may fill all positions."""
        left = self.room - len(prompt)
        if left < 1:
            raise UserError(f"prompt: {len(prompt)} tokens are not under the {self.room} positions there is room for")
        seed = asked.seed if asked.seed is not None else time.time_ns() % 2**32
        options = Sampling(
            max_new_tokens=left if most is None else most,
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            min_p=asked.min_p,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            seed=seed + number,
            stop=asked.stops,
            eos=None if asked.ignore_eos else self.ends or None,
        )
        return Request(prompt, options, deadline, asked.top)
