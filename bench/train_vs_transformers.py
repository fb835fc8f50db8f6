"""Training speed and peak memory beside transformers' Trainer: SmolLM2-135M's shape, fp32, same weights, rows and settings.

Each side is a process of its own. They step in turn, one step each, in changing order, so that whatever slows the
machine slows both. Peak memory is a process's largest resident set, interpreter and libraries included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SEQ, VOCAB, LR, BETAS, CLIP = 512, 49152, 1e-4, (0.9, 0.999), 1.0
SIDES = ("burnish", "transformers", "burnish_compiled")
LOSS_TOLERANCE = 1e-3


def rows(steps: int, batch: int) -> Any:
    """Token ids [steps * batch, SEQ], the same for everyone."""
    import numpy as np

    return np.random.default_rng(0).integers(0, VOCAB, (steps * batch, SEQ))


def resident(key: str = "VmRSS") -> int:
    """Resident memory of this process in bytes; VmHWM is its largest so far."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(key))) * 1024


def say(**values: Any) -> None:
    """Tell the parent."""
    print(json.dumps(values), flush=True)


def wait_for_turn() -> None:
    """Block until the parent says that it is this side's turn; without a parent there is nothing left to do."""
    if not sys.stdin.readline():
        sys.exit("the bench ended early")


def write_weights(folder: Path) -> None:
    """A model folder with random weights."""
    import torch

    from burnish.config import ModelConfig
    from burnish.export.safetensors import save_folder
    from burnish.models.decoder import Decoder

    shape = ModelConfig(
        vocab=VOCAB, hidden=576, ffn=1536, layers=30, heads=9, kv_heads=3, rope_theta=100000.0, max_positions=8192
    )
    save_folder(Decoder(shape, torch.Generator().manual_seed(0)), shape, folder)


def burnish_side(folder: Path, steps: int, batch: int, compiled: bool) -> None:
    """Our own step, as `burnish train` takes it."""
    import numpy as np

    from burnish.data.batch import IGNORED, Batch
    from burnish.load.model import load_folder
    from burnish.recipe import Optim
    from burnish.train.compiled import compile_layers
    from burnish.train.loss import LanguageModelLoss
    from burnish.train.optim import build_optimizer, fill_state
    from burnish.train.step import plain_trainable

    before = resident()
    model, _ = load_folder(folder)
    if compiled:
        compile_layers(model)
    loss = LanguageModelLoss(model)
    settings = Optim(lr=LR, betas=BETAS, weight_decay=0.0, clip=CLIP)
    trainable = plain_trainable(loss, build_optimizer(loss, settings), CLIP)
    fill_state(trainable.optimizer)  # as the loop does
    ids = rows(steps, batch)
    labels = np.concatenate([ids[:, 1:], np.full((len(ids), 1), IGNORED)], axis=1)
    positions = np.broadcast_to(np.arange(SEQ), (batch, SEQ))
    say(ready=before)
    for step in range(steps):
        wait_for_turn()
        began = time.perf_counter()
        part = slice(step * batch, (step + 1) * batch)
        result = trainable.step([Batch(ids[part], labels[part], positions, None)], LR)
        say(seconds=time.perf_counter() - began, loss=result.loss, peak=resident("VmHWM"))


