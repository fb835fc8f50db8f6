"""The host of an engine: its one thread, and the way in and out of it for a server's event loop.

The engine is touched by this thread alone. What others want of it comes through a queue; what it produces is handed to the
event loop that asked.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from burnish.errors import UserError
from burnish.serve.engine import Engine, Output, Request

IDLE = 0.5  # seconds after which an engine without work looks whether it shall stop


@dataclass
class Counts:
    """What has happened so far. Read from outside, written by the engine's thread."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0


class Host:
    """Runs an engine in a thread until it is told to stop."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.counts = engine, Counts()
        self.draining = False
        self.cut = False  # whether anything was left unfinished since then
        self.failed = ""
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: Request) -> AsyncIterator[Output]:
        """The outputs of a request as they come. Leaving the loop early cancels it. Raises UserError as `Engine.submit`."""
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[Output | UserError] = asyncio.Queue()
        number: list[int] = []

        def hand_over(what: Output | UserError) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(outputs.put_nowait, what)

        def begin() -> None:
            try:
                number.append(self.engine.submit(request, hand_over))
            except UserError as error:
                hand_over(error)

        def leave() -> None:
            for own in number:
                self.engine.cancel(own)

        self._inbox.put(begin)
        ended = False
        try:
            while not ended:
                found = await outputs.get()
                if isinstance(found, UserError):
                    ended = True
                    raise found
                ended = bool(found.reason)
                yield found
        finally:
            if not ended:
                self.cut |= self.draining
                self._inbox.put(leave)

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing is in progress, at most so long; whether that was reached."""
        self.draining = True
        until = time.monotonic() + seconds
        while self.engine.busy and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return not self.engine.busy

    def stop(self) -> None:
        """End the thread after the step that runs; what is in progress ends as cancelled."""
        self._stop.set()
        self._inbox.put(lambda: None)
        self._thread.join()
        self.engine.cancel_all("cancelled")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                while True:
                    self._inbox.get(block=not self.engine.busy, timeout=IDLE)()
            except queue.Empty:
                pass
            if self.engine.busy:
                self._step()

    def _step(self) -> None:
        began = time.perf_counter()
        try:
            self.counts.new_tokens += self.engine.step()
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            self.engine.cancel_all("error")
        self.counts.steps += 1
        self.counts.step_seconds += time.perf_counter() - began
