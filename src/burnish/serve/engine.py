"""The engine: requests in, tokens out, many sequences at once over one pool of pages; a step is schedule, run, postprocess.

It is one plain object without threads: whoever owns it calls `step` until nothing is left. Shape letters:
R rows whose next token is asked for, K of one sequence, V vocabulary.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.serve.forward import Forward
from burnish.serve.pages import Pages
from burnish.serve.runners.runner import Runner
from burnish.serve.sampling import Sampling, choose, likeliest, penalised
from burnish.serve.schedule import Piece, Schedule, Sequence
from burnish.serve.speculative.draft import Asked, Draft
from burnish.serve.speculative.speculator import Speculator
from burnish.serve.text import Decode, TextStream


class Busy(UserError):
    """The queue is full: the request may be tried again later."""


@dataclass(frozen=True)
class Limits:
    """What an engine may use: pages of `page` positions, sequences at once, tokens a step, requests that wait."""

    pages: int
    page: int = 16
    rows: int = 32
    tokens: int = 256
    queue: int = 1024


@dataclass(frozen=True)
class Request:
    """A prompt to continue. `deadline`: a time of `time.monotonic` after which it is dropped. `top`: how many likeliest
    tokens to tell with each one, None for no probabilities at all. `draw`: random numbers in place of those of the seed."""

    prompt: tuple[int, ...]
    options: Sampling
    deadline: float | None = None
    top: int | None = None
    draw: np.random.Generator | None = None


@dataclass(frozen=True)
class Output:
    """What became certain of one request: tokens and their text, and at the very end why it ended.

    `reason`: eos, stop, length, cancelled, deadline, or empty while it goes on. `logprobs`: natural logarithms of the
    model's own probabilities, before any option, of each token and of the likeliest ones.
    """

    number: int
    ids: tuple[int, ...] = ()
    text: str = ""
    reason: str = ""
    logprobs: tuple[tuple[float, dict[int, float]], ...] = ()
    reused: int = 0


Emit = Callable[[Output], None]


@dataclass(eq=False)
class _Row:
    """One request in progress."""

    number: int
    request: Request
    emit: Emit
    sequence: Sequence
    stream: TextStream
    draw: np.random.Generator
    written: Counter[int] = field(default_factory=Counter)

    @property
    def asked(self) -> Asked:
        """What a draft and its judge need to know of it."""
        return Asked(self.sequence, self.request.options, self.written, self.draw)


class Engine:
    """Continues requests with one model. `decode` turns tokens to text; without it texts are empty and stop strings refused."""

    def __init__(self, runner: Runner, limits: Limits, decode: Decode | None = None) -> None:
        self.runner, self.limits, self.decode = runner, limits, decode
        self.pages = Pages(limits.pages, limits.page)
        self._forward = Forward(runner, self.pages)
        self.pool = self._forward.pool
        self.schedule = Schedule(self.pages, limits.rows, limits.tokens)
        self._rows: dict[Sequence, _Row] = {}
        self._numbers: dict[int, _Row] = {}
        self._count = 0
        self.speculator: Speculator | None = None

    def speculate(self, draft: Draft, fixed: int | None = None) -> Speculator:
        """From now on, let a draft guess where that is measured to pay, or always `fixed` tokens."""
        self.speculator = Speculator(draft, self._forward, self.limits.rows, fixed)
        return self.speculator

    @property
    def busy(self) -> bool:
        """Whether anything is in progress."""
        return bool(self._rows)

    def submit(self, request: Request, emit: Emit) -> int:
        """Queue a request; `emit` gets its outputs as steps produce them. Returns its number, for `cancel`.

        Raises UserError for a prompt that is empty, has tokens outside the vocabulary, or can never fit in the model's
        positions or the pool with the new tokens asked for, and Busy when the queue is full.
        """
        options = request.options
        self._check(request)
        if len(self.schedule.waiting) >= self.limits.queue:
            raise Busy(f"{self.limits.queue} requests are waiting already; try again later")
        self._count += 1
        most = len(request.prompt) + options.max_new_tokens
        sequence = Sequence(list(request.prompt), len(request.prompt), most, self._count)
        stream = TextStream(self.decode or (lambda ids: ""), options.stop)
        draw = request.draw or np.random.default_rng(options.seed)
        row = _Row(self._count, request, emit, sequence, stream, draw)
        self._rows[sequence] = self._numbers[self._count] = row
        self.schedule.add(sequence)
        return self._count

    def cancel(self, number: int, reason: str = "cancelled") -> None:
        """End a request now; its pages are free. Nothing happens when it has ended."""
        if (row := self._numbers.get(number)) is not None:
            self._end(row, reason)

    def cancel_all(self, reason: str) -> None:
        """End everything in progress."""
        for row in list(self._rows.values()):
            self._end(row, reason)

    @torch.inference_mode()
    def step(self) -> int:
        """One step of everything in progress; returns how many tokens went through the model."""
        now = time.monotonic()
        for row in [r for r in self._rows.values() if r.request.deadline is not None and r.request.deadline <= now]:
            self._end(row, "deadline")
        pieces = self.schedule.next()
        if not pieces:
            return 0
        if self.speculator is not None:
            pieces = self.speculator.begin(pieces, lambda sequence: self._rows[sequence].asked, self.schedule)
        scores_RV = self._forward(pieces)
        for piece in pieces:
            if not piece.guesses:
                self.schedule.done(piece)
        self._take(pieces, scores_RV)
        if self.speculator is not None:
            self.speculator.end()
        return sum(piece.count for piece in pieces)

    def _take(self, pieces: list[Piece], scores_RV: Tensor) -> None:
        """Choose what comes after each piece that ends, and tell it. A row whose scores are not finite ends alone."""
        spans, end = [], 0
        for piece in pieces:
            spans.append(slice(end, end := end + piece.scored))
        found = list(zip([self._rows[piece.sequence] for piece in pieces], pieces, spans, strict=True))
        plain = [k for row, _, span in found if _greedy(row.request.options) for k in range(span.start, span.stop)]
        greedy_RV = scores_RV if len(plain) == end else scores_RV[plain]
        best = dict(zip(plain, likeliest(greedy_RV), strict=True)) if plain else {}
        finite = scores_RV.sum(-1).isfinite().tolist()  # one pass; what is not finite stays so in a sum
        for row, piece, span in found:
            usable = (finite[span] + [False]).index(False)
            if not usable and piece.ends:
                self._end(row, "error")
            elif piece.guesses:
                span = slice(span.start, span.start + usable)
                self._judge(row, piece, scores_RV[span], [best[k] for k in range(span.start, span.stop) if k in best])
            elif piece.ends:
                token = best.get(span.start)
                if token is None:
                    warped = penalised(scores_RV[span.start], row.request.options, row.written)
                    (token,) = choose(warped[None], row.request.options, [row.draw])
                self._tell(row, token, scores_RV[span.start])

    def _judge(self, row: _Row, piece: Piece, scores_KV: Tensor, best: list[int]) -> None:
        """Keep the guesses that stand, and tell them and the token after them, up to where the row ends."""
        assert self.speculator is not None
        tokens = self.speculator.judge(piece, row.asked, scores_KV, best)
        self.schedule.done(piece, len(tokens) - 1)
        for token, scores_V in zip(tokens, scores_KV, strict=False):
            self._tell(row, token, scores_V)
            if row.sequence not in self._rows:
                break

    def _tell(self, row: _Row, token: int, scores_V: Tensor) -> None:
        options, sequence = row.request.options, row.sequence
        if token in options.ends:
            return self._end(row, "eos")
        sequence.tokens.append(token)
        row.written[token] += 1
        probabilities = () if row.request.top is None else (_logprobs(scores_V, token, row.request.top),)
        text = row.stream.push(token)
        ended = "stop" if row.stream.stopped else "length" if len(sequence.tokens) >= sequence.most else ""
        if ended:
            return self._end(row, ended, (token,), text, probabilities)
        return row.emit(Output(row.number, (token,), text, "", probabilities, sequence.reused))

    def _end(
        self,
        row: _Row,
        reason: str,
        ids: tuple[int, ...] = (),
        text: str = "",
        logprobs: tuple[tuple[float, dict[int, float]], ...] = (),
    ) -> None:
        self.schedule.remove(row.sequence)
        if self.speculator is not None:
            self.speculator.forget(row.sequence)
        del self._rows[row.sequence], self._numbers[row.number]
        row.emit(Output(row.number, ids, text + row.stream.finish(), reason, logprobs, row.sequence.reused))

    def _check(self, request: Request) -> None:
        shape, prompt, options = self.runner.config, request.prompt, request.options
        if not prompt:
            raise UserError("prompt: it is empty; one token at least is needed")
        if min(prompt) < 0 or max(prompt) >= shape.vocab:
            raise UserError(
                f"prompt: token {max(prompt)} or {min(prompt)} is outside the vocabulary 0..{shape.vocab - 1}"
            )
        if options.stop and self.decode is None:
            raise UserError("stop: stop strings need the tokenizer")
        most = len(prompt) + options.max_new_tokens
        room = min(shape.max_positions, self.pages.count * self.pages.size)
        if most > room:
            what = "model's positions" if room == shape.max_positions else "positions that the pool has room for"
            fix = (
                f"max_new_tokens must be {room - len(prompt)} or less"
                if room > len(prompt)
                else f"use under {room} tokens"
            )
            raise UserError(
                f"prompt: {len(prompt)} tokens and {options.max_new_tokens} new ones exceed the {room} {what}; {fix}"
            )


def _greedy(options: Sampling) -> bool:
    return options.temperature == 0 and not options.penalised


def _logprobs(scores_V: Tensor, token: int, top: int) -> tuple[float, dict[int, float]]:
    logs = scores_V.double().log_softmax(-1)
    values, ids = logs.topk(top)
    return logs[token].item(), dict(zip(ids.tolist(), values.tolist(), strict=True))
