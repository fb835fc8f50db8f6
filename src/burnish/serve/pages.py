"""Pages of the pool of keys and values: who holds them, which are free, and which still hold a prefix that may come again.

A page has room for `size` positions of one sequence. A full page is known by its tokens and by all that came before them, so
that another sequence with the same beginning reads it instead of computing it (Kwon et al. 2023, "PagedAttention", arXiv
2309.06180, sections 4.3 and 4.4). Held pages are counted; one that nobody holds keeps its content until its room is needed,
the one unused for longest first. A sequence gets neighbouring pages as long as there are any, attention reading neighbours as
one piece of memory: with its first page it is promised the room it may come to need, where what gives way is oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

ROOT = 0  # what comes before a first page


class Full(Exception):
    """No page is free."""


class Pages:
    """`count` pages of `size` positions each."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._held = [0] * count
        self._empty = bytearray(b"\x01" * count)  # free, and nothing in it is known
        self._empty_count = count
        self._idle: OrderedDict[int, None] = OrderedDict()  # free with known content, unused for longest first
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}  # (what came before, tokens) -> page
        self._content: dict[int, tuple[int, tuple[int, ...], int]] = {}  # page -> (before, tokens, its own mark)
        self._marks = ROOT
        self._released = [0] * count  # when each became free, by a clock of releases
        self._clock = 0
        self._room = [0] * count  # the page at which what a held page's sequence was promised ends

    @property
    def free(self) -> int:
        """Pages that can be taken."""
        return self._empty_count + len(self._idle)

    def needed(self, positions: int) -> int:
        """Pages for that many positions."""
        return -(-positions // self.size)

    def match(self, tokens: Sequence[int]) -> list[int]:
        """The pages that hold the longest known beginning of `tokens`, now held once more.

        At least one token is left out: something must be computed to know what comes next.
        """
        found: list[int] = []
        before = ROOT
        for start in range(0, (len(tokens) - 1) // self.size * self.size, self.size):
            page = self._known.get((before, tuple(tokens[start : start + self.size])))
            if page is None:
                break
            if not self._held[page]:
                del self._idle[page]
            self._held[page] += 1
            before = self._content[page][2]
            found.append(page)
        return found

    def take(self, after: int | None = None, ahead: int = 1) -> int:
        """A page to write to, next to `after` if that may be; `ahead`: how many its sequence may come to need, with this one.
        Raises Full.

        What is read as one piece is read faster, so a neighbour gives way whose content nobody holds: in the room that was
        promised, the former continuation of a text that goes on in another way now, and what has not been used for long.
        """
        if after is not None:
            self._make_way(after)
            page, room = after + 1, self._room[after]
            if page in self._idle and (page < room or self._stale(page)):
                self._let_go(page)
        if after is None or page >= self.count or not self._empty[page]:
            page, room = self._place(ahead)
        self._empty[page] = 0
        self._empty_count -= 1
        self._held[page] = 1
        self._room[page] = room
        return page

    def release(self, pages: Sequence[int]) -> None:
        """Give pages back, those of a sequence in its order; known ones are kept as long as there is room, tails first to go."""
        self._clock += 1
        for page in reversed(pages):
            self._held[page] -= 1
            self._released[page] = self._clock
            if self._held[page] == 0:
                if page in self._content:
                    self._idle[page] = None
                else:
                    self._empty[page] = 1
                    self._empty_count += 1

    def fill(self, page: int, before: int, tokens: Sequence[int]) -> int:
        """Say that a page is full of `tokens` that came after `before`; returns its own mark, for the page after it."""
        key = (before, tuple(tokens))
        if page not in self._content:
            self._marks += 1
            self._content[page] = (*key, self._marks)
            self._known.setdefault(key, page)
        return self._content[page][2]

    def mark(self, page: int) -> int:
        """What the page after a known one names as coming before it."""
        return self._content[page][2]

    def forget(self) -> None:
        """Let go of what is known of pages that nobody holds: the next prompt is computed from its beginning."""
        while self._idle:
            self._let_go(next(iter(self._idle)))

    def _make_way(self, page: int) -> None:
        """Let go of the neighbours of a known page that continue it, one after another, as far as nobody holds them."""
        chain = [page]
        while chain[-1] in self._content and self._follows(chain[-1] + 1, chain[-1]):
            chain.append(chain[-1] + 1)
        for follower in chain[1:]:
            self._let_go(follower)

    def _follows(self, page: int, before: int) -> bool:
        return page in self._idle and self._content[page][0] == self.mark(before)

    def _stale(self, page: int) -> bool:
        """Whether a free page was last used in the first half of the time that free pages go back."""
        oldest = self._released[next(iter(self._idle))]
        return 2 * self._released[page] <= oldest + self._clock

    def _let_go(self, page: int) -> None:
        """Make a free page an empty one."""
        del self._idle[page]
        self._forget(page)
        self._empty[page] = 1
        self._empty_count += 1

    def _forget(self, page: int) -> None:
        before, tokens, _ = self._content.pop(page)
        if self._known.get((before, tokens)) == page:
            del self._known[before, tokens]

    def _place(self, ahead: int) -> tuple[int, int]:
        """An empty page with the most room behind it, and where that ends: of `ahead` pages whose newest content is oldest, as
        far as so many neighbours are free."""
        if not self.free:
            raise Full
        page, length = self._roomiest()
        if length < ahead:
            ages = self._ages()
            ends = np.append(np.flatnonzero(np.isinf(ages)), self.count)
            length = min(ahead, int(np.diff(ends, prepend=-1).max()) - 1)
            page = int(np.lib.stride_tricks.sliding_window_view(ages, length).max(-1).argmin())
            if page in self._idle:
                self._let_go(page)
        return page, page + min(ahead, length)

    def _ages(self) -> np.ndarray:
        """Of each page what its content is worth: 0 for an empty one, then those that nobody holds, unused for longest first,
        then what was promised; infinite for held ones."""
        held = np.array(self._held) > 0
        ages = np.zeros(self.count)
        ages[list(self._idle)] = range(1, len(self._idle) + 1)
        promised = np.maximum.accumulate(np.where(held, self._room, 0)) > np.arange(self.count)
        return np.where(held, np.inf, np.where(promised, self.count + 1, ages))

    def _roomiest(self) -> tuple[int, int]:
        """The first page of the longest row of empty ones, so that who takes it can go on beside it, and the row's length."""
        best, length = 0, 0
        start = self._empty.find(1)
        while start >= 0:
            end = self._empty.find(0, start)
            end = self.count if end < 0 else end
            if end - start > length:
                best, length = start, end - start
            start = self._empty.find(1, end)
        # Behind the first page comes whoever holds the page before it: leave that one half of a large gap.
        half = length // 2 if best > 0 and self._held[best - 1] and length > 2 else 0
        return best + half, length - half
