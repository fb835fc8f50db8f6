"""Ranks: run one function in several processes of this machine that form a gloo group, and give what each returned."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any


class RankError(RuntimeError):
    """A rank raised, died or did not answer in time; the message holds its traceback where there is one."""


def run(world: int, function: Callable[..., Any], *args: Any, limit: float = 120.0) -> list[Any]:
    """What `function(*args)` gave on each of `world` ranks, in their order; no process is left behind.

    The function and what it takes and gives are pickled, so it must be importable. Each rank computes with one thread.
    Raises RankError when a rank fails, and after `limit` seconds.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        processes, pipes = [], []
        try:
            for rank in range(world):
                ours, theirs = context.Pipe(duplex=False)
                given = (theirs, rank, world, Path(folder) / "rendezvous", limit, function, args)
                process = context.Process(target=_serve, args=given, daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
            return _collect(pipes, time.monotonic() + limit)
        finally:
            for process, pipe in zip(processes, pipes, strict=False):
                process.kill()
                process.join()
                pipe.close()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    """One answer of each rank; the first failure to arrive is raised."""
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        ready = wait(list(waiting), timeout=max(deadline - time.monotonic(), 0))
        if not ready:
            raise RankError(f"no answer in time from rank {', '.join(map(str, waiting.values()))}")
        for pipe in (pipe for pipe in waiting if pipe in ready):
            rank = waiting[pipe]
            try:
                good, value = pipe.recv()
            except EOFError:
                raise RankError(f"rank {rank} died") from None
            if not good:
                raise RankError(f"rank {rank} raised:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(pipes))]


def _serve(
    pipe: Connection,
    rank: int,
    world: int,
    rendezvous: Path,
    limit: float,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """One rank: join the group, call, answer."""
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    try:
        torch.set_num_threads(1)
        store = FileStore(str(rendezvous), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=limit))
        answer = (True, function(*args))
        dist.barrier()
    except BaseException:
        answer = (False, traceback.format_exc())
    pipe.send(answer)
