"""A trial of a draft on texts: how many of its guesses stand, what steps cost here, and what it gains in the end.

Everything is measured on the engine that would serve, over prompts cut from the texts: what the model writes after them is what
is guessed. Steps that read prompts are in no figure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from burnish.errors import UserError
from burnish.serve import schedule
from burnish.serve.engine import Engine, Output, Request
from burnish.serve.sampling import Sampling
from burnish.serve.speculative.advice import Advice, Costs, Stood, advise
from burnish.serve.speculative.draft import Asked, Draft
from burnish.serve.speculative.gate import LENGTHS
from burnish.serve.speculative.speculator import Counts, Speculator

TURNS = 11  # measurements of each kind of step
Tokens = tuple[int, ...]


class Apart(NamedTuple):
    """Where a text written with a draft first differs: its number, the place, and how much likelier (in log probability) the
    token is that was written without; None where the other is not among the two likeliest."""

    text: int
    place: int
    gap: float | None


class Found(NamedTuple):
    """What a trial found. `apart`: texts that differ though nothing was drawn."""

    stood: Stood
    advice: list[Advice]
    written: int
    apart: list[Apart]


@dataclass(frozen=True)
class Text:
    """What was written after a prompt, and where asked for each token's log probability and those of the likeliest."""

    tokens: Tokens
    logprobs: tuple[tuple[float, dict[int, float]], ...]


class Run(NamedTuple):
    """Texts of all prompts, and tokens and seconds of the steps that read none."""

    texts: list[Text]
    tokens: int
    seconds: float


def trial(
    engine: Engine,
    prompts: Sequence[Tokens],
    options: Sampling,
    rows: Sequence[int],
    tell: Callable[[str], None] = lambda said: None,
) -> Found:
    """Try the draft that an engine has. Raises UserError where the draft guesses nothing at all though it costs something."""
    speculator, most = engine.speculator, min(max(rows), engine.limits.rows)
    assert speculator is not None
    engine.speculator = None
    tell("writing without the draft")
    plain = write(engine, prompts, options, most, top=2)
    engine.speculator, speculator.fixed, speculator.counts = speculator, LENGTHS[-1], Counts()
    tell("writing with the draft")
    drafted = write(engine, prompts, options, most)
    stood = stood_of(speculator.counts, sum(len(text.tokens) - 1 for text in drafted.texts), speculator.draft.free)
    found = []
    for many in rows:
        tell(f"measuring steps of {many}")
        costs = costs_of(engine, speculator.draft, prompts, many, options)
        found.append(checked(engine, speculator, advise(stood, costs), prompts, options))
    return Found(
        stood, found, sum(len(text.tokens) for text in drafted.texts), apart(plain.texts, drafted.texts, options)
    )


def write(engine: Engine, prompts: Sequence[Tokens], options: Sampling, rows: int, top: int | None = None) -> Run:
    """Continue the prompts, `rows` at once; with log probabilities of the `top` likeliest tokens where they are asked for."""
    outputs: list[list[Output]] = [[] for _ in prompts]
    waiting, tokens, seconds = list(enumerate(prompts)), 0, 0.0
    while waiting or engine.busy:
        while waiting and len(engine.schedule.running) + len(engine.schedule.waiting) < rows:
            number, prompt = waiting.pop(0)
            engine.submit(
                Request(prompt, replace(options, seed=options.seed + number), top=top), outputs[number].append
            )
        reads = bool(engine.schedule.waiting) or any(one.left > 1 for one in engine.schedule.running)
        before, began = _count(outputs), time.perf_counter()
        engine.step()
        if not reads:
            seconds += time.perf_counter() - began
            tokens += _count(outputs) - before
    texts = [
        Text(
            tuple(token for output in own for token in output.ids),
            tuple(pair for output in own for pair in output.logprobs),
        )
        for own in outputs
    ]
    return Run(texts, tokens, seconds)


def _count(outputs: Sequence[Sequence[Output]]) -> int:
    return sum(len(output.ids) for own in outputs for output in own)


