"""Golden losses: twenty steps of a small recipe give the numbers kept in git.

Equality is asserted where the file was made (processor, its vector instructions, torch version); elsewhere kernels round
differently and the numbers must agree to 1e-3. `python tests/golden/test_losses.py` writes the file again, to be read in
the diff.
"""

import json
from pathlib import Path

import pytest
import torch

from burnish.hardware import detect
from burnish.recipe import replace
from burnish.recipe_files import load
from burnish.records import Records, read
from burnish.run import run

FILE = Path(__file__).parent / "losses.json"
RECIPE = {
    "name": "golden",
    "model.layers": 2,
    "model.hidden": 64,
    "model.ffn": 160,
    "model.vocab": 384,
    "data.train": ["asset:austen/northanger_abbey"],
    "data.heldout": [],
    "data.heldout_fraction": 0.03,
    "data.seq": 96,
    "train.steps": 20,
    "train.global_batch": 7,
    "train.micro_batch": 3,
    "train.eval_every": 10,
    "train.seed": 5,
    "schedule.warmup_steps": 4,
    "export.prompts": [],
    "machine.threads": 1,
}
VARIANTS = {"plain": {}, "checkpointing": {"memory.checkpointing": "full"}}


def place() -> str:
    """What decides the last bits: processor, its vector instructions, torch."""
    return f"{detect().name}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def losses(folder: Path, changes: dict) -> dict[str, list[float]]:
    run(replace(load("quickstart"), RECIPE | changes), folder=folder, stages=("train",), quiet=True)
    records = read(Records, folder / "records.json")
    return {"train": [step.loss for step in records.curve], "heldout": [e.loss for e in records.evals]}


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_are_those_in_git(variant: str, tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text())
    found = losses(tmp_path / "run", VARIANTS[variant])
    same_place = golden["place"] == place()
    for part, wanted in golden["losses"].items():
        assert found[part] == (wanted if same_place else pytest.approx(wanted, rel=1e-3)), part


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        made = losses(Path(scratch) / "run", {})
    content = {"place": place(), "losses": made}
    FILE.write_text(json.dumps(content, indent=1) + "\n")
