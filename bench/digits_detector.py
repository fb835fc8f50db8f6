"""`burnish run digits-detector` as a user runs it: bench/results/digits_detector.json.

Learned on scenes of some digits, judged on scenes of others. Pictures are fetched before the clock starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from burnish.load.picture_sets import picture_set
from record import record


def main() -> None:
    """Measure and record."""
    picture_set("digits")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        began = time.perf_counter()
        command = [sys.executable, "-m", "burnish", "run", "digits-detector", "--out", str(folder)]
        code = subprocess.run(command, check=False).returncode
        seconds = time.perf_counter() - began
        quality = json.loads((folder / "report.json").read_text(encoding="utf-8"))["quality"]
    values = {key: value for key, value in quality.items() if isinstance(value, float | int)}
    values |= {"seconds": seconds, "exit_code": code}
    values["pruned.drop50"] = values["control.map50"] - values["pruned.map50"]
    values["cut.drop50"] = values["trained.map50"] - values["cut.map50"]
    print(record("digits_detector", values), values)


if __name__ == "__main__":
    main()
