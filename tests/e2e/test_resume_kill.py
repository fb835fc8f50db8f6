"""A real training process, killed where it happens to be and started again, gives the losses of one left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.train.metrics import read_metrics

STEPS = 40
TEXT = "Emma Woodhouse, handsome, clever, and rich, with a comfortable home and happy disposition. "

SCRIPT = f"""
import sys, time
from pathlib import Path
import numpy as np, torch
from burnish.config import ModelConfig
from burnish.data.packing import Corpus, Rows
from burnish.data.sampler import eval_batches, step_batches
from burnish.errors import BurnishError
from burnish.models.decoder import Decoder
from burnish.recipe import Optim, Schedule
from burnish.train.evaluate import evaluate
from burnish.train.loop import Hooks, Job, train
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer, lr_at
from burnish.train.step import plain_trainable

documents = [np.frombuffer(({TEXT!r} * n).encode(), dtype=np.uint8).astype(np.uint16) for n in (1, 5, 2, 9)]
rows = Rows(Corpus.of(documents, eos=255), seq=24)
torch.manual_seed(3)
shape = ModelConfig(vocab=256, hidden=32, ffn=48, layers=2, heads=4, kv_heads=2, eos=255, init_std=0.05)
loss = LanguageModelLoss(Decoder(shape))
trainable = plain_trainable(loss, build_optimizer(loss, Optim(lr=0.01)), clip=1.0)
schedule = Schedule(warmup_steps=3)

def heldout():
    score = evaluate(loss, eval_batches(rows, 16))
    return score.loss, score.bits_per_byte(len(rows) * 24)

job = Job(
    steps={STEPS},
    batches=lambda step: step_batches(rows, 5, step, 6, 4),
    lr=lambda step: lr_at(step, schedule, {STEPS}, 0.01),
    folder=Path(sys.argv[1]),
    global_batch=6,
    identity={{"seed": 5}},
    evaluate=heldout,
    eval_every=7,
    checkpoint_every=2,
)
pause = float(sys.argv[2])
try:
    train(trainable, job, Hooks(stepped=lambda progress: time.sleep(pause), noted=lambda text: print(text, flush=True)))
except BurnishError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def _start(script: Path, folder: Path, pause: float = 0.0) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(folder), str(pause)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def _signal_at(process: subprocess.Popen, folder: Path, step: int, number: int, later: float) -> None:
    """Send a signal `later` seconds after the log has reached `step`: inside a step, a checkpoint or a log line."""
    log = folder / "metrics.jsonl"
    until = time.monotonic() + 120
    while not log.exists() or log.read_bytes().count(b'"kind": "step"') < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.001)
    time.sleep(later)
    process.send_signal(number)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def undisturbed(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    _finish(_start(script, folder))
    return folder


def _same_run(folder: Path, undisturbed: Path) -> None:
    steps, evals = read_metrics(folder / "metrics.jsonl")
    expected, expected_evals = read_metrics(undisturbed / "metrics.jsonl")
    assert [step.step for step in steps] == list(range(1, STEPS + 1))
    for ours, theirs in zip(steps, expected, strict=True):
        assert (ours.loss, ours.grad_norm, ours.lr) == (theirs.loss, theirs.grad_norm, theirs.lr), ours.step
    assert evals == expected_evals
    assert steps[-1].loss < 0.7 * steps[0].loss  # it did learn something
    last = f"checkpoints/step-{STEPS:06d}"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (folder / last / name).read_bytes() == (undisturbed / last / name).read_bytes()
    assert not list((folder / "checkpoints").glob(".*"))


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_flt_013_killed_at_random_and_resumed_equals_undisturbed(
    script: Path, undisturbed: Path, tmp_path: Path, kills: int
) -> None:
    draw = random.Random(kills)
    targets = sorted(draw.sample(range(1, STEPS - 4), kills))
    for target in targets:
        process = _start(script, tmp_path, pause=0.02)
        _signal_at(process, tmp_path, target, signal.SIGKILL, later=draw.uniform(0, 0.04))
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    _finish(_start(script, tmp_path))
    _same_run(tmp_path, undisturbed)


def test_terminated_run_leaves_with_its_code_and_goes_on(script: Path, undisturbed: Path, tmp_path: Path) -> None:
    process = _start(script, tmp_path, pause=0.02)
    _signal_at(process, tmp_path, 6, signal.SIGTERM, later=0.0)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "saved in" in err
    assert "run the same command again" in err
    assert "Traceback" not in err
    done = len(read_metrics(tmp_path / "metrics.jsonl")[0])
    assert 6 <= done < STEPS
    assert (tmp_path / "checkpoints" / f"step-{done:06d}").is_dir()
    _finish(_start(script, tmp_path))
    _same_run(tmp_path, undisturbed)


def test_damaged_last_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(
    script: Path, undisturbed: Path, tmp_path: Path
) -> None:
    process = _start(script, tmp_path, pause=0.02)
    _signal_at(process, tmp_path, 9, signal.SIGKILL, later=0.01)
    process.communicate(timeout=60)
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    content = (newest / "model.safetensors").read_bytes()
    (newest / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert f"skipped {newest}: model.safetensors is damaged" in _finish(_start(script, tmp_path))
    _same_run(tmp_path, undisturbed)
