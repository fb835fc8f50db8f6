"""Ranks against one process: largest relative differences of loss and gradient norm, at every ZeRO stage with 2 and 4 ranks.

The cases are those of the parity tests. Written to bench/results/parity.json.
"""

from __future__ import annotations

import sys

from counted import ROOT
from record import record


def differences() -> dict[str, float | int]:
    """The worst over all cases, ranks and steps."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "parity")]
    import test_zero_parity as parity

    import ranks
    from zero_ranks import make_recipe, make_trainable, trained

    cases, loss, norm = parity.CASES + parity.HYBRID, 0.0, 0.0
    for stage, world, shard, tied in cases:
        recipe = make_recipe("odd", tied, world, stage, parallel__shard=shard, optim__clip=0.5)
        steps = parity.steps_of(recipe, parity.LABELS[world])
        alone = make_trainable(recipe, distributed=False)
        expected = [alone.step(batches, 0.01) for batches in steps]
        for results, _, _ in ranks.run(world, trained, recipe, steps):
            for mine, theirs in zip(results, expected, strict=True):
                loss = max(loss, abs(mine.loss / theirs.loss - 1))
                norm = max(norm, abs(mine.grad_norm / theirs.grad_norm - 1))
    return {"cases": len(cases), "steps": parity.STEPS, "loss_difference": loss, "norm_difference": norm}


if __name__ == "__main__":
    values = differences()
    print(record("parity", values), values)
