"""FP8 beside bf16 on the quickstart's model and text, several seeds; decibels of each product; ranks and recomputation;
breaks that the tests must notice: bench/results/fp8.json.

`loss_ratio.SCALING` is the largest gap of a seed's final loss from bf16's with the same seed, over the spread of bf16's final
losses between seeds. A final loss is the mean of the last steps. Everything is emulated on a CPU, so no speed is shown.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import mean

import torch

from burnish import ranks as processes
from burnish.data.batch import Batch
from burnish.data.packing import Rows
from burnish.data.prepare import prepare
from burnish.data.sampler import step_batches
from burnish.prove import fp8 as claim
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.runnable import make_loss, make_trainable
from burnish.train.optim import lr_at
from counted import ROOT, run_tests
from record import record

SCALINGS = ("current", "delayed", "block")
SEEDS, STEPS, LAST = 3, 160, 40
KINDS = ("forward", "input gradient", "weight gradient")


def variant(scaling: str | None, seed: int, steps: int) -> Recipe:
    """The quickstart in bf16, shortened, its products cast or not."""
    cast = {} if scaling is None else {"fp8": {"scaling": scaling}}
    settings = {"precision": "bf16", "techniques": cast, "train.seed": seed, "train.steps": steps}
    settings["machine.threads"] = torch.get_num_threads()
    return replace(load("quickstart"), settings | {"schedule.warmup_steps": steps // 8})


def steps_of(recipe: Recipe, rows: Rows) -> list[list[Batch]]:
    """The micro batches of every step."""
    train = recipe.train
    return [step_batches(rows, train.seed, step, train.global_batch, train.micro_batch) for step in range(train.steps)]


def final_loss(recipe: Recipe, rows: Rows, last: int) -> float:
    """The mean loss of the `last` steps of a training."""
    trainable = make_trainable(recipe, make_loss(recipe, "cpu"), {})
    losses = []
    for step, micros in enumerate(steps_of(recipe, rows)):
        lr = lr_at(step, recipe.schedule, recipe.train.steps, recipe.optim.lr)
        losses.append(trainable.step(micros, lr).loss)
    return mean(losses[-last:])


def curves(seeds: int, steps: int, last: int) -> dict[str, float]:
    """Final losses, their gaps from bf16's, and the spread between seeds."""
    base = load("quickstart")
    rows = Rows(prepare(base.data, base.model.vocab, base.model.eos).train, base.data.seq)
    finals = {
        scaling: [final_loss(variant(scaling, seed, steps), rows, last) for seed in range(seeds)]
        for scaling in (None, *SCALINGS)
    }
    spread = max(finals[None]) - min(finals[None])
    found = {"loss.bf16": mean(finals[None]), "loss_spread": spread}
    for scaling in SCALINGS:
        gaps = [abs(a - b) for a, b in zip(finals[scaling], finals[None], strict=True)]
        found[f"loss.{scaling}"], found[f"loss_gap.{scaling}"] = mean(finals[scaling]), max(gaps)
        found[f"loss_ratio.{scaling}"] = max(gaps) / spread
    return found


def least_decibels(seeds: int) -> dict[str, float]:
    """Of each kind of product and each scaling, the least over modules and seeds."""
    found: dict[str, float] = {}
    for scaling in SCALINGS:
        recipe = claim.recipe(scaling)
        for seed in range(seeds):
            trainable = claim.trainable_of(recipe, seed)
            for _ in range(claim.STEPS):
                trainable.step(claim.batches(recipe), claim.LR)
            for kind, ratio in claim.quality(trainable, claim.batches(recipe)[0]).items():
                key = f"decibels.{scaling}.{kind.replace(' ', '_')}"
                found[key] = min(found.get(key, ratio), ratio)
    return found


def listed_wrong() -> dict[str, float]:
    """Kinds of modules that are in another format than plans list, over scalings and what is left out."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "unit")]
    import test_fp8_refused as listing

    cases = [(case, model) for case in range(len(listing.CASES)) for model in ("llama", "gpt2", "one key head")]
    pairs = [listing.formats(case, model) for case, model in cases]
    wrong = sum(made.get(name) != {form} for listed, made in pairs for name, form in listed.items())
    return {"listed": sum(len(listed) for listed, _ in pairs), "listed_wrong": wrong}


def elsewhere() -> dict[str, float]:
    """The largest relative difference of losses on two ranks of a layer, and recomputed, from one process."""
    sys.path[:0] = [str(ROOT / "tests")]
    from fp8_models import make_recipe, trained

    found = {"apart.tp2": 0.0, "apart.recomputed": 0.0}
    for scaling in SCALINGS:
        alone = trained(make_recipe(scaling), 5, 2)
        again = trained(make_recipe(scaling, memory__checkpointing="full"), 5, 2)
        ways = [("apart.recomputed", again)]
        recipe = make_recipe(scaling, parallel__tp=2)
        ways += [("apart.tp2", losses) for losses in processes.run(2, trained, recipe, 5, 2)]
        for key, losses in ways:
            worst = max(abs(a[0] / b[0] - 1) for a, b in zip(losses, alone, strict=True))
            found[key] = max(found[key], worst)
    return found


def main(seeds: int, steps: int, last: int, tests: bool) -> dict[str, float]:
    """All figures."""
    began = time.perf_counter()
    found = {"seeds": seeds, "steps": steps, "threads": torch.get_num_threads()}
    found |= curves(seeds, steps, last) | least_decibels(seeds) | listed_wrong() | elsewhere()
    if tests:
        files = ("tests/law/test_fp8_law.py", "tests/parity/test_fp8.py", "tests/parity/test_fp8_faults.py")
        found["tests"], found["tests_failed"] = run_tests("fp8", *files, "-m", "not sabotage and not slow")
        found["breaks"], found["breaks_missed"] = run_tests("fp8 sabotage", *files, "-m", "sabotage")
    return found | {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    values = main(asked.seeds, asked.steps, max(asked.steps // 4, 1), tests=True)
    print(record("fp8", values))
    for key, value in values.items():
        print(f"  {key:<36}{value:.4g}")
