"""Text: a plan of serving as lines for a reader, and as plain values for a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from burnish.serve_plan.plan import Plan, Way
from burnish.units import show

HEAD = f"{'weights':<9}{'tp':>3}{'weights a chip':>16}{'keys, values':>14}{'a step':>12}{'most':>7}{'prompts':>11}{'token':>11}"


def lines(made: Plan) -> Iterator[str]:
    """What is printed of a plan."""
    asked = made.asked
    yield (
        f"{asked.model.name} served on {asked.cluster.name}: {asked.prompt} tokens in, {asked.new} out, "
        f"batch {asked.batch}, keys and values in {asked.kv} (all predicted)"
    )
    yield HEAD
    yield from (_way(made, one) for one in made.ways)
    if made.fastest and made.smallest:
        yield f"fastest: {_name(made.fastest)}; fewest chips: {_name(made.smallest)}"
        yield f"{'batch':>6}{'prompts':>12}{'token':>12}{'tokens/s':>12}"
        for one in made.curve:
            yield (
                f"{one.batch:>6}{show(one.prefill, 'seconds'):>12}{show(one.decode, 'seconds'):>12}{one.throughput:>12,.0f}"
            )
    yield from (f"not {reason}" for reason in made.why_not)
    yield from (f"would fit: {remedy}" for remedy in made.remedies)


def _name(one: Way) -> str:
    return f"{one.weights} on {one.tp}"


def _way(made: Plan, one: Way) -> str:
    sizes = [show(value, "bytes") for value in (one.weight_bytes, one.kv_bytes, one.workspace_bytes)]
    times = (
        [show(value, "seconds") for value in (one.asked.prefill, one.asked.decode)]
        if one.fits
        else ["", "does not fit"]
    )
    return f"{one.weights:<9}{one.tp:>3}{sizes[0]:>16}{sizes[1]:>14}{sizes[2]:>12}{one.largest:>7}{times[0]:>11}{times[1]:>13}"


def record(made: Plan) -> dict[str, Any]:
    """A plan as plain values; bytes a chip, seconds, tokens a second."""
    asked = made.asked
    return {
        "model": asked.model.name,
        "cluster": asked.cluster.name,
        **{name: getattr(asked, name) for name in ("prompt", "new", "batch", "kv", "engine")},
        "fits": made.fits,
        "fastest": _values(made.fastest),
        "smallest": _values(made.smallest),
        "ways": [_values(one) for one in made.ways],
        "curve": [asdict(one) for one in made.curve],
        "why_not": list(made.why_not),
        "remedies": list(made.remedies),
    }


def _values(one: Way | None) -> dict[str, Any] | None:
    return {**asdict(one), "fits": one.fits, "needed": one.needed} if one else None
