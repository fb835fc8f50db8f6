"""Many ranks beside one process: bench/results/parallel.json. The cases are those of the tests, slow ones included."""

from __future__ import annotations

import sys

from counted import ROOT, run_tests
from record import record

PARITY = ("tensor_parity", "tensor_faults", "tensor_hugging_face", "pipeline_parity", "all_axes", "lora", "zero_parity")
LAW = ("tensor", "pipeline", "lora", "zero")


def worst_difference() -> float:
    """The largest relative difference of a loss or gradient norm over five steps, tensor parallelism with all that goes
    beside it."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "parity")]
    import test_tensor_parity as parity

    from tensor_ranks import make_recipe

    worst = 0.0
    for model, tp, sequence in parity.CASES:
        recipe = make_recipe(model, tp, sequence=sequence, optim__clip=0.1)
        worst = max(worst, parity.worst(recipe, parity.steps_of(1)))
    for model, stage, settings in parity.TOGETHER:
        recipe = make_recipe(model, 2, dp=2, optim__clip=0.1, parallel__zero=stage, **settings)
        worst = max(worst, parity.worst(recipe, parity.steps_of(2)))
    return worst


if __name__ == "__main__":
    every = ("-m", "not sabotage")
    values: dict[str, float] = {"tensor_difference": worst_difference()}
    parity = [f"tests/parity/test_{name}.py" for name in PARITY]
    values["parity_tests"], values["parity_failed"] = run_tests("parallel parity", *parity, *every)
    law = [f"tests/law/test_{name}_law.py" for name in LAW]
    values["law_tests"], values["law_failed"] = run_tests("parallel law", *law, *every)
    print(record("parallel", values), values)
