"""Chat: files of conversations, one JSON object a line, in the three spellings that are in use.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}       (ShareGPT)
    {"prompt": "...", "completion": "..."}

Content is text, or a list of parts {"type": "text", "text": "..."}, which are joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.data.text import Texts, check_unicode, json_lines, json_name
from burnish.errors import UserError, nearest

# What ShareGPT files call the roles.
_NAMES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
# (key that holds the list, key of a message's role, key of its text)
_LISTS = (("messages", "role", "content"), ("conversations", "from", "value"))
_ROLE = re.compile(r"[\w-]{1,40}")  # a template writes it as its own text, so it must not spell a special token
_PAIR = ("prompt", "completion")
_READ = (*(key for key, _, _ in _LISTS), "prompt with completion")


@dataclass(frozen=True)
class Conversation:
    """Messages, each with `role` and `content`, both text. `where` names file and line in messages to a person."""

    messages: tuple[dict[str, str], ...]
    where: str


@dataclass(frozen=True)
class Conversations:
    """Readable .jsonl files of conversations, in a fixed order."""

    texts: Texts

    @classmethod
    def open(cls, sources: Sequence[str | Path]) -> Conversations:
        """Resolve files, folders and `asset:` names. Raises UserError for one that is unusable or no .jsonl file."""
        texts = Texts.open(sources)
        for path in texts.files:
            if not path.name.lower().endswith(".jsonl"):
                raise UserError(
                    f"{path}: not a file of conversations; data.format chat reads .jsonl, one conversation a line"
                )
        return cls(texts)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files, in order."""
        return self.texts.files

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of the content of all files in order."""
        return self.texts.fingerprint

    def count(self) -> int:
        """Number of conversations."""
        return self.texts.count()

    def documents(self) -> Iterator[Conversation]:
        """The conversations, one at a time. Raises UserError at the first line that cannot be used."""
        for path in self.files:
            empty = True
            for where, record in json_lines(path):
                empty = False
                yield Conversation(read(record, where), where)
            if empty:
                raise UserError(f"{path}: holds no conversation")


def read(record: Any, where: str) -> tuple[dict[str, str], ...]:
    """The messages of one line. Raises UserError naming `where` and the key at fault."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object with key 'messages', found {json_name(record)}")
    for key, role, content in _LISTS:
        if key in record:
            return _messages(record[key], key, role, content, where)
    if all(key in record for key in _PAIR):
        ask, answer = (record[key] for key in _PAIR)
        both = [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
        if isinstance(ask, list) and isinstance(answer, list):  # each is messages already
            both = [*ask, *answer]
        return _messages(both, "prompt + completion", "role", "content", where)
    raise UserError(f"{where}: no conversation; keys that hold one: {', '.join(_READ)}; {nearest('messages', record)}")


def _messages(found: Any, key: str, role: str, content: str, where: str) -> tuple[dict[str, str], ...]:
    if not isinstance(found, list):
        raise UserError(f"{where}: {key!r} must be an array of messages, found {json_name(found)}")
    if not found:
        raise UserError(f"{where}: {key!r} holds no message")
    return tuple(_message(one, f"{where}: {key}[{number}]", role, content) for number, one in enumerate(found))


def _message(one: Any, where: str, role: str, content: str) -> dict[str, str]:
    if not isinstance(one, dict):
        raise UserError(f"{where}: expected an object with {role!r} and {content!r}, found {json_name(one)}")
    for key in (role, content):
        if one.get(key) is None:
            raise UserError(f"{where}: no {key!r}; a message has {role!r} and {content!r}")
    if more := next(
        (key for key, value in one.items() if key not in (role, content) and value not in (None, [], {})), None
    ):
        raise UserError(
            f"{where}: has {more!r}, which is not learned here; a message has {role!r} and {content!r} only"
        )
    if not isinstance(one[role], str) or not _ROLE.fullmatch(one[role]):
        raise UserError(f"{where}: {role!r} must be a word such as 'user', found {one[role]!r}")
    text = _text(one[content], f"{where}: {content}")
    for part in (one[role], text):
        check_unicode(part, where)
    name: str = one[role]
    return {"role": name if role == "role" else _NAMES.get(name.lower(), name), "content": text}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{where} must be a string or an array of parts, found {json_name(content)}")
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else json_name(part)
        if kind != "text" or not isinstance(part.get("text"), str):
            raise UserError(
                f"{where}[{number}]: a part of type {kind!r}; parts that are read: {{'type': 'text', 'text': ...}}"
            )
        texts.append(part["text"])
    return "".join(texts)