def stood_of(counts: Counts, written: int, free: bool) -> Stood:
    """From what a speculator counted while `written` tokens came of steps."""
    places = range(max(counts.tried_at, default=-1) + 1)
    tried = [counts.tried_at.get(place, 0) for place in places]
    stood = [counts.stood_at.get(place, 0) for place in places]
    rounds = max(written - sum(stood), 1)
    return Stood(tried, stood, min(1.0, tried[0] / rounds) if tried else 0.0) if free else Stood(tried, stood)


@torch.inference_mode()
def costs_of(engine: Engine, draft: Draft, prompts: Sequence[Tokens], rows: int, options: Sampling) -> Costs:
    """Seconds of steps of `rows` sequences as long as the prompts, by the number of guesses; medians of turns."""
    forward, draw = engine._forward, np.random.default_rng(0)
    sequences = [_held(engine, prompts[number % len(prompts)]) for number in range(rows)]
    asked = [Asked(one, options, {}, draw) for one in sequences]
    steps: dict[int, list[float]] = {length: [] for length in (0, *LENGTHS)}
    guesses: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for turn in range(1 + TURNS):
        for length in steps:
            pieces = [_piece(one, length) for one in sequences]
            began = time.perf_counter()
            forward(pieces)
            middle = time.perf_counter()
            if length:
                made = draft.guess(asked, [length] * rows)
                if turn:
                    guesses[length].append(time.perf_counter() - middle)
                if not draft.free and not all(len(one.tokens) == length for one in made):
                    raise UserError("--memory: the draft has no room for all sequences; give more, or fewer --rows")
            if turn:
                steps[length].append(middle - began)
    for one in sequences:
        draft.forget(one)
        engine.pages.release(one.pages)
    seconds = {length: statistics.median(own) for length, own in steps.items()}
    return Costs(
        rows,
        seconds[0],
        {length: statistics.median(own) for length, own in guesses.items()},
        {length: seconds[length] for length in LENGTHS},
    )


def _held(engine: Engine, prompt: Tokens) -> schedule.Sequence:
    """A sequence of a prompt, read into pages of its own, with room for guesses. Raises UserError where no page is free."""
    one = schedule.Sequence(list(prompt), len(prompt), len(prompt) + 2 * LENGTHS[-1])
    if not engine.schedule.reserve(one, len(prompt) + LENGTHS[-1]):
        engine.pages.release(one.pages)
        raise UserError("--memory: the pool has no room for all sequences at once; give more, or fewer --rows")
    for start in range(0, len(prompt), engine.limits.tokens):
        engine._forward([schedule.Piece(one, start, min(engine.limits.tokens, len(prompt) - start))])
    return one


def _piece(one: schedule.Sequence, guesses: int) -> schedule.Piece:
    known = len(one.tokens)
    return schedule.Piece(one, known - 1, 1 + guesses, tuple(one.tokens[k % known] for k in range(guesses)))


def checked(
    engine: Engine, speculator: Speculator, advice: Advice, prompts: Sequence[Tokens], options: Sampling
) -> Advice:
    """The advice with what was measured: all prompts with and without, in turns; as it is where nothing is drafted."""
    if not advice.pays:
        return advice
    runs: dict[int, list[Run]] = {0: [], advice.length: []}
    for first in range(0, len(prompts), advice.rows):
        for length, found in runs.items():
            engine.speculator, speculator.fixed = speculator if length else None, length
            found.append(write(engine, prompts[first : first + advice.rows], options, advice.rows))
    engine.speculator = speculator
    plain, drafted = (sum(run.seconds for run in own) / max(sum(run.tokens for run in own), 1) for own in runs.values())
    return replace(advice, measured=plain / drafted) if drafted else advice


def apart(plain: Sequence[Text], drafted: Sequence[Text], options: Sampling) -> list[Apart]:
    """Where texts differ; none where tokens are drawn, as those may."""
    found = []
    for number, (one, other) in enumerate(zip(plain, drafted, strict=True)):
        places = [k for k, (own, new) in enumerate(zip(one.tokens, other.tokens, strict=False)) if own != new]
        if places and options.temperature == 0:
            own, likeliest = one.logprobs[places[0]]
            theirs = likeliest.get(other.tokens[places[0]])
            found.append(Apart(number, places[0], None if theirs is None else own - theirs))
    return found
