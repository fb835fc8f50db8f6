"""Turns: which characters of a rendered conversation people wrote, and which of them the assistant must learn to say.

The conversation is rendered a second time with each message's text replaced by one unused character. What stands between
those characters is the template's own; the first rendering must be the same with the messages' text in their place, as
it is or with the white space around it cut off, character for character. A template for which that does not hold is
refused: nothing here searches for text that may also stand elsewhere.

The assistant's part of a turn begins where it takes over from the prompt: behind the text that the template adds as a
generation prompt. It ends with the special token that follows its words, which is what it says to stop. Generation tags in
a template say both themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from burnish.data.template import Messages, Spans, Template
from burnish.errors import UserError

ASSISTANT = "assistant"
# The reasoning that some templates take out of earlier turns is text of its own between these.
_REASONING = re.compile(r"(</?think>)")
_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))  # characters that no standard gives a meaning
# What templates do to a message's text, the first that fits being the one taken.
_CHANGES: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    str.strip,
    str.rstrip,
    str.lstrip,
    lambda text: text.strip("\n"),
    lambda text: text.rstrip("\n"),
    lambda text: text.lstrip("\n"),
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)


class Part(NamedTuple):
    """A stretch of a message's text: of message `message`, the last of it or not, with the tag of reasoning before it."""

    message: int
    last: bool
    words: str
    tag: str


class Slot(NamedTuple):
    """A place where a part of a message stands: characters start .. end."""

    part: Part
    start: int
    end: int

    @property
    def message(self) -> int:
        return self.part.message


@dataclass(frozen=True)
class Layout:
    """A rendered conversation. Spans are [start, end) in characters of `text`, in order, without overlap.

    `written`: what came from messages. `spoken`: what the assistant says, with the mark of its end. `ended`: whether the
    last of what it says ends in a special token.
    """

    text: str
    written: Spans
    spoken: Spans
    ended: bool


def lay_out(template: Template, messages: Messages, specials: re.Pattern[str]) -> Layout:
    """Render `messages` (each with `role` and `content`, both text) and tell its parts apart.

    `specials` matches the tokenizer's special tokens. Raises UserError when the template refuses the messages, leaves one
    out, or changes their text in a way that cannot be followed.
    """
    try:
        text, tags = template.render_tagged(messages)
    except UserError as error:
        unusual = {str(message["role"]) for message in messages} - set(template.roles)
        raise UserError(f"{error}; {_taken(template)}" if unusual and template.roles else str(error)) from None
    slots = _slots(template, messages, text)
    _check_all(template, messages, slots)
    written = [(slot.start, slot.end) for slot in slots if slot.end > slot.start]
    turns = _turns(messages, slots, text)
    if template.tagged:
        spoken = [(start, end) for start, end in tags if end > start]
        tail = text[turns[-1].end :] if turns else ""
    else:
        tail = _tail(template, messages, text, turns, specials)
        spoken = [(_start(template, messages, text, turn, slots, specials), _stop(text, turn, tail)) for turn in turns]
    ended = messages[-1]["role"] != ASSISTANT or specials.search(tail) is not None
    return Layout(text, written, spoken, ended)


class Turn(NamedTuple):
    """The words of assistant message `message`: characters start .. end, its reasoning included where it is kept.

    `tag`: where the tag before the first of them begins, `start` where there is none.
    """

    tag: int
    start: int
    end: int
    message: int


def _turns(messages: Messages, slots: list[Slot], text: str) -> list[Turn]:
    found = []
    for number, message in enumerate(messages):
        own = [slot for slot in slots if slot.message == number]
        if message["role"] == ASSISTANT and own:
            start, tag = own[0].start, own[0].part.tag
            tag_at = start - len(tag) if text.endswith(tag, 0, start) else start
            found.append(Turn(tag_at, start, own[-1].end, number))
    return found


def _taken(template: Template) -> str:
    return f"roles that it writes: {', '.join(template.roles)}"


def _slots(template: Template, messages: Messages, text: str) -> list[Slot]:
    """Where each part of each message stands in `text`, in order."""
    reached = 0
    for blank in (True, False):  # some templates write no turn, or another, for a message without words
        marked, parts = _marked(template, messages, text, blank)
        pattern = template.render(marked)
        pieces = re.split(f"([{''.join(parts)}])", pattern) if parts else [pattern]
        found, count = _matched(text, pieces, parts)
        reached = max(reached, count)
        if found is not None:
            return found
    raise UserError(
        f"{template.where}: changes the text of message {reached + 1} ({messages[reached]['role']}) in a way that cannot be "
        "followed; words of the assistant could not be told from others"
    )


