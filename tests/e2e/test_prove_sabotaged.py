"""One line of each technique broken, in a copy of the package: `burnish prove` must say that its claim does not hold."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import burnish
from burnish.prove import claims

PACKAGE = Path(burnish.__file__).parent


class Break(NamedTuple):
    """A piece of one line of a file, and what stands there instead."""

    file: str
    right: str
    wrong: str


BREAKS = {
    # All channels are taken to be equally loud.
    "awq": Break("compress/gram.py", "self.total.addmm_(x.t(), x)", "self.total += torch.eye(len(self.total))"),
    # The last product of a layer is kept, and made again though nothing reads it.
    "checkpointing": Break("ops/recompute.py", "return weighted[-1][0] if weighted and", "return None if weighted and"),
    # Sums of earlier tiles are not rescaled under a new maximum.
    "flash-attention": Break("ops/flash_tiled.py", "(highest - base).exp_()", "torch.ones_like(highest)"),
    # Gradients are cast as they are.
    "fp8": Break(
        "ops/fp8_linear.py", "return whole(x, scale_of(amax, form), form)", "return whole(x, amax * 0 + 1, form)"
    ),
    # Weights are rounded down.
    "int8": Break("ops/int8_linear.py", "scale_O1.float()).round_()", "scale_O1.float()).floor_()"),
    # Half of what a layer gathers is forgotten.
    "mapping": Break("techniques/tensor.py", "gathers, size * halves, halves", "gathers, size * halves // 2, halves"),
    # The stage before learns nothing.
    "pipeline": Break(
        "ops/pipeline_engine.py", "self.links.send(BACKWARD, x.grad)", "self.links.send(BACKWARD, x.grad * 0)"
    ),
    # The keys of a layer are copied with every token.
    "pool": Break("serve/paged.py", 'where they belong."""', 'where they belong."""; self.keys[layer].clone()'),
    # Statistics are forgotten and not measured again.
    "pruning": Break("vision/renormalise.py", "norm.train()", "norm.eval()"),
    # Rows are drawn by the clock.
    "recipes": Break(
        "data/sampler.py", "picked = sample_ids(seed,", "picked = sample_ids(__import__('time').time_ns(),"
    ),
    # Images keep their greys.
    "segmentation": Break(
        "vision/augment.py", "return revalued(images, settings, generator), labels", "return images, labels"
    ),
    # Every guess stands.
    "speculation": Break(
        "serve/speculative/speculator.py",
        "tokens = judge(asked, guess, scores_KV, best)",
        "tokens = [*guess.tokens, best[len(guess.tokens)]]",
    ),
    # Each rank goes on with its own part of a sum.
    "tensor-parallel": Break("ops/token_collectives.py", "dist.all_reduce(out, group=group)", "pass"),
    # Stage 2 adds whole gradients up, as stage 1 does.
    "zero": Break("ops/zero_engine.py", "if self.stage == 1:", "if self.stage <= 2:"),
}
QUICK = ("awq", "mapping")  # a few seconds each; the others with the slow tests


def test_each_claim_has_a_break() -> None:
    assert sorted(BREAKS) == claims()


@pytest.mark.parametrize("claim", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in BREAKS])
def test_a_broken_technique_turns_its_claim(claim: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "burnish", ignore=shutil.ignore_patterns("__pycache__"))
    file, right, wrong = BREAKS[claim]
    broken = tmp_path / "burnish" / file
    text = broken.read_text(encoding="utf-8")
    assert text.count(right) == 1, f"{file}: the line to break is another one now"
    broken.write_text(text.replace(right, wrong), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "burnish", "prove", claim],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},  # ranks inherit it
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "does not hold" in done.stdout
    assert done.stderr.splitlines()[-1] == f"burnish: did not hold here: {claim}"
