"""A budget that is too tight, refused with its parts, and the mixture that meets it: bench/results/compress.json.

On the small trained model of the tests, rounded to 4 bits with one scale a row; `--smollm2` on SmolLM2 instead, in an hour.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from burnish.compress.flow import compress
from burnish.compress.subject import subject_of
from burnish.compress.verify import OverBudget
from burnish.compressions import asked
from burnish.load.source import open_model
from burnish.progress import Screen
from record import record

SMALL = str(Path(__file__).parents[1] / "tests" / "fixtures" / "quickstart")
SHARE = 0.5  # of what plain rounding loses, which the mixture may lose


def measure(model: str, group: int, tokens: int) -> dict[str, Any]:
    """Refuse, then mix; what the bars read, and the parts that were kept."""
    settings = {"awq": {"method": "rtn", "group": group}}
    texts = {"calibrate": "asset:austen/emma", "text": "asset:austen/persuasion"}
    common = texts | {"technique": "awq", "settings": settings, "rows": 8, "length": 256, "tokens": tokens}
    subject, screen = subject_of(Path(model).name, open_model(model), "cpu"), Screen()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        try:
            compress(subject, asked(common | {"max_drop": 0.0}), out, screen)
            raise SystemExit("rounding lost nothing; take more tokens")
        except OverBudget as error:
            refused, code = error.verified, error.exit_code
        left_over = len(list(Path(folder).iterdir()))
        budget = SHARE * refused.judged.drop
        mixed, _ = compress(subject, asked(common | {"max_drop": budget, "fallback": "mixed"}), out, screen)
        written = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    size = next(cost for cost in mixed.costs if cost.key == "file.bytes")
    return {
        "exit_code": code,
        "parts_told": len(refused.parts),
        "files_left": left_over,
        "perplexity": refused.judged.baseline,
        "bytes": size.baseline,
        "rounded_bytes": next(cost.predicted for cost in refused.costs if cost.key == "file.bytes"),
        "mixed_bytes": written,
        "rounded_drop_percent": refused.judged.drop,
        "noise_percent": refused.judged.noise,
        "budget_percent": budget,
        "mixed_drop_percent": mixed.judged.drop,
        "mixed_over_budget": mixed.judged.drop / budget,
        "mixed_noise_percent": mixed.judged.noise,
        "kept": list(mixed.kept),
        "kept_share": len(mixed.kept) / len(mixed.parts),
        "file_bytes_off": written - (size.predicted or 0),
        "file_share": written / (size.baseline or 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smollm2", action="store_true")
    large = parser.parse_args().smollm2
    found = measure("smollm2", 64, 2048) if large else measure(SMALL, -1, 16384)
    print(record("compress_smollm2" if large else "compress", found), found)
