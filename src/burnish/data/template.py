"""Template: how a model wants a conversation written, in the words of the jinja2 template that came with it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from burnish.data.rendering import Renderer
from burnish.errors import MissingExtra, UserError

Messages = Sequence[Mapping[str, Any]]
Spans = list[tuple[int, int]]  # [start, end) in characters of a text

# Templates that write the date of today would make other training data every day. This is the day that those of Llama 3
# fall back to.
TRAINING_DAY = datetime(2024, 7, 26)
_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Template:
    """`variables` are the names beside the messages that `source` sees: `bos_token`, `eos_token`, ...

    `where` names it in messages, `day` is what it takes for today.
    """

    source: str
    variables: tuple[tuple[str, str], ...] = ()
    where: str = "the chat template"
    day: datetime = TRAINING_DAY

    @classmethod
    def of(cls, source: str, settings: Mapping[str, Any], where: str) -> Template:
        """A template with the special tokens of the `tokenizer_config.json` that it came with."""
        return cls(source, tuple(sorted(special_tokens(settings).items())), where)

    @classmethod
    def load(cls, path: str | Path, settings: Mapping[str, Any]) -> Template:
        """Read a `.jinja` file. Raises UserError naming it when it is not text."""
        file = Path(path).expanduser()
        try:
            return cls.of(file.read_text(encoding="utf-8"), settings, str(file))
        except FileNotFoundError:
            raise UserError(f"{file}: no such template file (data.template)") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: not a template in text ({error})") from None

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of all that decides what is written."""
        return hashlib.sha256(repr((self.source, self.variables, self.day)).encode()).hexdigest()

    @property
    def tagged(self) -> bool:
        """Whether it says itself, in generation tags, what the assistant's words are."""
        return _TAG.search(self.source) is not None

    def render(self, messages: Messages, add_generation_prompt: bool = False) -> str:
        """The text of a conversation, or with `add_generation_prompt` of one that waits for the assistant's answer.

        Raises UserError with the template's own reason when it does not take these messages, and when it takes too long or
        writes too much; MissingExtra without jinja2.
        """
        return self.render_tagged(messages, add_generation_prompt)[0]

    def render_tagged(self, messages: Messages, add_generation_prompt: bool = False) -> tuple[str, Spans]:
        """The text, and where in it generation tags stand. Raises as `render`."""
        seen: dict[str, Any] = dict(self.variables) | {
            "messages": [dict(message) for message in messages],
            "tools": None,
        }
        seen |= {"documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            return self._renderer.ask({"variables": seen, "now": self.day.isoformat()})
        except ValueError as error:
            raise UserError(f"{self.where}: not rendered: {error}") from None

    @cached_property
    def generation_prompt(self) -> str:
        """What it writes to ask for the assistant's answer after a user's message; nothing where it does not."""
        asked = [{"role": "user", "content": "x"}]
        try:
            plain, prompt = self.render(asked), self.render(asked, add_generation_prompt=True)
        except UserError:
            return ""
        return prompt[len(plain) :] if prompt.startswith(plain) else ""

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The usual roles whose messages it takes and writes."""
        talk = [{"role": role, "content": f"({role})"} for role in ("system", "user", "assistant", "tool")]
        taken: dict[str, None] = {}
        for messages in (talk[1:2], talk[:2], talk[1:3], talk[1:4]):
            try:
                text = self.render(messages)
            except UserError:
                continue
            taken |= {message["role"]: None for message in messages if message["content"] in text}
        return tuple(taken)

    @cached_property
    def _renderer(self) -> Renderer:
        try:
            import jinja2  # noqa: F401
        except ImportError:
            raise MissingExtra("chat templates", "train", "jinja2") from None
        return Renderer(self.source)


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens of a `tokenizer_config.json`, each a string or a record with its content."""
    named = {}
    for name, value in settings.items():
        content = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(content, str):
            named[name] = content
    return named
