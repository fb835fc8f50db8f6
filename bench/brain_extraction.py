"""`burnish run brain-extraction` as a user runs it: bench/results/brain_extraction.json.

Learned on MNI152's head, judged on Colin27's in its own grid. Images are fetched before the clock starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from burnish.load.image_sets import IMAGE_SETS, image_set
from record import record


def main() -> None:
    """Measure and record."""
    for name in IMAGE_SETS:
        image_set(name)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        began = time.perf_counter()
        command = [sys.executable, "-m", "burnish", "run", "brain-extraction", "--out", str(folder)]
        code = subprocess.run(command, check=False).returncode
        seconds = time.perf_counter() - began
        quality = json.loads((folder / "report.json").read_text(encoding="utf-8"))["quality"]
    values = {key: value for key, value in quality.items() if isinstance(value, float | int)}
    values |= {"seconds": seconds, "exit_code": code, "dice": values["trained.dice"]}
    print(record("brain_extraction", values), values)


if __name__ == "__main__":
    main()
