"""Peak memory of ZeRO stages 1, 2 and 3 beside plain FSDP2, as its users write it, and DeepSpeed.

Two ranks over gloo on the CPU, fp32, the same model, rows and optimizer. Memory is that of live tensors on a rank after
each operation (`burnish.measure_live`), in the second and third step; a rank's own peak, the larger of the two.
DeepSpeed runs in an environment of its own under bench/scratch, which is made when it is not there; its buckets hold one
layer, which is its best setting for a small model.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "bench" / "scratch"
DEEPSPEED = "0.19.8"
WORLD, ROWS, SEQ, STEPS, LR, CLIP = 2, 2, 256, 3, 1e-3, 1.0
MICRO = 2  # micro batches a step, in the recorded result
MODEL = {"vocab": 4096, "hidden": 512, "ffn": 1408, "layers": 7, "heads": 8, "max_positions": SEQ, "tied": True}
ADAMW: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
LAYER = 4 * 512 * 512 + 3 * 512 * 1408 + 2 * 512  # elements of one layer
SIDES = ("burnish", "fsdp2", "deepspeed")
Step = Callable[[], float]


def batches(rank: int, micro: int) -> list[Any]:
    """This rank's micro batches, every label counted."""
    import numpy as np

    from burnish.data.batch import Batch

    draw = np.random.default_rng(rank)
    positions = np.tile(np.arange(SEQ), (ROWS, 1))
    return [Batch(*draw.integers(0, MODEL["vocab"], (2, ROWS, SEQ)), positions, None) for _ in range(micro)]


def make_loss() -> Any:
    """The model with its loss, the same weights on every rank and side."""
    import torch

    from burnish.config import ModelConfig
    from burnish.models.decoder import Decoder
    from burnish.train.loss import LanguageModelLoss

    return LanguageModelLoss(Decoder(ModelConfig(**MODEL), torch.Generator().manual_seed(0)))


def burnish_step(stage: int, rank: int, micro: int) -> Step:
    from burnish.mesh import Mesh
    from burnish.recipe import Optim
    from burnish.techniques import zero
    from burnish.train.optim import build_optimizer
    from burnish.train.step import plain_trainable

    loss = make_loss()
    trainable = plain_trainable(loss, build_optimizer(loss, Optim(lr=LR, **ADAMW)), CLIP)
    trainable = zero.apply(zero.Config(stage=stage), trainable, Mesh(dp=WORLD))
    given = batches(rank, micro)
    return lambda: trainable.step(given, LR).loss


def fsdp2_step(stage: int, rank: int, micro: int) -> Step:
    """PyTorch's documentation, word for word: shard each layer and the root, accumulate, clip, step."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from burnish.train.loss import batch_tensors

    loss: Any = make_loss()
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in (*loss.model.layers, loss):
        fully_shard(layer, mesh=mesh, reshard_after_forward=stage == 3)
    optimizer = torch.optim.AdamW(loss.parameters(), lr=LR, fused=True, **ADAMW)
    given = batches(rank, micro)

    def step() -> float:
        total = 0.0
        for index, batch in enumerate(given):
            if stage == 1:
                loss.set_requires_gradient_sync(index == micro - 1)
            part = loss(*batch_tensors(batch, torch.device("cpu"))) / (batch.label_count * micro)
            part.backward()
            total += part.item()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def deepspeed_step(stage: int, rank: int, micro: int) -> Step:
    import deepspeed
    import torch

    from burnish.train.loss import batch_tensors

    zero = {"stage": stage, "reduce_bucket_size": LAYER, "allgather_bucket_size": LAYER, "overlap_comm": False}
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": LAYER, "stage3_max_live_parameters": 2 * LAYER}
        zero |= {"stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 1024}
    settings = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": micro,
        "gradient_clipping": CLIP,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "torch_adam": True, **ADAMW}},
    }
    loss = make_loss()
    engine, *_ = deepspeed.initialize(model=loss, model_parameters=loss.parameters(), config=settings)
    given = batches(rank, micro)

    def step() -> float:
        total = 0.0
        for batch in given:
            part = engine(*batch_tensors(batch, torch.device("cpu"))) / batch.label_count
            engine.backward(part)
            engine.step()
            total += part.item() / micro
        return total

    return step


MAKERS = {"burnish": burnish_step, "fsdp2": fsdp2_step, "deepspeed": deepspeed_step}


def work(side: str, stage: int, micro: int) -> None:
    """One rank of one side: prints its peak and its mean loss in the last step."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if side == "deepspeed":
        import deepspeed

        deepspeed.init_distributed("gloo", verbose=False)
    else:
        dist.init_process_group("gloo")
    from burnish.measure_live import LiveBytes

    step = MAKERS[side](stage, dist.get_rank(), micro)
    step()
    with LiveBytes() as live:
        losses = [step() for _ in range(STEPS - 1)]
    loss = torch.tensor(losses[-1])
    dist.all_reduce(loss)
    gathers = forward_gathers(step) if side == "burnish" and stage == 2 else 0
    print(
        "RESULT "
        + json.dumps({"peak": live.peak, "held": live.start, "loss": loss.item() / WORLD, "gathers": gathers}),
        flush=True,
    )
    dist.barrier()
    dist.destroy_process_group()


