"""Serving score: published static batches, attention kernels and gains of drafting beside their predictions, by what was timed."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from burnish.rows import attention, inference, speculation
from burnish.serve_plan import decode_seconds, prefill_seconds, total_seconds
from burnish.serve_plan.attention_time import kernel_seconds

NAME = 44


@dataclass(frozen=True)
class Judged:
    """One time of a line, or the reason why the line is not judged; seconds, or times as fast for a gain."""

    id: str
    source: str
    what: str = ""
    measured: float = 0.0
    predicted: float = 0.0
    why_not: str = ""
    assumed: str = ""

    @property
    def error(self) -> float:
        """Relative, in percent."""
        return 100 * (self.predicted / self.measured - 1)


def is_serving(columns: Sequence[str]) -> bool:
    """Whether a table has rows of this kind."""
    kinds = (inference.NEEDED, attention.NEEDED, speculation.NEEDED)
    return any(set(needed) <= set(columns) for needed in kinds)


def batch_seconds(row: inference.Timed, what: str, c: Mapping[str, float] | None = None) -> float:
    """Predicted seconds of what an inference row timed; `c` are constants to use instead of the table's."""
    assert row.serving is not None
    if what == "prefill":
        return prefill_seconds(row.serving, row.batch, row.prompt, c)
    if what == "decode":
        return decode_seconds(row.serving, row.batch, row.prompt + row.new // 2, c)
    return total_seconds(row.serving, row.batch, row.prompt, row.new, c)


def judged(path: Path | str, columns: Sequence[str]) -> list[Judged]:
    """Every time of a table of one of the kinds."""
    if set(inference.NEEDED) <= set(columns):
        return [one for row in inference.read_inference(path) for one in _batch(row)]
    if set(speculation.NEEDED) <= set(columns):
        return [_gain(row) for row in speculation.read_speculation(path)]
    return [_kernel(row) for row in attention.read_attention(path)]


def _batch(row: inference.Timed) -> list[Judged]:
    if row.why_not:
        return [Judged(row.id, row.source, why_not=row.why_not)]
    return [
        Judged(row.id, row.source, what, seconds, batch_seconds(row, what)) for what, seconds in row.seconds.items()
    ]


def _kernel(row: attention.Timed) -> Judged:
    if row.why_not or row.kernel is None or row.chip is None:
        return Judged(row.id, row.source, why_not=row.why_not)
    what = f"{row.kernel.implementation} {'forward and backward' if row.kernel.both else 'forward'}"
    return Judged(row.id, row.source, what, row.seconds, kernel_seconds(row.kernel, row.chip))


def _gain(row: speculation.Drafted) -> Judged:
    if row.why_not:
        return Judged(row.id, row.source, why_not=row.why_not)
    free = "verifying a round takes as long as a plain step: no row states it"
    return Judged(row.id, row.source, "gain of drafting", row.measured, row.predicted(), assumed=free)


def record(lines: Sequence[Judged]) -> dict[str, Any]:
    """Mean and worst error, percent, by what was timed and by source, and why lines are not judged."""
    proper = [line for line in lines if not line.why_not]
    parts: dict[str, dict[str, list[float]]] = {"timed": defaultdict(list), "sources": defaultdict(list)}
    for line in proper:
        parts["timed"][line.what].append(line.error)
        parts["sources"][f"{line.source}, {line.what}"].append(line.error)
    reasons = Counter(line.why_not.split(":")[0] for line in lines if line.why_not)
    return {
        "rows": len({line.id for line in lines}),
        "judged": len({line.id for line in proper}),
        **{part: {name: _errors(own) for name, own in sorted(found.items())} for part, found in parts.items()},
        "not_judged": dict(reasons.most_common()),
        "assumed": dict(Counter(line.assumed for line in proper if line.assumed)),
    }


def _errors(found: Sequence[float]) -> dict[str, float]:
    sizes = [abs(error) for error in found]
    return {"times": len(sizes), "mean_pct": sum(sizes) / len(sizes), "worst_pct": max(sizes)}


def shown(path: Path | str, columns: Sequence[str], as_json: bool, each: bool) -> Iterator[str]:
    """What is printed of a table's score."""
    lines = judged(path, columns)
    made = record(lines)
    if as_json:
        more = {"rows_judged": [asdict(line) for line in lines]} if each else {}
        yield json.dumps({**made, **more}, indent=1)
        return
    yield f"{made['judged']} of {made['rows']} rows judged"
    for title in ("timed", "sources"):
        yield f"{title:<{NAME}}{'times':>6}{'mean %':>8}{'worst %':>9}"
        for name, own in made[title].items():
            shown = name if len(name) < NAME else f"…{name[-NAME + 2 :]}"
            yield f"{shown:<{NAME}}{own['times']:>6}{own['mean_pct']:>8.1f}{own['worst_pct']:>9.1f}"
    yield from (f"not judged: {count} for their {reason}" for reason, count in made["not_judged"].items())
    yield from (f"assumed in {count}: {said}" for said, count in made["assumed"].items())
    if each:
        for line in lines:
            yield f"{line.id:<18}{line.what:<28}" + (line.why_not or f"{line.error:+.1f} %")
