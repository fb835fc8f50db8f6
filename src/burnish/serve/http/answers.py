"""Answers in the shapes of OpenAI's API: whole completions, pieces of a stream, errors."""

from __future__ import annotations

import itertools
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.serve.engine import Output
from burnish.serve.served import Served

REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass
class Answer:
    """One choice of a completion as it grows."""

    index: int
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, dict[int, float]]] = field(default_factory=list)
    reason: str = ""
    reused: int = 0

    def take(self, output: Output) -> None:
        """Add what became certain."""
        self.text += output.text
        self.ids += output.ids
        self.logprobs += output.logprobs
        self.reason = output.reason
        self.reused = output.reused


class Writer:
    """Writes the objects of one request: `chat` or plain completions."""

    def __init__(self, served: Served, chat: bool) -> None:
        self.served, self.chat = served, chat
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def whole(self, answers: Sequence[Answer], usage: dict[str, Any]) -> dict[str, Any]:
        """A completion that is over."""
        kind = "chat.completion" if self.chat else "text_completion"
        return self._head(kind) | {"choices": [self._choice(answer) for answer in answers], "usage": usage}

    def piece(self, index: int, output: Output | None) -> dict[str, Any]:
        """What a stream tells of an output; None: that a chat's answer begins."""
        text, reason = ("", "") if output is None else (output.text, output.reason)
        choice: dict[str, Any] = {"index": index, "finish_reason": REASONS.get(reason)}
        logprobs = self._logprobs(output.ids, output.logprobs) if output is not None and output.logprobs else None
        if self.chat:
            delta = {"role": "assistant", "content": ""} if output is None else {"content": text} if text else {}
            choice |= {"delta": delta, "logprobs": logprobs}
        else:
            choice |= {"text": text, "logprobs": logprobs}
        return self._head("chat.completion.chunk" if self.chat else "text_completion") | {"choices": [choice]}

    def closing(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The end of a stream that was asked for its usage."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._head(kind) | {"choices": [], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}

    def _choice(self, answer: Answer) -> dict[str, Any]:
        logprobs = self._logprobs(answer.ids, answer.logprobs) if answer.logprobs else None
        choice: dict[str, Any] = {"index": answer.index, "finish_reason": REASONS[answer.reason], "logprobs": logprobs}
        if self.chat:
            return choice | {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
        return choice | {"text": answer.text}

    def _logprobs(
        self, ids: Sequence[int], found: Sequence[tuple[float, dict[int, float]]], before: int = 0
    ) -> dict[str, Any]:
        """As the API has it; `before` characters were told earlier."""
        names = [self._name(token) for token in ids]
        if not self.chat:
            ends = list(itertools.accumulate(map(len, names), initial=before))
            return {
                "tokens": names,
                "token_logprobs": [own for own, _ in found],
                "top_logprobs": [{self._name(token): value for token, value in top.items()} for _, top in found],
                "text_offset": ends[:-1],
            }
        content = []
        for name, (own, top) in zip(names, found, strict=True):
            likeliest = [self._token(self._name(token), value) for token, value in top.items()]
            content.append(self._token(name, own) | {"top_logprobs": likeliest})
        return {"content": content, "refusal": None}

    def _name(self, token: int) -> str:
        """A token as text; by its number where it is only a part of a character."""
        text = self.served.tokenizer.decode([token])
        return f"token_id:{token}" if not text or "\ufffd" in text else text

    @staticmethod
    def _token(name: str, value: float) -> dict[str, Any]:
        return {
            "token": name,
            "logprob": max(value, -1e4) if math.isfinite(value) else -1e4,
            "bytes": list(name.encode()),
        }


def usage_of(prompt: int, answers: Sequence[Answer]) -> dict[str, Any]:
    """How many tokens were read and written; of the prompt, how many were found in the pool."""
    written = sum(len(answer.ids) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(answer.reused for answer in answers[:1])},
    }


def error(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """What is wrong, in one line."""
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}
