"""How fast the command line answers, and whether `--help` stays free of heavy imports: bench/results/command_line.json."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from record import record

HEAVY = ("torch", "numpy", "pydantic")
BURNISH = [str(Path(sys.executable).parent / "burnish")]


def seconds(*arguments: str, runs: int = 5) -> float:
    """Median wall time of a whole process, after one run that fills the disk cache."""
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run([*BURNISH, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def heavy_imports() -> int:
    """How many of HEAVY `burnish --help` loads."""
    code = f"import sys, burnish.cli; burnish.cli.code_of(['--help']); print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    return len(eval(done.stdout.strip().splitlines()[-1], {"__builtins__": {}}))


if __name__ == "__main__":
    values = {
        "help_seconds": seconds("--help"),
        "recipe_list_seconds": seconds("recipe", "list"),
        "plan_seconds": seconds("plan", "llama3-8b-h100"),
        "heavy_imports": heavy_imports(),
    }
    print(record("command_line", values), values)