def _marked(
    template: Template, messages: Messages, text: str, blank: bool
) -> tuple[list[dict[str, Any]], dict[str, Part]]:
    """The messages with an unused character for each part of their text, and what it stands for.

    Without `blank`, parts that have no words stay as they are.
    """
    unused = _unused(text + template.source + "".join(message["content"] for message in messages))
    parts: dict[str, Part] = {}
    marked = []
    for number, message in enumerate(messages):
        own = _REASONING.split(message["content"]) if message["role"] == ASSISTANT else [message["content"]]
        for place in range(0, len(own), 2):  # between them stand the tags of reasoning
            last = place == len(own) - 1
            if own[place].strip() or (blank and last):
                character = next(unused)
                parts[character] = Part(number, last, own[place], own[place - 1] if place else "")
                own[place] = character
        marked.append({**message, "content": "".join(own)})
    return marked, parts


def _unused(text: str) -> Iterator[str]:
    seen = set(text)
    return (chr(code) for codes in _PRIVATE for code in codes if chr(code) not in seen)


def _matched(text: str, pattern: list[str], parts: dict[str, Part]) -> tuple[list[Slot] | None, int]:
    """The slots of `text`, read as the template's own pieces with the messages' parts between them.

    `pattern` is piece, character, piece, ..., piece. None where no reading takes in all of the text; with it comes the
    message that the longest reading ends at.
    """
    readings: dict[int, tuple[Slot, ...]] = {len(pattern[0]): ()} if text.startswith(pattern[0]) else {}
    reached = 0
    for character, piece in zip(pattern[1::2], pattern[2::2], strict=True):
        part = parts[character]
        reached = part.message if readings else reached
        longer: dict[int, tuple[Slot, ...]] = {}
        for start, slots in readings.items():
            for change in _CHANGES:
                end = start + len(changed := change(part.words))
                if text.startswith(changed, start) and text.startswith(piece, end):
                    longer.setdefault(end + len(piece), (*slots, Slot(part, start, end)))
        readings = longer
    whole = readings.get(len(text))
    return (None if whole is None else list(whole)), reached


def _check_all(template: Template, messages: Messages, slots: list[Slot]) -> None:
    """Every message is written, and what the assistant says once."""
    for number, message in enumerate(messages):
        times = sum(slot.message == number and slot.part.last for slot in slots)
        name = f"message {number + 1} ({message['role']})"
        if message["role"] == ASSISTANT and times != 1:
            said = "leaves out" if times == 0 else "writes more than once"
            raise UserError(f"{template.where}: {said} {name}; what the assistant says there cannot be learned")
        if not times and message["content"].strip():
            raise UserError(f"{template.where}: leaves out {name}; {_taken(template)}")


def _tail(template: Template, messages: Messages, text: str, turns: list[Turn], specials: re.Pattern[str]) -> str:
    """What follows an assistant's words in its own turn, with the first special token if there is one.

    That is what the template writes after the last assistant's message when nothing comes after it.
    """
    if not turns:
        return ""
    last, eos = turns[-1].message, dict(template.variables).get("eos_token")
    rest = text[turns[-1].end :]
    if last < len(messages) - 1:
        alone = template.render(messages[: last + 1])
        slots = _slots(template, messages[: last + 1], alone)
        rest = alone[_turns(messages[: last + 1], slots, alone)[-1].end :]
    end, past = 0, 0
    for token in specials.finditer(rest):
        if end and token.start() != past:
            break
        past = token.end()
        if not end or token[0] == eos:  # a turn may end in several, the last of them being what generation stops at
            end = past
    return rest[: end or None]


def _stop(text: str, turn: Turn, tail: str) -> int:
    return turn.end + len(tail) if text.startswith(tail, turn.end) else turn.end


def _start(
    template: Template, messages: Messages, text: str, turn: Turn, slots: list[Slot], specials: re.Pattern[str]
) -> int:
    """Where the prompt ends and the assistant takes over."""
    header = template.generation_prompt
    if header and text.endswith(header, 0, turn.start):
        return turn.start
    before = max((slot.end for slot in slots if slot.end <= turn.start and slot.message != turn.message), default=0)
    try:
        prompt = template.render(messages[: turn.message], add_generation_prompt=True) if turn.message else ""
    except UserError:  # the first messages alone may be no conversation for it
        prompt = ""
    given = len(prompt)
    if before < given <= turn.start and text.startswith(prompt) and (header or not text[given : turn.start].strip()):
        return given
    between = text[before : turn.tag]
    if header and header in between:
        return before + between.rindex(header) + len(header)
    ends = [found.end() for found in specials.finditer(between)]
    return before + ends[-1] if ends and not between[ends[-1] :].strip() else turn.tag
