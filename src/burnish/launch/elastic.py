"""Ranks on this machine: N processes of the same command line, started and ended together by torch's elastic agent."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from burnish.errors import BurnishError, PartlyDone, UserError

ENDING_SECONDS = 120  # that ranks have after a signal to finish their step and save
SIGNALLED = 128  # and the signal's number: as a shell reports a signal
CRASHES = (BurnishError.exit_code, PartlyDone.exit_code)  # what a restart may help against


def start_ranks(count: int, arguments: Sequence[str], restarts: int = 0) -> int:
    """Run `burnish ARGUMENTS` on `count` ranks of this machine and give the exit code; the ranks say themselves what failed.

    After a crash, not after a bad input or a signal, they are started again up to `restarts` times and go on from the last
    checkpoint. Raises UserError for a count that cannot be.
    """
    if count < 1 or restarts < 0:
        raise UserError(f"--nproc {count} --restarts {restarts}: use at least 1 rank and 0 restarts")
    words = list(arguments)
    for left in range(restarts, -1, -1):
        code = _once(count, words)
        if code not in CRASHES or not left:
            return code
        print(f"burnish: starts again ({left} restart{'s' * (left > 1)} left)", file=sys.stderr, flush=True)
        words = [word for word in words if word != "--fresh"]  # what the first start has made is what to go on from
    return code


def _once(count: int, arguments: list[str]) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, launch_agent

    # Its lines on the failure of a process would stand between those of the ranks, which say what is wrong.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that stand on the same cores
    settings: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "127.0.0.1"}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        max_restarts=0,
        signals_to_handle="SIGTERM,SIGINT",
        shutdown_timeout=ENDING_SECONDS,
        **settings,
    )
    try:
        launch_agent(config, sys.executable, ["-m", "burnish", *arguments])
    except ChildFailedError as error:
        return _code({rank: failure.exitcode for rank, failure in error.failures.items()})
    except SignalException as error:
        return SIGNALLED + int(error.sigval)
    return 0


def _code(codes: dict[int, int]) -> int:
    """The exit code of ranks that ended with `codes`, negative ones of those that a signal ended."""
    if said := [code for _, code in sorted(codes.items()) if code > 0]:
        return said[0]
    ended = ", ".join(f"rank {rank} by {signal.Signals(-code).name}" for rank, code in sorted(codes.items()))
    print(f"burnish: ended: {ended}; run the same command again to go on", file=sys.stderr)
    return PartlyDone.exit_code
