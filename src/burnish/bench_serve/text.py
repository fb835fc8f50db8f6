"""The figures of a load as lines."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.bench_serve.load import LATE, Result
from burnish.units import counted, show

ROWS = (("first token", "first_token"), ("each later token", "per_token"), ("whole answer", "whole"))
COLUMNS = ("p50", "p90", "p99", "mean")


def lines(result: Result) -> Iterator[str]:
    """What was sent, what came back, how fast, and what failed."""
    yield f"{result.model}: {result.answered:,} of {counted(result.requests, 'request')} answered in " + show(
        result.seconds, "seconds"
    )
    for kind, count in result.failures.items():
        yield f"  {kind:<28}{count:,} failed"
    yield f"  {'answers':<28}{result.requests_a_second:.2f} a second"
    yield f"  {'new tokens':<28}{result.new_tokens:,}, {result.new_tokens_a_second:,.1f} a second"
    found = f", {result.prompt_tokens_found:,} of them found" if result.prompt_tokens_found else ""
    yield f"  {'tokens of prompts':<28}{result.prompt_tokens:,}, {result.prompt_tokens_a_second:,.1f} a second{found}"
    yield f"  {'milliseconds':<28}" + "".join(f"{name:>12}" for name in COLUMNS)
    for name, key in ROWS:
        values = getattr(result, key)
        if values:
            yield f"  {name:<28}" + "".join(f"{1000 * values[column]:>12,.1f}" for column in COLUMNS)
    if result.sent_late > LATE:
        late = show(result.sent_late, "seconds")
        yield f"  some were sent {late} after they were due: this machine could not keep up with sending"
