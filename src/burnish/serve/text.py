"""Tokens into text as they come: no half characters, and nothing of a stop string or after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]
_BROKEN = "\ufffd"  # what a decoder puts where bytes make no character (yet)


class TextStream:
    """The text of one row. `push` a token, get the text that is now certain; `finish` gives what was held back.

    A character whose bytes are spread over several tokens waits for the last of them; one still incomplete at the end
    is dropped. Text that may be the start of a stop string waits until it is known not to be.
    """

    def __init__(self, decode: Decode, stop: Sequence[str] = ()) -> None:
        self.ids: list[int] = []
        self.text = ""  # complete characters so far, cut at a stop string
        self.stopped = False
        self._decode = decode
        self._stop = tuple(stop)
        self._marks = [(0, 0)]  # (tokens, characters) wherever both end together
        self._sent = 0

    def push(self, token: int) -> str:
        """Add a token; returns newly certain text, often empty."""
        if self.stopped:
            return ""
        self.ids.append(token)
        # Decoding from the mark before the last gives the decoder its context (a leading space, a joined character).
        start, read = self._marks[max(0, len(self._marks) - 2)][0], self._marks[-1][0]
        known, text = self._decode(self.ids[start:read]), self._decode(self.ids[start:])
        if text.endswith(_BROKEN):
            return ""
        old = len(self.text)
        self.text += text[len(known) :]
        self._marks.append((len(self.ids), len(self.text)))
        self._cut(old)
        return self._release(len(self.text) - (0 if self.stopped else self._pending()))

    def finish(self) -> str:
        """The rest of the text, when no more tokens come."""
        return self._release(len(self.text))

    @property
    def kept_ids(self) -> list[int]:
        """All tokens, or at a stop string those before it: none that holds any of the stop string."""
        if not self.stopped:
            return self.ids
        return self.ids[: max(tokens for tokens, characters in self._marks if characters <= len(self.text))]

    def _cut(self, old: int) -> None:
        reach = max((len(s) for s in self._stop), default=1) - 1  # a stop string may begin in earlier tokens
        found = [at for s in self._stop if (at := self.text.find(s, max(0, old - reach))) >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True

    def _pending(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _release(self, end: int) -> str:
        new, self._sent = self.text[self._sent : end], max(self._sent, end)
        return new
