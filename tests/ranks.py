"""Ranks: one warm pool of processes in which tests run a function on 1 to 8 ranks at once, over gloo.

`run(world, function, *args)` calls `function(*args)` in `world` processes that form a process group of exactly that size,
and gives what each returned, in order of rank. The function must be importable: one of a test module's own.
A rank that raises, dies or hangs fails the test with its traceback, and the pool starts anew for the next.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

SIZE = 8  # most ranks; a worker is started when it is first needed
LIMIT = 120.0  # seconds a call may take: two cores are shared by all ranks, and the machine by others
PRELOAD = ["torch.distributed.fsdp", "burnish.measure", "burnish.apply", "burnish.recipe_files", "burnish.train.optim"]


class RankError(AssertionError):
    """A rank raised, died or hung; the message holds its traceback."""


class _Worker:
    def __init__(self, context: Any, number: int) -> None:
        self.stacks = tempfile.NamedTemporaryFile(prefix=f"rank-{number}-", suffix=".txt")  # noqa: SIM115 - lives as long
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.stacks.name), daemon=True)
        self.process.start()
        theirs.close()

    def where(self) -> str:
        """The stack of a rank that does not answer."""
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.3)
        return self.stacks.read().decode()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.stacks.close()


class Pool:
    """Started at first use. `calls` numbers the process groups, so that each gets its own rendezvous."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self.calls = 0
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")

    def start(self, world: int) -> None:
        assert world <= SIZE, f"{world} ranks asked, the pool has {SIZE}"
        if missing := range(len(self.workers), world):
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(PRELOAD)
            self.workers += [_Worker(context, number) for number in missing]

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers = []

    def run(self, world: int, function: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[Any]:
        """What `function(*args)` gave on each of `world` ranks. Raises RankError, with tracebacks, after `limit` seconds
        at the latest."""
        self.start(world)
        self.calls += 1
        rendezvous = os.path.join(self.folder.name, str(self.calls))
        for rank, worker in enumerate(self.workers[:world]):
            worker.pipe.send((rank, world, rendezvous, function, args))
        results: dict[int, Any] = {}
        deadline = time.monotonic() + limit
        try:
            while len(results) < world:
                self._next(world, results, deadline)
        except BaseException:
            self.stop()
            raise
        return [results[rank] for rank in range(world)]

    def _next(self, world: int, results: dict[int, Any], deadline: float) -> None:
        """Take what has arrived by now into `results`."""
        open_ranks = {worker.pipe: rank for rank, worker in enumerate(self.workers[:world]) if rank not in results}
        ready = wait(list(open_ranks), timeout=max(deadline - time.monotonic(), 0))
        if not ready:
            stacks = "\n".join(f"rank {rank} hangs:\n{self.workers[rank].where()}" for rank in open_ranks.values())
            raise RankError(stacks)
        failures = [text for pipe in ready if (text := self._take(open_ranks[pipe], results))]  # type: ignore[index]
        if failures:
            # One rank's failure makes the others fail too: all are shown, for the cause may not be the first to arrive.
            late = wait([pipe for pipe in open_ranks if pipe not in ready], timeout=1)
            failures += [text for pipe in late if (text := self._take(open_ranks[pipe], results))]  # type: ignore[index]
            raise RankError("\n".join(failures))

    def _take(self, rank: int, results: dict[int, Any]) -> str:
        """The result of a rank that answered, into `results`; or its failure as text."""
        worker = self.workers[rank]
        try:
            good, value = worker.pipe.recv()
        except EOFError:
            worker.process.join(2)
            return f"rank {rank} died, exit code {worker.process.exitcode}\n{worker.where()}"
        if not good:
            return f"rank {rank} raised:\n{value}"
        results[rank] = value
        return ""


def _serve(pipe: Connection, stacks: str) -> None:
    """A worker: waits for calls until its parent is gone."""
    import torch

    torch.set_num_threads(1)
    out = open(stacks, "w")  # noqa: SIM115 - open for the life of the process
    faulthandler.enable(out)
    faulthandler.register(signal.SIGUSR1, out, all_threads=True)
    sys.stdout = sys.stderr
    gc.freeze()
    while True:
        try:
            rank, world, rendezvous, function, args = pipe.recv()
        except EOFError:
            return
        try:
            value = _call(rank, world, rendezvous, function, args)
        except BaseException:
            pipe.send((False, traceback.format_exc()))
            return
        pipe.send((True, value))


def _call(rank: int, world: int, rendezvous: str, function: Callable[..., Any], args: tuple) -> Any:
    import torch.distributed as dist

    store = dist.FileStore(rendezvous, world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=2 * LIMIT))
    # A rank that returned at once would hang up while others still connect to it.
    store.add("connected", 1)
    while store.add("connected", 0) < world:
        time.sleep(0.001)
    value = function(*args)
    # What a test leaves in cycles holds process groups, each with threads that wake a hundred times a second.
    gc.collect()
    dist.destroy_process_group()
    _forget_meshes()
    return value


def _forget_meshes() -> None:
    """DTensor keeps what it planned once for every mesh of the same form, and in it the groups of the first: gone with the call."""
    from torch.distributed.tensor import DTensor, _redistribute

    _redistribute._gen_transform_infos.cache_clear()
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()


_pool = Pool()
atexit.register(_pool.stop)
run = _pool.run
