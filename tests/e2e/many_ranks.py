"""What tests of many ranks from the command line share: a small run, and looking at it while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SMALL = [
    "quickstart",
    "model.layers=2",
    "model.hidden=64",
    "model.ffn=160",
    "model.vocab=512",
    "data.train=asset:austen/northanger_abbey",
    "data.heldout=[]",
    "data.heldout_fraction=0.05",
    "data.seq=96",
    "train.steps=12",
    "train.global_batch=12",
    "train.micro_batch=2",
    "train.eval_every=6",
    "train.checkpoint_every=4",
    "schedule.warmup_steps=3",
    "export.prompts=[]",
]
LONG = [*SMALL, "train.steps=4000"]  # ended by whoever starts it


def start(*arguments: str, cwd: Path, **settings: object) -> subprocess.Popen[str]:
    """The command line in the background; `settings` are those of Popen."""
    command = [sys.executable, "-m", "burnish", *arguments]
    return subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **settings)  # type: ignore[call-overload,no-any-return]


def end(process: subprocess.Popen[str], limit: float = 150) -> tuple[int, list[str]]:
    """The exit code, and the lines on standard error that stopped it."""
    _, err = process.communicate(timeout=limit)
    return process.returncode, [line for line in err.splitlines() if line.startswith("burnish:") or "Error" in line]


def losses(run: Path) -> dict[int, float]:
    """Loss by step, as far as it has been written."""
    if not (run / "metrics.jsonl").exists():
        return {}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["kind"] == "step"}


def at_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Wait until a run has made a step."""
    until = time.monotonic() + 120
    while len(losses(run)) < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)


def ranks_of(launcher: subprocess.Popen[str]) -> list[int]:
    """Process ids of the ranks, in their order."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    found = {}
    for child in map(int, children):
        words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        named = dict(word.split(b"=", 1) for word in words if b"=" in word)
        if b"RANK" in named:
            found[int(named[b"RANK"])] = child
    return [found[rank] for rank in sorted(found)]


def alive(processes: list[int]) -> list[int]:
    """Those that still run."""
    return [
        p for p in processes if Path(f"/proc/{p}/stat").exists() and " Z " not in Path(f"/proc/{p}/stat").read_text()
    ]


def send(process: int, number: signal.Signals) -> None:
    os.kill(process, number)
