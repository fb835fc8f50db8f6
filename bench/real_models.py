"""SmolLM2 beside transformers, which reads the same GGUF file with its own reader: bench/results/real_models.json."""

from __future__ import annotations

import sys

from counted import ROOT
from record import record

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "parity")]
TOKENS = 3001

if __name__ == "__main__":
    from test_real_models import compared

    from burnish.load.wheels import fetched

    ours, theirs = compared(fetched("smollm2"), TOKENS)
    values = {"tokens": TOKENS, "perplexity": ours, "theirs": theirs, "off_percent": 100 * abs(ours / theirs - 1)}
    print(record("real_models", values), values)
