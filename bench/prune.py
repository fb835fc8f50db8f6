"""Pruning and training on, beside the unpruned model trained on as long: bench/results/prune.json.

A model of the quickstart's size learns; three tenths of its channels and a third of its key-value groups go; both train on
with the same rows and rates. Losses are of the held-out novel, in nats a token. Forward passes alternate in one process.
`--small` is a quarter of the size for a quick look, and writes nothing.
"""

from __future__ import annotations

import argparse
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from burnish.compress.sample_files import read_samples
from burnish.config import ModelConfig
from burnish.describe import Shapes, describe
from burnish.export.safetensors import save_folder
from burnish.layout import weight_bytes
from burnish.load.folder import open_folder
from burnish.load.model import load_folder
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.pruned_sizes import parameters_of, pruned_config, token_flops
from burnish.records import Records, read
from burnish.run import run
from burnish.techniques import prune
from record import record

SCRATCH = Path(__file__).parent / "scratch" / "prune"
KINDS = ("norm", "first-order", "activation")  # the last, which is the default, is trained on
SHARES = {"channels": 0.3, "groups": 0.334}
LIMIT = 2**40


@dataclass(frozen=True)
class Size:
    """The model, its data as overrides of the quickstart, and steps: to learn, and to train on."""

    model: dict[str, int]
    data: tuple[str, ...]
    steps: int
    more: int
    rows: int  # of samples
    rounds: int  # of forward passes


FULL = Size(
    {"hidden": 144, "ffn": 400, "layers": 5, "heads": 6, "kv_heads": 3, "head_dim": 24},
    ("data.seq=256",),
    1200,
    600,
    32,
    25,
)
SMALL = Size(
    {"hidden": 72, "ffn": 200, "layers": 2, "heads": 6, "kv_heads": 3, "head_dim": 12, "vocab": 512},
    (
        "data.train=asset:austen/northanger_abbey",
        "data.heldout=[]",
        "data.heldout_fraction=0.03",
        "data.seq=96",
        "machine.threads=1",
    ),
    80,
    40,
    8,
    5,
)


def trained(size: Size, folder: Path, model: dict[str, int], steps: int, more: tuple[str, ...] = ()) -> float:
    """Train into `folder`/model; the held-out loss at the end."""
    overrides = [f"model.{key}={value}" for key, value in model.items()]
    overrides += [
        *size.data,
        f"train.steps={steps}",
        "train.eval_every=0",
        "train.checkpoint_every=0",
        "export.prompts=[]",
    ]
    run("quickstart", [*overrides, *more], folder, fresh=True, quiet=True)
    return read(Records, folder / "records.json").evals[-1].loss


def held_out(size: Size, place: Path, model: Decoder, init: Path, name: str) -> float:
    """The loss of a model that is not trained on: of a run whose only step has a rate of next to nothing."""
    folder = place / name
    save_folder(model, model.shape, folder, tokenizer=init)
    still = (f"train.init={folder}", "optim.lr=1e-12", "optim.weight_decay=0", "schedule.warmup_steps=0")
    return trained(size, place / f"{name}_run", sizes_in(model.shape), 1, still)


def sizes_in(config: ModelConfig) -> dict[str, int]:
    """What the recipe must say of a model read from a folder."""
    return {name: getattr(config, name) for name in ("vocab", *FULL.model)}


def smaller(size: Size, base: Path, place: Path) -> tuple[dict[str, Any], Decoder]:
    """Losses right after pruning by each importance, and the model pruned by the last of them."""
    whole, config = load_folder(base, dtype=torch.float32)
    source = [part.split("=")[1] for part in size.data if part.startswith("data.train=")] or ["asset:austen/emma"]
    samples, _ = read_samples(open_folder(base), source, size.rows, 256)
    values: dict[str, Any] = {"samples_tokens": samples.tokens}
    for kind in KINDS:
        asked = prune.Config(**SHARES, importance=kind)
        began = time.perf_counter()
        table = prune.search(asked, whole, samples)
        values[f"{kind}_seconds"] = time.perf_counter() - began
        small = prune.apply(asked, whole, Mesh(), table)
        values[f"{kind}_loss"] = held_out(size, place, small, base, kind)
    values |= predictions(config, asked, small, place / KINDS[-1])
    return values, small


