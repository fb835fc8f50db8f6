"""Seconds to predict 60,000 candidates, and whether a prediction loads torch: bench/results/predict.json."""

from __future__ import annotations

import statistics
import sys
import time

from counted import ROOT
from record import record

sys.path.insert(0, str(ROOT / "tests" / "unit"))
from test_predict_speed import POINTS, candidates, predict

from burnish import simulate
from burnish.work import fold

if __name__ == "__main__":
    given, times = candidates(), []
    for _ in range(5):
        began = time.perf_counter()
        for stage in range(4):
            work = predict(stage, "bf16", **given)
            fold(work), sum(simulate.step_bytes(work).values())
        times.append(time.perf_counter() - began)
    values = {"seconds": statistics.median(times), "points": 4 * POINTS, "torch_loaded": int("torch" in sys.modules)}
    print(record("predict", values), values)
