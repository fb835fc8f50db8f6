"""Watch: every rank shows that it lives, looks after its neighbour, and when the run fails exactly one says why.

A thread of each rank counts up in the store where the ranks have met. A neighbour that stops counting is gone or frozen:
whoever notices says so, with the step and what was waited for, and all ranks end. A rank whose collective breaks first asks
who is gone, for the one that died is at fault and not those that waited.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any

from burnish.errors import BurnishError, PartlyDone
from burnish.launch.environment import RankPlace
from burnish.launch.waiting import broken_collective, under_way, waiting_in

BEAT = 1.0  # seconds between two signs of life
SILENCE = "BURNISH_SILENCE"
SILENT_SECONDS = 30.0  # without one, after which a rank counts as frozen
GONE_SECONDS = 5.0  # the same where a collective broke already
GRACE = 8.0  # seconds that a rank has to end by itself once the run has failed
FAILED = "failed"
AGAIN = "run the same command again to go on"


class Watch:
    """Of one rank. `step` is the one under way, `kept` names the last checkpoint."""

    def __init__(self, place: RankPlace) -> None:
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        self.place, self.step, self.kept = place, 0, ""
        self.silence = float(os.environ.get(SILENCE, SILENT_SECONDS))
        served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.host = None
        if not served and place.rank == 0:  # nobody else keeps the store
            self.host = TCPStore(place.address, place.port, is_master=True, wait_for_workers=False, multi_tenant=True)
        prefix, patience = f"burnish/{place.attempt}", timedelta(seconds=self.silence)
        stores = [TCPStore(place.address, place.port, is_master=False, timeout=patience) for _ in range(2)]
        # A connection serves one caller at a time: the thread has its own, so that no wait of the run silences it.
        self.store, self.own = (PrefixStore(prefix, store) for store in stores)
        self.ended = threading.Event()
        self.main = threading.main_thread().ident
        self.thread = threading.Thread(target=self._stand, name="watch", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """This rank is done; nobody needs to look after it."""
        self.ended.set()
        self.thread.join(2 * BEAT)
        with suppress(Exception):
            self._beat(self.store, -1)

    def judged(self, error: BaseException) -> BaseException:
        """What this rank should end with: the error to show, or a silent exit where another rank shows it."""
        if isinstance(error, SystemExit):
            return error
        for number in (signal.SIGTERM, signal.SIGINT):  # a launcher that has seen one rank end tells the others to
            signal.signal(number, signal.SIG_IGN)
        if broken_collective(error):
            return self._lost(error)
        if isinstance(error, BurnishError):
            return self._own(error, str(error), error.exit_code)
        if not isinstance(error, Exception):  # Ctrl-C, or SIGTERM where nobody waits for it
            return self._told(error)
        traceback.print_exception(error)
        return self._own(error, f"{type(error).__name__}: {error}", BurnishError.exit_code)

    def _own(self, error: BaseException, said: str, code: int) -> BaseException:
        """An error of this rank. What all ranks meet is left to the first of them to say."""
        if self.place.rank == 0 and isinstance(error, BurnishError):
            return error if self._post(said, code) else SystemExit(code)
        if isinstance(error, BurnishError) and (posted := self._posted(wait=3 * BEAT)):
            return SystemExit(posted["code"])
        text = f"rank {self.place.rank}{self._in_step()}: {said}"
        return _coded(text, code) if self._post(text, code) else SystemExit(code)

    def _told(self, error: BaseException) -> BaseException:
        """Something has asked this rank to end: the user, or a launcher that has seen another rank die."""
        if ended := self._gone(GONE_SECONDS + 2 * BEAT, ""):
            return ended
        code = 130 if isinstance(error, KeyboardInterrupt) else 143
        return error if self._post("stopped", code) else SystemExit(code)

    def _lost(self, error: BaseException) -> BaseException:
        """A collective broke: find the rank that is gone, or say what was waited for."""
        waited = waiting_in(frames_of(error.__traceback__), under_way())
        if ended := self._gone(self.silence + GONE_SECONDS, waited):
            return ended
        first = str(error).splitlines()[0]
        return self._own(error, f"{waited} failed: {first}; {self._kept()}", PartlyDone.exit_code)

    def _gone(self, seconds: float, waited: str) -> BaseException | None:
        """What to end with because another rank has said why, or is found to give no sign of life any more."""
        seen = self._counts()
        since = dict.fromkeys(seen, time.monotonic())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if posted := self._posted(wait=BEAT / 2):
                return SystemExit(posted["code"])
            for rank, count in self._counts().items():
                if count != seen.get(rank) or count < 0:
                    seen[rank], since[rank] = count, time.monotonic()
            for rank, at in since.items():
                if rank != self.place.rank and time.monotonic() - at > GONE_SECONDS:
                    return self._report(rank, "is gone", waited)
        return None

    def _report(self, rank: int, what: str, waited: str) -> BaseException:
        waiting = f"; rank {self.place.rank} waited for it in {waited}" if waited else ""
        text = f"rank {rank} {what}{self._in_step()}{waiting}; {self._kept()}"
        if self._post(text, PartlyDone.exit_code):
            return PartlyDone(text)
        return SystemExit(PartlyDone.exit_code)

    def _in_step(self) -> str:
        return f" in step {self.step}" if self.step else " before the first step"

    def _kept(self) -> str:
        return (
            f"the last good checkpoint is {self.kept}; {AGAIN}" if self.kept else f"there is no checkpoint yet; {AGAIN}"
        )

    # The store.

    def _beat(self, store: Any, count: int) -> None:
        sign = {"count": count, "step": self.step, "host": socket.gethostname(), "pid": os.getpid()}
        store.set(f"alive/{self.place.rank}", json.dumps(sign))

    def _sign(self, store: Any, rank: int) -> dict[str, Any]:
        """The last sign of a rank; empty where it has given none yet."""
        key = f"alive/{rank}"
        found: dict[str, Any] = json.loads(store.get(key)) if store.check([key]) else {}
        return found

    def _counts(self) -> dict[int, int]:
        with suppress(Exception):
            return {rank: self._sign(self.store, rank).get("count", 0) for rank in range(self.place.world)}
        return {}

    def _post(self, said: str, code: int) -> bool:
        """Put up why the run failed; whether this rank is the first to do so."""
        with suppress(Exception):  # the store may have gone with the one who kept it
            mine = json.dumps({"rank": self.place.rank, "said": said, "code": code})
            return bool(self.store.compare_set(FAILED, "", mine).decode() == mine)
        return True

    def _posted(self, wait: float) -> dict[str, Any]:
        until = time.monotonic() + wait
        with suppress(Exception):
            while not self.store.check([FAILED]):
                if time.monotonic() > until:
                    return {}
                time.sleep(0.1)
            found: dict[str, Any] = json.loads(self.store.get(FAILED))
            return found
        return {}

    # The thread.

    def _stand(self) -> None:
        neighbour = (self.place.rank + 1) % self.place.world
        count, seen, since, answered = 0, 0, time.monotonic(), time.monotonic()
        while not self.ended.wait(BEAT):
            count += 1
            try:
                self._beat(self.own, count)
                sign = self._sign(self.own, neighbour)
                failed = self.own.check([FAILED])
                answered = time.monotonic()
            except Exception:  # whatever the store's connection raises when the other end is gone
                if time.monotonic() - answered > self.silence:
                    self._end(f"rank {self.place.rank}: the launcher is gone; {self._kept()}", PartlyDone.exit_code)
                continue
            if failed:
                self._follow()
                return
            if sign.get("count", 0) != seen or seen < 0 or not sign:
                seen, since = sign.get("count", 0), time.monotonic()
            elif time.monotonic() - since > self.silence:
                self._frozen(neighbour, sign)

    def _follow(self) -> None:
        """Another rank has said why the run failed: end, if this one does not end by itself."""
        posted = json.loads(self.own.get(FAILED))
        if not self.ended.wait(GRACE):
            os._exit(posted["code"])

    def _frozen(self, rank: int, sign: dict[str, Any]) -> None:
        frame = sys._current_frames().get(self.main or 0)
        ended = self._report(rank, f"has not answered for {self.silence:g} s", waiting_in(outward(frame), under_way()))
        if sign["host"] == socket.gethostname():
            with suppress(OSError):
                os.kill(sign["pid"], signal.SIGKILL)  # a stopped process hears nothing else
        self._end(str(ended) if isinstance(ended, PartlyDone) else "", PartlyDone.exit_code)

    def _end(self, said: str, code: int) -> None:
        if said:
            print(f"burnish: {said}", file=sys.stderr, flush=True)
        os._exit(code)


def frames_of(found: TracebackType | None) -> list[FrameType]:
    """The frames of a traceback, the innermost first."""
    return [frame for frame, _ in traceback.walk_tb(found)][::-1]


def outward(frame: FrameType | None) -> list[FrameType]:
    """A frame and its callers."""
    return [] if frame is None else [each for each, _ in traceback.walk_stack(frame)]


def _coded(text: str, code: int) -> BurnishError:
    error = BurnishError(text)
    error.exit_code = code
    return error


@contextmanager
def watched(place: RankPlace) -> Iterator[Watch]:
    """Look after the other ranks while the block runs; an error of it is shown by one rank alone."""
    watch = Watch(place)
    try:
        yield watch
    except BaseException as error:
        shown = watch.judged(error)
        if shown is error:
            raise
        raise shown from None
    else:
        watch.close()
