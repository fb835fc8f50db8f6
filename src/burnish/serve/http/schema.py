"""What a client may ask: the fields of the completions and chat completions of OpenAI's API that are honoured here.

A field that is known there and not honoured here is refused by name unless it asks for nothing; fields for bookkeeping are
taken and left alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Token = Annotated[int, Field(ge=0)]
Stop = Annotated[
    str, Field(min_length=1, max_length=1000)
]  # looked for after every token, so bounded in length and number
Penalty = Annotated[float, Field(ge=-2, le=2)]
# Fields that change nothing with these values; any other is refused.
NOTHING: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
}


class _Asked(BaseModel):
    """What both kinds of requests have in common."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, lt=1)
    n: int = Field(default=1, ge=1, le=16)
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=64)] | None = None
    ignore_eos: bool = False
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = dict(value)
        for name, nothing in NOTHING.items():
            if name in value and value.pop(name) not in nothing:
                raise ValueError(f"{name} is not honoured by this server; leave it out")
        for name, field in cls.model_fields.items():  # null is as good as absent, as clients send it
            if value.get(name, ...) is None and not field.is_required():
                del value[name]
        return value

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))


class CompletionAsked(_Asked):
    """POST /v1/completions. `prompt`: text, token ids, or several of either."""

    prompt: str | list[Token] | list[str | list[Token]]
    logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more prompts."""
        given = self.prompt
        if isinstance(given, str) or not given or isinstance(given[0], int):
            return [given]  # type: ignore[list-item]
        return list(given)  # type: ignore[arg-type]

    @property
    def top(self) -> int | None:
        """How many likeliest tokens to tell with each."""
        return self.logprobs


class Part(BaseModel):
    """A piece of a message's content."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part]
    name: str | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatAsked(_Asked):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _both(self) -> ChatAsked:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs true")
        return self

    @property
    def top(self) -> int | None:
        """How many likeliest tokens to tell with each."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeAsked(BaseModel):
    """POST /tokenize: a text, or a conversation as it is read before an answer."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one(self) -> TokenizeAsked:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeAsked(BaseModel):
    """POST /detokenize: token ids."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    tokens: list[Token]
