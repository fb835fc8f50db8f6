"""Lanes: small pieces of work taken one after another by a few threads, each of which runs torch's operators by itself.

Threads within an operator would have to meet at the end of each one; when another process holds a core, every such meeting
costs a turn of the system's clock. Lanes meet once for all their pieces. A lane that starts late, as one that has to be woken does,
takes fewer. Between operators a lane does next to nothing in Python, since lanes wait for each other there.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Job = tuple[deque[Callable[[Any], None]], Any] | None  # None: no more are to come


class Lanes:
    """`count` threads, of which the calling one is the first; the others end when nobody holds this any more."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()
        given = (self._jobs, self._ends)
        threads = [Thread(target=_wait, args=given, name=f"lane {k}", daemon=True) for k in range(1, count)]
        for thread in threads:
            thread.start()
        weakref.finalize(self, _end, self._jobs, threads)

    def run(self, pieces: Sequence[Callable[[T], None]], given: T, alone: bool = False) -> None:
        """Do every piece with what is given, the first ones first, with `alone` on the calling thread; returns when all are done.
        Raises what a piece raises."""
        left = deque(pieces)
        others = 0 if alone else min(self.count, len(pieces)) - 1
        for _ in range(others):
            self._jobs.put((left, given))
        errors = [_do(left, given), *(self._ends.get() for _ in range(others))]
        for error in errors:
            if error is not None:
                raise error


def _end(jobs: SimpleQueue[Job], threads: Sequence[Thread]) -> None:
    """Also at the end of the process: a thread that is still there when the interpreter goes would be cut off inside of torch."""
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        if thread is not current_thread():
            thread.join()


def _wait(jobs: SimpleQueue[Job], ends: SimpleQueue[BaseException | None]) -> None:
    torch.set_num_threads(1)
    while (job := jobs.get()) is not None:
        ends.put(_do(*job))


@torch.inference_mode()
def _do(left: deque[Callable[[T], None]], given: T) -> BaseException | None:
    """Take pieces until none is left, or one raises: what it raised."""
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        while left:
            try:
                piece = left.popleft()
            except IndexError:  # another lane was faster
                break
            piece(given)
    except BaseException as error:
        left.clear()
        return error
    finally:
        if before > 1:
            torch.set_num_threads(before)
    return None