def predictions(config: ModelConfig, asked: prune.Config, small: Decoder, folder: Path) -> dict[str, Any]:
    """What was predicted of the smaller model before it was made, and how far it is that."""
    plain = describe(config, Shapes(1, 1))
    work = prune.predict(asked, plain, Mesh())
    bytes_ = weight_bytes(pruned_config(config, prune.decide(asked, plain)), "float32", False, LIMIT)
    held = sum(p.numel() for p in small.parameters())
    return {
        "parameters": config.parameters,
        "parameters_pruned": held,
        "parameters_share": held / config.parameters,
        "parameters_off": held - parameters_of(work),
        "file_bytes_off": (folder / "model.safetensors").stat().st_size - bytes_,
        "file_share": bytes_ / weight_bytes(config, "float32", False, LIMIT),
        "flops_share": token_flops(work) / token_flops(plain),
    }


@torch.no_grad()
def forward_times(whole: Decoder, small: Decoder, rounds: int) -> dict[str, float]:
    """Seconds of a forward of 8 rows of 96 tokens of each, in turn; the ratio is the median over rounds."""
    ids = torch.randint(whole.shape.vocab, (8, 96), generator=torch.Generator().manual_seed(0))
    spent: dict[str, list[float]] = {"whole": [], "pruned": []}
    for number in range(rounds + 2):
        for name, model in list({"whole": whole, "pruned": small}.items())[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            model.logits(model(ids))
            spent[name].append(time.perf_counter() - began)
    pairs = list(zip(spent["pruned"], spent["whole"], strict=True))[2:]
    return {
        "forward_whole_ms": 1000 * median(spent["whole"][2:]),
        "forward_pruned_ms": 1000 * median(spent["pruned"][2:]),
        "forward_speedup": 1 / median(a / b for a, b in pairs),
    }


@torch.no_grad()
def transformers_difference(folder: Path) -> float:
    """The largest difference of logits between ours and transformers' reading of a folder."""
    from transformers import AutoModelForCausalLM

    ours, config = load_folder(folder, dtype=torch.float32)
    theirs, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not any(info.values()), info
    ids = torch.randint(config.vocab, (3, 41), generator=torch.Generator().manual_seed(1))
    return float((ours.logits(ours(ids)) - theirs.eval()(ids).logits).abs().max())


def measure(size: Size, place: Path) -> dict[str, Any]:
    """All values of the bench; `place` is made anew."""
    shutil.rmtree(place, ignore_errors=True)
    began = time.perf_counter()
    base = place / "base" / "model"
    values: dict[str, Any] = {"whole_loss": trained(size, place / "base", size.model, size.steps), **SHARES}
    found, small = smaller(size, base, place)
    on = ("optim.lr=2e-3", "schedule.warmup_steps=20")
    whole, config = load_folder(base, dtype=torch.float32)
    values |= found | forward_times(whole, small, size.rounds)
    values["control_loss"] = trained(size, place / "control", sizes_in(config), size.more, (*on, f"train.init={base}"))
    init = f"train.init={place / KINDS[-1]}"
    values["pruned_loss"] = trained(size, place / "pruned", sizes_in(small.shape), size.more, (*on, init))
    values["above_control_percent"] = 100 * (values["pruned_loss"] / values["control_loss"] - 1)
    values["perplexity_above_percent"] = 100 * (math.exp(values["pruned_loss"] - values["control_loss"]) - 1)
    values["transformers_difference"] = transformers_difference(place / "pruned" / "model")
    values |= {"steps": size.steps, "more_steps": size.more, "seconds": time.perf_counter() - began}
    return values


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a quarter of the size; writes no result")
    small_only = parser.parse_args().small
    result = measure(SMALL if small_only else FULL, SCRATCH / ("small" if small_only else "full"))
    if not small_only:
        print(record("prune", result))
    for key, value in result.items():
        print(f"  {key:<28}{value:.5g}" if isinstance(value, float) else f"  {key:<28}{value}")
