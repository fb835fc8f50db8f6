"""Advice in words: a line a number of sequences, what would have to change, and the same as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from burnish.serve.speculative.advice import Advice, Stood
from burnish.serve.speculative.trial import Found
from burnish.units import counted

HEADER = (
    f"{'rows':>4}  {'guesses':>7}  {'tokens':>6}  {'a guess':>7}  {'verifying':>9}  {'expected':>18}  {'measured':>8}"
)


def lines(found: Found) -> Iterator[str]:
    """What is printed."""
    yield acceptance(found.stood)
    yield HEADER
    for one in found.advice:
        yield row(one)
    yield "guesses and tokens a round; costs in plain steps; expected and measured: times as fast as without, 2 standard errors"
    for one in found.advice:
        yield verdict(one, found.stood)
    paying = [one.rows for one in found.advice if one.pays]
    if paying and (losing := [one.rows for one in found.advice if not one.pays and one.rows > max(paying)]):
        yield f"fewer rows at once than {min(losing)} would do: it pays at {max(paying)}"
    yield from differences(found)


def acceptance(stood: Stood) -> str:
    """How often guesses stood, by place."""
    if not stood.guesses:
        return "nothing was guessed: no text repeats itself"
    shares = " ".join(f"{share:.2f}" for share in stood.hazards(len(stood.tried)))
    offered = "" if stood.offered == 1 else f"; there is a guess in {stood.offered:.0%} of the rounds"
    return (
        f"acceptance by place: {shares}; {stood.pooled:.0%} of {counted(stood.guesses, 'guess', 'es')} reached{offered}"
    )


def row(one: Advice) -> str:
    """A line of the table; costs are those of the number that is nearest to paying where none does."""
    expected = f"{one.speedup:.2f} ({one.low:.2f}-{one.high:.2f})" if one.pays else "1.00, off"
    measured = "" if one.measured is None else f"{one.measured:.2f}"
    shown = f"{one.rows:>4}  {one.length:>7}  {one.tokens if one.pays else 1.0:>6.2f}  {one.draft:>7.3f}  {one.verify:>9.2f}"
    return f"{shown}  {expected:>18}  {measured:>8}".rstrip()


def verdict(one: Advice, stood: Stood) -> str:
    """Whether it pays, and at which acceptance and cost it would begin or cease to."""
    name = "1 row" if one.rows == 1 else f"{one.rows} rows"
    if one.pays:
        least = "" if one.least is None else f"; down to an acceptance of {one.least:.0%}"
        dearest = "" if one.dearest is None else f", or up to {one.dearest:.2f} of a step a guess"
        sure = "" if one.sure else "; too few guesses to be sure: give more --prompts"
        return f"{name}: pays, {counted(one.length, 'guess', 'es')} a round{least}{dearest}{sure}"
    least = (
        "whatever is accepted"
        if one.least is None
        else f"below an acceptance of {one.least:.0%} ({stood.pooled:.0%} here)"
    )
    dearest = (
        "however cheap a guess"
        if one.dearest is None
        else f"unless a guess costs under {one.dearest:.2f} of a step ({one.draft:.2f} here)"
    )
    sure = "" if one.sure else "; too few guesses to be sure: give more --prompts"
    return f"{name}: does not pay {least}, {dearest}{sure}"


def differences(found: Found) -> Iterator[str]:
    """Where what was written with the draft is another text, and by how little."""
    if not found.apart:
        return
    first = found.apart[0]
    what = f"{counted(len(found.apart), 'text')} differ{'' if len(found.apart) > 1 else 's'} with the draft"
    close = f"the two tokens are {first.gap:.1g} apart in log probability" if first.gap is not None else "no near tie"
    yield (
        f"{what}: text {first.text + 1} first, at token {first.place + 1}, {close}. Products of more rows round differently; "
        f"with --exact they do not"
    )


def record(found: Found) -> dict[str, Any]:
    """The same for a script."""
    stood = found.stood
    return {
        "acceptance": {
            "by_place": stood.hazards(len(stood.tried)),
            "tried": list(stood.tried),
            "stood": list(stood.stood),
            "pooled": stood.pooled,
            "rounds_with_a_guess": stood.offered,
        },
        "rows": [asdict(one) | {"pays": one.pays, "sure": one.sure} for one in found.advice],
        "tokens_written": found.written,
        "texts_that_differ": [one._asdict() for one in found.apart],
    }
