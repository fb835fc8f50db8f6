"""Chat tokens: conversations as ids, special tokens only where the template wrote them, with a mask of what is learned.

A message that spells a special token is text, not that token: nobody who writes a message can end the turn of another.
For this each special token has a stand-in, one character that no text holds, which is put where the template wrote the
token; the tokenizer then reads the whole at once with all special tokens switched off. Where no message spells one, the ids
are those of transformers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from burnish.data.batch import Ids
from burnish.data.chat import Conversation
from burnish.data.template import Spans, Template
from burnish.data.tokenizer import Framed, Tokenizer
from burnish.data.turns import ASSISTANT, Layout, lay_out
from burnish.errors import UserError

_STAND_INS = 0x100000  # start of the last plane for private use
_AT_ONCE = 256  # conversations that one parallel call of the tokenizer takes


class ChatTokenizer:
    """Conversations to ids with a template. `loss` is "assistant" (learn what it says) or "all" (every token).

    A token is learned when any of its characters is the assistant's: one that straddles the border of a turn is.
    """

    def __init__(self, tokenizer: Tokenizer, template: Template, loss: str = ASSISTANT) -> None:
        self.text = tokenizer
        self.template = template
        self.loss = loss
        self.eos = tokenizer.eos
        self.vocab = tokenizer.vocab
        names = tokenizer.special_tokens
        longest_first = sorted(names, key=len, reverse=True)
        self.specials = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._stand_in = {name: chr(_STAND_INS + number) for number, name in enumerate(longest_first)}
        self._inner = tokenizer.with_stand_ins(self._stand_in)
        found = {self._inner.token_to_id(mark): names[name] for name, mark in self._stand_in.items()}
        self._ids = np.arange(max([self.vocab - 1, *found]) + 1)  # what an id of the inner tokenizer is outside it
        self._ids[list(found)] = list(found.values())

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of tokenizer, template and loss."""
        parts = (self.text.fingerprint, self.template.fingerprint, self.loss)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def framed(self, conversations: Iterable[Conversation]) -> Iterator[Framed]:
        """Ids, learned tokens and their bytes of each conversation. Raises UserError naming its file and line."""
        batch: list[Conversation] = []
        for conversation in conversations:
            batch.append(conversation)
            if len(batch) == _AT_ONCE:
                yield from self._framed(batch)
                batch = []
        yield from self._framed(batch)

    def encode(self, layout: Layout) -> tuple[Ids, NDArray[np.bool_]]:
        """(ids, spoken) of a rendered conversation, exactly as the template wrote it."""
        return self._encoded([layout])[0]

    def _framed(self, batch: list[Conversation]) -> Iterator[Framed]:
        layouts = [self._laid_out(conversation) for conversation in batch]
        for layout, (ids, spoken) in zip(layouts, self._encoded(layouts), strict=True):
            if self.loss != ASSISTANT:
                spoken = np.ones(len(ids), dtype=np.bool_)
            if not layout.ended:  # the template does not say where an answer ends, and the model must learn to
                ids, spoken = np.append(ids, self.eos), np.append(spoken, True)
            if spoken[0] and not self._begins(ids):  # the first token has nothing to be predicted from
                ids, spoken = np.insert(ids, 0, self.eos), np.insert(spoken, 0, False)
            spoken[0] = False
            yield Framed(ids, self.text.count_bytes(ids[spoken]), spoken)

    def _begins(self, ids: Ids) -> bool:
        return int(ids[0]) in self.text.special_tokens.values()

    def _laid_out(self, conversation: Conversation) -> Layout:
        try:
            layout = lay_out(self.template, conversation.messages, self.specials)
            if self.loss == ASSISTANT and not layout.spoken:
                raise UserError("the assistant says nothing, so there is nothing to learn (data.loss=all learns all)")
            if held := next((mark for mark in self._stand_in.values() if mark in layout.text), None):
                raise UserError(f"holds the private-use character {held!r}, which no text should; remove it")
        except UserError as error:
            raise UserError(f"{conversation.where}: {error}") from None
        return layout

    def _encoded(self, layouts: list[Layout]) -> list[tuple[Ids, NDArray[np.bool_]]]:
        replaced = [self._replaced(layout) for layout in layouts]
        encoded = self._inner.encode_batch([text for text, _ in replaced], add_special_tokens=False)
        found = []
        for one, (_, spans) in zip(encoded, replaced, strict=True):
            offsets = np.array(one.offsets, dtype=np.int64).reshape(-1, 2)
            found.append((self._ids[np.array(one.ids, dtype=np.int64)], _overlapping(offsets, spans)))
        return found

    def _replaced(self, layout: Layout) -> tuple[str, Spans]:
        """The text with stand-ins for the template's special tokens, and where in it the assistant speaks."""
        text, cuts, at = "", [(0, 0)], 0  # cuts: characters before and after, wherever the two drift apart
        for start, end in _gaps(layout):
            for token in self.specials.finditer(layout.text, start, end):
                text += layout.text[at : token.start()] + self._stand_in[token[0]]
                at = token.end()
                cuts.append((at, len(text)))
        text += layout.text[at:]
        old, new = np.array(cuts).T
        moved = np.array(layout.spoken, dtype=np.int64).reshape(-1, 2)
        near = np.searchsorted(old, moved, side="right") - 1
        return text, [(int(start), int(end)) for start, end in moved - old[near] + new[near]]


def _gaps(layout: Layout) -> Iterator[tuple[int, int]]:
    """The characters that the template itself wrote."""
    at = 0
    for start, end in layout.written:
        yield at, start
        at = end
    yield at, len(layout.text)


def _overlapping(offsets: Ids, spans: Spans) -> NDArray[np.bool_]:
    """Which tokens, given as [n, 2] characters start .. end, hold a character of a span."""
    if not spans:
        return np.zeros(len(offsets), dtype=np.bool_)
    begins, ends = np.array(spans, dtype=np.int64).T
    near = np.searchsorted(ends, offsets[:, 0], side="right")
    inside = near < len(ends)
    return np.asarray(inside & (offsets[:, 1] > begins[np.minimum(near, len(ends) - 1)]))
