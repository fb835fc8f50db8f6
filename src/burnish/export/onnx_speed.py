"""Which of two ONNX files is faster here: both read the same batch in turn, and the median of the ratios is told."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from burnish.export.onnx_session import opened

ROWS, LENGTH, ROUNDS = 4, 64, 7


def times_faster(one: Path, other: Path, rounds: int = ROUNDS, threads: int = 0) -> float:
    """Seconds of `other` over those of `one`, each run once to warm up; more than 1: `one` is the faster."""
    sessions = [opened(path, threads) for path in (one, other)]
    given = batch(sessions[0], ROWS, LENGTH)
    ratios = []
    for number in range(rounds + 1):
        seconds = [_seconds(session, given) for session in sessions]
        ratios += [seconds[1] / seconds[0]] if number else []
    return statistics.median(ratios)


def batch(session: Any, rows: int, length: int) -> dict[str, Any]:
    """Inputs of a decoder's or encoder's file: whole rows of small token ids, nothing cached."""
    found = {}
    for given in session.get_inputs():
        if given.name.startswith("past_"):
            found[given.name] = np.zeros((rows, given.shape[1], 0, given.shape[3]), np.float32)
        else:
            found[given.name] = np.full((rows, length), int(given.name == "attention_mask"), np.int64)
    return found


def _seconds(session: Any, given: dict[str, Any]) -> float:
    began = time.perf_counter()
    session.run(None, given)
    return time.perf_counter() - began
