"""Many ranks: losses beside one process, checkpoints on other mappings, and how soon all ranks end when one fails.

Writes bench/results/many_ranks.json. The small run is that of the tests; ranks share the cores of this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from record import record

WORK = Path(__file__).parent / "scratch" / "many_ranks"
RECIPE = [
    "quickstart",
    "model.layers=2",
    "model.hidden=64",
    "model.ffn=160",
    "model.vocab=512",
    "data.train=asset:austen/northanger_abbey",
    "data.heldout=[]",
    "data.heldout_fraction=0.05",
    "data.seq=96",
    "train.global_batch=12",
    "train.micro_batch=2",
    "train.checkpoint_every=4",
    "schedule.warmup_steps=3",
    "export.prompts=[]",
]
STEPS = 12
MAPPINGS = {
    "dp2": (2, []),
    "dp3": (3, []),
    "dp4_zero3": (4, ["parallel.zero=3"]),
    "dp4_zero2_pairs": (4, ["parallel.zero=2", "parallel.shard=2"]),
    "tp2": (2, ["parallel.tp=2"]),
    "pp2": (2, ["parallel.pp=2"]),
    "tp2_pp2": (4, ["parallel.tp=2", "parallel.pp=2"]),
}
MOVES = ["dp4_zero3", "tp2_pp2", "dp3"]  # mappings of one run, in turn
FAILURES = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
AT = 5  # step at which a rank is ended


def command(folder: Path, steps: int, ranks: int, settings: list[str]) -> list[str]:
    words = [sys.executable, "-m", "burnish", "train", *RECIPE, f"train.steps={steps}", *settings, "--out", str(folder)]
    return [*words, *(["--nproc", str(ranks)] if ranks > 1 else [])]


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


def apart(one: list[float], other: list[float]) -> float:
    """The largest difference of losses."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def fails(name: str, number: signal.Signals) -> tuple[float, str]:
    """Seconds until all ranks have ended after one of three got a signal, and what was said."""
    folder = WORK / name
    process = subprocess.Popen(
        command(folder, 4000, 3, []), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    log = folder / "metrics.jsonl"
    while not log.exists() or log.read_bytes().count(b'"kind": "step"') < AT:
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    began = time.monotonic()
    os.kill(int(children[-1]), number)
    said = process.communicate(timeout=120)[1]
    line = next(line for line in said.splitlines() if line.startswith("burnish:"))
    return time.monotonic() - began, line.replace(f"{WORK}{os.sep}", "")


def moved() -> list[float]:
    """Losses of a run that is stopped and goes on with another mapping twice, by the step it has to reach."""
    folder = WORK / "moved"
    for number, name in enumerate(MOVES, 1):
        ranks, settings = MAPPINGS[name]
        words = command(folder, STEPS, ranks, settings)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while number < len(MOVES) and process.poll() is None:
            if (folder / "metrics.jsonl").exists() and len(losses(folder)) >= number * STEPS // len(MOVES):
                process.terminate()
                break
            time.sleep(0.02)
        process.wait()
    return losses(folder)


if __name__ == "__main__":
    shutil.rmtree(WORK, ignore_errors=True)
    subprocess.run(command(WORK / "one", STEPS, 1, []), check=True, capture_output=True)
    wanted = losses(WORK / "one")
    values: dict[str, float | str] = {}
    for name, (ranks, settings) in MAPPINGS.items():
        subprocess.run(command(WORK / name, STEPS, ranks, settings), check=True, capture_output=True)
        values[f"apart.{name}"] = apart(wanted, losses(WORK / name))
    values["apart.moved"] = apart(wanted, moved())
    values["apart.largest"] = max(value for key, value in values.items() if isinstance(value, float))
    for name, number in FAILURES.items():
        values[f"seconds.{name}"], values[f"said.{name}"] = fails(name, number)
    for key, value in values.items():
        print(f"{key:24}{value}")
    print(record("many_ranks", values))