def run(side: str, stage: int, micro: int) -> dict[str, float]:
    """Start the ranks of one side and give the largest of what they found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    python = deepspeed_python() if side == "deepspeed" else Path(sys.executable)
    common = os.environ | {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "LOCAL_SIZE": str(WORLD),
    }
    common |= {"TORCH_EXTENSIONS_DIR": str(WORK / "extensions"), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    command = [str(python), __file__, "--work", side, str(stage), "--micro", str(micro)]
    log = WORK / f"{side}-{stage}.log"
    WORK.mkdir(exist_ok=True)
    with log.open("w") as errors:
        started = [
            subprocess.Popen(
                command,
                env=common | {"RANK": str(r), "LOCAL_RANK": str(r)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            for r in range(WORLD)
        ]
        try:
            outputs = [process.communicate(timeout=600)[0] for process in started]
        finally:
            for process in started:
                process.kill()
    found = [json.loads(line[7:]) for out in outputs for line in out.splitlines() if line.startswith("RESULT ")]
    if len(found) != WORLD:
        raise SystemExit(f"{side}, stage {stage}: a rank gave no result; see {log}")
    return {key: max(rank[key] for rank in found) for key in found[0]}


def forward_gathers(step: Step) -> int:
    """All-gathers seen while the loss is computed in one step."""
    from torch import nn
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: Counter[str] = Counter()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen[func._schema.name] += 1
            return func(*args, **(kwargs or {}))

    from burnish.train.loss import LanguageModelLoss

    plain = nn.Module.__call__

    def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(module, LanguageModelLoss):
            return plain(module, *args, **kwargs)
        with Watch():
            return plain(module, *args, **kwargs)

    nn.Module.__call__ = watched  # type: ignore[method-assign]
    try:
        step()
    finally:
        nn.Module.__call__ = plain  # type: ignore[method-assign]
    assert seen["aten::mm"]
    return sum(count for name, count in seen.items() if "allgather" in name)


def deepspeed_python() -> Path:
    """The interpreter of DeepSpeed's environment, made at first use."""
    folder = WORK / "deepspeed"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print("making DeepSpeed's environment under bench/scratch (minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*install, "torch", "numpy", "pydantic", "pyyaml", "setuptools", "wheel", "ninja"], check=True)
        subprocess.run([*install, "--no-build-isolation", f"deepspeed=={DEEPSPEED}"], check=True)
        (folder / "ready").touch()
    return python


def formulas() -> Iterator[tuple[str, int, int]]:
    """(stage, predicted, published) bytes of the paper's example: 7.5 billion parameters on 64 ranks."""
    from burnish.mesh import Mesh
    from burnish.techniques import zero
    from burnish.work import Block, Bytes, Op, Saved, Work, state_bytes

    count, ranks = 7_500_000_000, 64
    for stage, optimizer, whole, split in ((1, 8, 4, 12), (2, 8, 2, 14), (3, 10, 0, 16)):
        layer = Block("layer", 1, (Op("all", ((count, 1),)),), entering=Saved("input", "activation", 0))
        stack = Bytes(parameter=4, compute=2, gradient=2, optimizer=optimizer, optimizer_tensor=0)
        described = Work((layer,), micro=2, tokens=1, step_tokens=2, bytes=stack)
        predicted = sum(state_bytes(zero.predict(zero.Config(stage=stage), described, Mesh(dp=ranks))).values())
        yield f"{whole} + {split}/N", int(predicted), count * (whole * ranks + split) // ranks


def main(stages: list[int], sides: list[str], micro: int) -> None:
    """Run every side at every stage and write the result."""
    from record import record

    values: dict[str, float | int | bool | str] = {"micro_batches": micro, "deepspeed_version": DEEPSPEED}
    for stage in stages:
        found = {}
        for side in sides:
            found[side] = run(side, stage, micro)
            values |= {f"stage{stage}_{key}_{side}": value for key, value in found[side].items() if key != "gathers"}
            mib = {key: found[side][key] / 2**20 for key in ("peak", "held")}
            print(f"stage {stage}  {side:<10} peak {mib['peak']:7.1f} MiB  between steps {mib['held']:6.1f} MiB  "
                  f"loss {found[side]['loss']:.5f}", flush=True)  # fmt: skip
        if peers := [found[side]["peak"] for side in sides if side != "burnish"]:
            values[f"stage{stage}_ratio"] = found["burnish"]["peak"] / min(peers)
            print(f"stage {stage}  against the better: {values[f'stage{stage}_ratio']:.3f}", flush=True)
        if stage == 2:
            values["stage2_forward_gathers"] = int(found["burnish"]["gathers"])
    values["formulas_missed"] = sum(predicted != published for _, predicted, published in formulas())
    if (sides, stages, micro) == (list(SIDES), [1, 2, 3], MICRO):
        record("zero_memory", values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--micro", type=int, default=MICRO, help="micro batches a step")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work[0], int(given.work[1]), given.micro)
    else:
        main(given.stages, given.sides, given.micro)
