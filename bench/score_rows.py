"""Score of the published training rows: bench/results/score_rows.json, and one record a source in score_sources.json.

bench/score_rows.py [FOLDER]    FOLDER holds planner/rows_training.csv; without it, the one beside the checkout
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.score import score
from record import record

BESIDE = Path(__file__).parents[2] / "shared" / "data"
ROWS = Path("planner", "rows_training.csv")
APART = ("second_hand", "distrusted")
# The groups of `burnish.tables.score_bars`, by the names their figures are recorded under.
GROUPS = {
    "vtrain": "vTrain, one node",
    "korthikanti": "Korthikanti et al., table 5",
    "llm_foundry": "llm-foundry",
    "dgxc": "dgxc",
    "aleph": "Aleph Alpha",
    "nemo": "NeMo",
    "narayanan": "Narayanan et al., tensor and pipeline",
    "bridge_dense": "Megatron-Bridge, dense",
    "bridge_experts": "Megatron-Bridge, experts",
}
KEPT = ("rows", "expressed", "timed", "time_median_pct", "time_mean_pct", "time_worst_pct", "fit_right", "fit_wrong")


def figures(made: dict[str, Any]) -> dict[str, float]:
    """What the bars ask for, from the record of a score; percent, and rows."""
    overall = made["overall"]
    blocks = [overall, *(made[name] for name in APART)]
    rows, expressed = (sum(block[name] for block in blocks) for name in ("rows", "expressed"))
    aleph = next((block for name, block in made["sources"].items() if name.startswith("Aleph-Alpha")), {})
    values = {
        "rows": rows,
        "expressed": expressed,
        "expressed_percent": 100 * expressed / rows,
        "timed": overall["timed"],
        "median_percent": overall["time_median_pct"],
        "mean_percent": overall["time_mean_pct"],
        "sources_counted": overall["sources_counted"],
        "mean_over_sources_percent": overall["mean_over_sources_pct"],
        "worst_source_percent": overall["worst_source_pct"],
        "experts_percent": overall["experts_mean_pct"],
        "aleph_regret_percent": aleph.get("regret_pct"),
        "aleph_kendall_tau": aleph.get("kendall_tau"),
        **{f"{name}_rows": made[name]["timed"] for name in APART},
        **{f"{name}_mean_percent": made[name]["time_mean_pct"] for name in APART},
    }
    groups = overall["subsets"]
    values |= {f"{name}_percent": groups[title]["time_mean_pct"] for name, title in GROUPS.items() if title in groups}
    return {name: value for name, value in values.items() if value is not None}


def by_source(made: dict[str, Any]) -> dict[str, Any]:
    """The figures of every source, of those kept apart too: part -> source -> figures."""
    parts = {"first_hand": made["sources"], **{name: made[name]["sources"] for name in APART}}
    more = ("kendall_tau", "regret_pct")
    return {
        part: {name: {key: block[key] for key in (*KEPT, *more)} for name, block in sources.items()}
        for part, sources in parts.items()
    }


def main() -> int:
    """Score, record, print."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else BESIDE
    rows = folder / ROWS
    if not rows.is_file():
        print(f"{folder}: has no {ROWS}; name the folder that holds it", file=sys.stderr)
        return 2
    try:
        made = score(rows)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    values = figures(made)
    for name, value in values.items():
        print(f"{name} = {value:.6g}")
    record("score_sources", by_source(made))
    print(record("score_rows", values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
