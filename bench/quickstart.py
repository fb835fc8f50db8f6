"""The quickstart from start to report, in a process of its own: bench/results/quickstart.json."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from record import record

FOLDER = Path(__file__).parent / "scratch" / "quickstart"

if __name__ == "__main__":
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "burnish", "run", "quickstart", "--fresh", "--out", str(FOLDER)], check=True)
    seconds = time.perf_counter() - began
    report = json.loads((FOLDER / "report.json").read_text(encoding="utf-8"))
    quality, checks = report["quality"], report["checks"]
    values = {
        "seconds": seconds,
        "train_seconds": report["seconds"]["train"],
        "bits_per_byte": quality["bits_per_byte"],
        "bigram_bits_per_byte": quality["baseline_bits_per_byte"],
        "gain_percent": quality["better_than_baseline_percent"],
        "reload_equal": int(checks["weights_equal"] and checks["logits_max_abs_difference"] == 0.0),
    }
    print(record("quickstart", values), values)
