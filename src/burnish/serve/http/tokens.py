"""Tokens of a text or a conversation, and back: what clients ask to count before they send."""

from __future__ import annotations

from typing import Any

from burnish.serve.http.reading import Refused
from burnish.serve.http.schema import DetokenizeAsked, TokenizeAsked
from burnish.serve.served import Served


def tokenized(served: Served, asked: TokenizeAsked) -> dict[str, Any]:
    """Ids as a completion or an answer would read them, their number, and how many positions there are."""
    if asked.messages is None:
        ids = served.prompt_of(asked.prompt or "")
    else:
        ids = served.chat_of([{"role": one.role, "content": one.text} for one in asked.messages])
    words = [served.tokenizer.decode([token]) for token in ids] if asked.return_token_strs else None
    return {"count": len(ids), "max_model_len": served.room, "tokens": list(ids), "token_strs": words}


def detokenized(served: Served, asked: DetokenizeAsked) -> dict[str, Any]:
    """The text of ids. Raises Refused for one that there is not."""
    for token in asked.tokens:
        if token >= served.vocab:
            raise Refused(400, f"tokens: {token} is outside the vocabulary 0..{served.vocab - 1}", "tokens")
    return {"prompt": served.tokenizer.decode(asked.tokens)}
