"""Kill -9 at random steps and resume, five times over: bench/results/kill_resume.json.

Each round kills the command several times at steps drawn from a fixed seed, lets it finish, and compares every loss
with those of a run that was left alone.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from record import record

WORK = Path(__file__).parent / "scratch" / "kill_resume"
ROUNDS, KILLS, STEPS = 5, 3, 60
RECIPE = [
    "quickstart",
    "model.layers=2",
    "model.vocab=512",
    "data.train=asset:austen/northanger_abbey",
    "data.heldout=[]",
    "data.heldout_fraction=0.05",
    "data.seq=128",
    f"train.steps={STEPS}",
    "train.global_batch=8",
    "train.micro_batch=3",
    "train.eval_every=20",
    "train.checkpoint_every=7",
    "schedule.warmup_steps=5",
    "export.prompts=[]",
]


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "burnish", "run", *RECIPE, "--out", str(folder)]


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


def kill_at(folder: Path, step: int) -> None:
    """Start the run and kill it as soon as its log holds `step` steps."""
    process = subprocess.Popen(command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = folder / "metrics.jsonl"
    while process.poll() is None:
        if log.exists() and log.read_bytes().count(b'"kind": "step"') >= step:
            process.kill()
        time.sleep(0.002)


if __name__ == "__main__":
    shutil.rmtree(WORK, ignore_errors=True)
    subprocess.run(command(WORK / "alone"), check=True, capture_output=True)
    wanted = losses(WORK / "alone")
    draw = random.Random(0)
    equal, killed = 0, []
    for number in range(ROUNDS):
        folder = WORK / f"round-{number}"
        steps = sorted(draw.sample(range(1, STEPS), KILLS))
        for step in steps:
            kill_at(folder, step)
        subprocess.run(command(folder), check=True, capture_output=True)
        equal += losses(folder) == wanted
        killed.append(steps)
        print(f"round {number + 1}: killed at {steps}: {'equal' if losses(folder) == wanted else 'DIFFERENT'}")
    print(record("kill_resume", {"equal_runs": equal, "rounds": ROUNDS, "kills": killed, "steps": STEPS}))