def transformers_side(folder: Path, steps: int, batch: int) -> None:
    """The Trainer of transformers with its defaults: sdpa attention, fused AdamW. Nothing is logged, saved, evaluated."""
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

    before = resident()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")

    class Turns(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            wait_for_turn()
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seconds = time.perf_counter() - self.began
            say(seconds=seconds, loss=trainer.last_loss.item(), peak=resident("VmHWM"))

    class Watched(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            self.last_loss = super().training_step(*args, **kwargs)
            return self.last_loss

    settings = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=steps,
        per_device_train_batch_size=batch,
        learning_rate=LR,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=CLIP,
        train_sampling_strategy="sequential",
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    data = [{"input_ids": row, "labels": row} for row in torch.from_numpy(rows(steps, batch))]
    trainer = Watched(model=model, args=settings, train_dataset=data, callbacks=[Turns()])
    say(ready=before)
    trainer.train()


class Side:
    """A child process that takes a step when told to."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.peak = 0
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--side", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        self.before_model = int(self._answer()["ready"])

    def step(self) -> None:
        """Let the child take one step and note what it says."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.losses.append(answer["loss"])
        self.seconds.append(answer["seconds"])
        self.peak = int(answer["peak"])

    def close(self) -> None:
        """Wait for the child's own end."""
        self.process.communicate(timeout=60)

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.name} ended early with code {self.process.wait()}")


def measure(names: list[str], folder: Path, steps: int, warmup: int, batch: int) -> list[Side]:
    """Step the sides in turn; the first `warmup` steps of each are not timed."""
    arguments = ["--folder", str(folder), "--total", str(warmup + steps), "--batch", str(batch)]
    sides = [Side(name, arguments) for name in names]
    for number in range(warmup + steps):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.step()
        print("  ".join(f"{s.name} {s.seconds[-1]:.2f} s loss {s.losses[-1]:.5f}" for s in sides), flush=True)
    for side in sides:
        side.close()
        del side.seconds[:warmup]
    return sides


def summary(sides: list[Side], batch: int) -> dict[str, float | int | bool]:
    """The values of the result file; ratios are ours over the Trainer's."""
    by_name = {side.name: side for side in sides}
    ours, theirs = by_name["burnish"], by_name["transformers"]
    values: dict[str, float | int | bool] = {"batch": batch, "seq": SEQ, "steps": len(ours.seconds)}
    for side in sides:
        values[f"tokens_per_second_{side.name}"] = batch * SEQ / statistics.median(side.seconds)
        values[f"peak_bytes_{side.name}"] = side.peak
        values[f"bytes_before_model_{side.name}"] = side.before_model
    differences = [abs(a - b) for side in sides for a, b in zip(side.losses, theirs.losses, strict=True)]
    values["loss_difference"] = max(differences)
    values["memory_ratio"] = ours.peak / theirs.peak
    for side in sides:
        if side is not theirs:
            # Step by step: neighbours in time share whatever else the machine was doing.
            ratio = statistics.median(b / a for a, b in zip(side.seconds, theirs.seconds, strict=True))
            values["speed_ratio" + side.name.removeprefix("burnish")] = ratio
    return values


def report(values: dict[str, float | int | bool]) -> Iterator[str]:
    """Lines for the terminal."""
    for name in SIDES:
        if f"peak_bytes_{name}" in values:
            peak, before = values[f"peak_bytes_{name}"] / 2**30, values[f"bytes_before_model_{name}"] / 2**30
            speed = values[f"tokens_per_second_{name}"]
            yield f"{name:<17} {speed:7.1f} tokens/s   peak {peak:5.2f} GiB ({before:.2f} before the model)"
    yield f"peak memory {values['memory_ratio']:.3f}x, tokens/s {values['speed_ratio']:.3f}x of transformers' Trainer"
    if "speed_ratio_compiled" in values:
        yield f"compiled: tokens/s {values['speed_ratio_compiled']:.3f}x"
    yield f"largest difference of a loss: {values['loss_difference']:.2g}"


def main() -> int:
    """Measure, print and record; 1 when the losses disagree."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=5, help="timed steps of each side")
    options.add_argument("--warmup", type=int, default=1)
    options.add_argument("--batch", type=int, default=8, help="rows a step")
    options.add_argument("--compile", action="store_true", help="a third process, ours compiled; recorded apart")
    options.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--total", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.side:
        run: dict[str, Callable[[], None]] = {
            "burnish": lambda: burnish_side(given.folder, given.total, given.batch, compiled=False),
            "burnish_compiled": lambda: burnish_side(given.folder, given.total, given.batch, compiled=True),
            "transformers": lambda: transformers_side(given.folder, given.total, given.batch),
        }
        run[given.side]()
        return 0
    from record import record

    names = ["burnish", "transformers", *(["burnish_compiled"] if given.compile else [])]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_weights(folder / "model")
        values = summary(measure(names, folder / "model", given.steps, given.warmup, given.batch), given.batch)
    print("\n".join(report(values)))
    name = "train_vs_transformers_compiled" if given.compile else "train_vs_transformers"
    print(f"written to {record(name, values)}")
    return 0 if values["loss_difference"] <= LOSS_TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
