"""The law over its full product of techniques, ranks and sizes, and the breaks it must notice: bench/results/law.json."""

from __future__ import annotations

import sys

from counted import ROOT, run_tests
from record import record

EVERY = "slow or not slow"


def saved_error_percent() -> float:
    """Largest error of predicted saved bytes, over sizes, ties and settings on one process."""
    sys.path.insert(0, str(ROOT / "tests" / "law"))
    import test_training_law as law

    from burnish.apply import predict
    from burnish.describe import Shapes, describe
    from burnish.measure import observe
    from burnish.work import fold

    key, worst = ("saved", "forward", "", ""), 0.0
    for size in law.SIZES:
        for tied in (True, False):
            for settings in law.SETTINGS.values():
                recipe = law.make_recipe(size, tied, settings)
                plain = describe(recipe.model, Shapes(rows=3, seq=37))
                predicted = fold(predict(recipe, plain)[0])[key]
                batches = law.make_batches(1, 3, 37, recipe.model.vocab)
                observed = observe(law.make_trainable(recipe, plain), batches, 1e-3)[key]
                worst = max(worst, 100 * abs(predicted - observed) / observed)
    return worst


if __name__ == "__main__":
    tests, different = run_tests("law", "tests/law", "-m", f"({EVERY}) and not sabotage")
    breaks, missed = run_tests("sabotage", "tests", "-m", "sabotage")
    values = {
        "tests": tests,
        "different": different,
        "breaks": breaks,
        "sabotage_missed": missed,
        "saved_error_percent": saved_error_percent(),
    }
    print(record("law", values), values)
