"""Stopping on request: SIGTERM and SIGINT set a flag that the loop reads between steps; a second one acts at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """`signal` is the number of the signal that asked to stop, 0 for none."""

    def __init__(self) -> None:
        self.signal = 0


@contextmanager
def watched_signals(
    numbers: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT), patient: bool = False
) -> Iterator[StopRequest]:
    """Turn the first such signal into a request; handlers are as before afterwards.

    The second time the earlier handler runs, so that an impatient Ctrl-C still ends the process; not where it is `patient`,
    as a rank is that hears of one request from its launcher and from the cluster. Only the main thread may set handlers;
    in any other the request never comes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = number
        if not patient:
            signal.signal(number, before[number])

    for number in numbers:
        before[number] = signal.getsignal(number)
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
