"""AWQ here beside llm-compressor's: bench/results/awq_vs_llmcompressor.json.

The same float folder, the same rows of tokens, as many candidates, the same format: asymmetric 4-bit integers in groups. Both
folders are opened and judged by the same code. Each runs in a process of its own; memory is what it takes above the loaded
model. The peer stays in an environment of its own. Bounded: SmolLM2 with few rows and candidates, and a small trained model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from awq import HELD_OUT, LONG, NOVELS, TRAINED, as_floats, flat, window_perplexity
from burnish.compress import awq_apply, awq_search
from burnish.compress.sample_files import read_samples
from burnish.compress.samples import Samples
from burnish.data.cache import cache_folder
from burnish.export.compressed_tensors import save_compressed
from burnish.export.safetensors import save_folder
from burnish.load.model import load_folder, load_model
from burnish.load.source import open_model
from burnish.mesh import Mesh
from burnish.run import run as run_recipe
from burnish.techniques import awq
from record import record
from watched import watched

PEER = "llmcompressor==0.14.0.1"
PYTHON = cache_folder() / "peers" / PEER.replace("==", "-") / "bin" / "python"
YOUNG_STEPS = 300
YOUNG = Path(__file__).parent / "scratch" / "awq" / f"young-{YOUNG_STEPS}"
# Model -> (group, rows, tokens a row, ratios of each of two families, rows to judge by)
CASES = {
    "smollm2": (64, 4, LONG, 5, 8),
    str(YOUNG / "model"): (64, 16, 256, 10, 64),
    str(TRAINED): (32, 16, 256, 10, 64),
}
NAMES = dict(zip(CASES, ("smollm2", "young", "trained"), strict=True))
# 20 million parameters, which are to learn for minutes: it is the sizes that it is here for.
YOUNG_SIZES = {"hidden": 384, "ffn": 1024, "layers": 12, "heads": 6, "kv_heads": 3, "head_dim": 64}
LOADED = (awq_apply, awq_search)  # as the peer's modules are before its clock starts
THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))


def young() -> None:
    """Train the model of 20 million parameters, unless it is there."""
    if (YOUNG / "model").exists():
        return
    sizes = [f"model.{key}={value}" for key, value in YOUNG_SIZES.items()]
    steps = [
        f"train.steps={YOUNG_STEPS}",
        "optim.lr=1e-3",
        "schedule.warmup_steps=5",
        "train.eval_every=0",
        "train.checkpoint_every=0",
    ]
    batch = ["data.seq=256", "train.global_batch=8", "train.micro_batch=8", "export.prompts=[]"]
    with torch.enable_grad():
        run_recipe("quickstart", [*sizes, *steps, *batch], YOUNG, fresh=True, quiet=True)


def peer_python() -> Path:
    """The peer's interpreter; its environment is made on the first call (several minutes)."""
    if not (PYTHON.parent / "pip").exists() or subprocess.run([PYTHON, "-c", "import llmcompressor"]).returncode:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PYTHON.parents[1])], check=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "-q", PEER], check=True)
    return PYTHON


def ours(folder: str, rows: str, out: str, ratios: int, group: int) -> None:
    """What the peer's script does, here."""
    torch.set_num_threads(THREADS)
    ids = json.loads(Path(rows).read_text())
    model, config = load_folder(folder, dtype=torch.float32)
    settings = awq.Config.model_validate({"group": group, "symmetric": False, "ratios": ratios, "dtype": "float32"})
    samples = Samples.of(ids)
    found: dict[str, float] = {}
    with watched(found):
        table = awq.search(settings, model, samples)
        awq.apply(settings, model, Mesh(), table)
    save_compressed(model, config, out)
    print(json.dumps(found))


def run(command: list[str]) -> dict[str, float]:
    """The last line of a process."""
    done = subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compared(name: str) -> dict[str, dict[str, float]]:
    """Both on one model, and ours in parts of the peer's."""
    group, rows, length, ratios, judged_rows = CASES[name]
    checkpoint = open_model(name)
    model, config = load_model(checkpoint, dtype=torch.float32)
    samples, _ = read_samples(checkpoint, NOVELS, rows, length)
    judged, _ = read_samples(checkpoint, HELD_OUT, judged_rows, length)
    found: dict[str, dict[str, float]] = {"float": {"perplexity": window_perplexity(model, judged)}}
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        save_folder(model, config, place / "float", tokenizer=checkpoint.tokenizer)
        ids = [row[mask].tolist() for row, mask in zip(samples.ids, samples.mask, strict=True)]
        (place / "rows.json").write_text(json.dumps(ids))
        given = [str(place / "float"), str(place / "rows.json")]
        here = [sys.executable, __file__, *given, str(place / "ours"), str(ratios), str(group)]
        there = [str(peer_python()), "awq_peer.py", *given, str(place / "theirs"), str(2 * ratios), str(group)]
        found["ours"], found["theirs"] = run(here), run([*there, str(THREADS)])
        for side in ("ours", "theirs"):
            made, _ = load_folder(place / side, dtype=torch.float32)
            found[side]["perplexity"] = window_perplexity(as_floats(made), judged)
    pairs = ((key, found["ours"][key], found["theirs"][key]) for key in found["ours"])
    return found | {"ratio": {key: one / two for key, one, two in pairs}}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    if len(sys.argv) > 1:
        ours(*sys.argv[1:4], *map(int, sys.argv[4:6]))  # type: ignore[arg-type]
    else:
        young()
        values: dict[str, float] = {}
        for case in reversed(CASES):
            key, own = NAMES[case], compared(case)
            print(key, own, flush=True)
            values |= {f"{key}.{name}": value for name, value in flat(own).items()}
        print(record("awq_vs_llmcompressor", values))
