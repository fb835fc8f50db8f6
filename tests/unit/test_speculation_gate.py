"""The gate over a clock that only the target and the draft move: never slower than without, and as fast as it can be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from burnish.config import ModelConfig
from burnish.serve.engine import Engine, Limits, Output, Request
from burnish.serve.runners.runner import Made
from burnish.serve.sampling import Sampling
from burnish.serve.speculative.costs import GuessCosts, StepCosts
from burnish.serve.speculative.forced import ForcedDraft
from burnish.serve.speculative.gate import BUDGET, GRACE, LENGTHS, LONG, Acceptance, Gate
from burnish.serve.speculative.speculator import Speculator
from burnish.speculation import best_length

NEW = 400
SHAPE = ModelConfig(vocab=64, hidden=4, ffn=4, layers=1, heads=1, kv_heads=1, head_dim=4, max_positions=1024)
Verify = Callable[[int], float]
LOSES = 1.03  # of the time without


def following(token: int) -> int:
    return (token * 5 + 7) % SHAPE.vocab


class CountingRunner:
    """A model whose next token follows from the last one; a step of `tokens` takes verify(tokens) on its own clock."""

    config, dtype, device, threads, exact, whole, scales = (
        SHAPE,
        torch.float32,
        torch.device("cpu"),
        1,
        False,
        None,
        None,
    )

    def __init__(self, verify: Verify) -> None:
        self.now, self.verify = 0.0, verify

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def begin(self, ids_T: Tensor, positions_T: Tensor) -> Made:
        self.spend(self.verify(len(ids_T)))
        part = torch.zeros(len(ids_T), 1, SHAPE.head_dim)
        return Made(ids_T, part, part, part, None)

    def go_on(self, layer: int, made: Made, attended_TND: Tensor) -> Made:
        raise AssertionError

    def scores(self, made: Made, attended_TND: Tensor, rows_R: Tensor) -> Tensor:
        return torch.nn.functional.one_hot((made.hidden[rows_R] * 5 + 7) % SHAPE.vocab, SHAPE.vocab).float()


def texts(sequences: int) -> dict[tuple[int, ...], list[int]]:
    found = {}
    for first in range(sequences):
        written = [following(first)]
        while len(written) < NEW:
            written.append(following(written[-1]))
        found[(first,)] = written
    return found


def seconds(
    draft: ForcedDraft | None, runner: CountingRunner, sequences: int, change: Callable[[int], None] | None = None
) -> tuple[float, Speculator | None]:
    """Of writing all sequences side by side, after what is measured at the start."""
    engine = Engine(runner, Limits(pages=2000, page=16, rows=sequences, tokens=256))
    if draft is not None:
        engine.speculator = Speculator(draft, engine._forward, sequences, clock=lambda: runner.now)
    outputs: list[Output] = []
    for prompt in texts(sequences):
        engine.submit(Request(prompt, Sampling(max_new_tokens=NEW)), outputs.append)
    began, steps = runner.now, 0
    while engine.busy:
        if change is not None:
            change(steps)
        engine.step()
        steps += 1
    for number, written in enumerate(texts(sequences).values(), start=1):
        assert [token for one in outputs if one.number == number for token in one.ids] == written
    return runner.now - began, engine.speculator


def times(acceptance: float, cost: float, verify: Verify, sequences: int = 1) -> tuple[float, Speculator]:
    """The time with a draft over that without. `cost` of a guess, in plain steps."""
    plain, _ = seconds(None, CountingRunner(verify), sequences)
    runner = CountingRunner(verify)
    draft = ForcedDraft(texts(sequences), acceptance, cost * verify(sequences), runner.spend)
    drafted, speculator = seconds(draft, runner, sequences)
    assert speculator is not None
    return drafted / plain, speculator


def flat(tokens: int) -> float:
    """A step that costs little more for a few tokens more, as on hardware that waits for its weights."""
    return 1 + 0.05 * (tokens - 1)


def steep(tokens: int) -> float:
    """A step that costs almost as much a token, as of plain products on a CPU."""
    return 0.2 + 0.8 * tokens


@pytest.mark.parametrize("verify", [flat, steep])
@pytest.mark.parametrize("cost", [0.05, 0.2, 0.5])
def test_never_slower(cost, verify):
    """Acceptance 0 to 1: at most a few per cent lost, and half and more of what there is to gain is gained."""
    for acceptance in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        found, speculator = times(acceptance, cost, verify)
        assert found <= LOSES, (acceptance, speculator.summary())
        best = best_length(acceptance, cost, lambda k: verify(1 + k) / verify(1), longest=LENGTHS[-1])
        if best.speedup > 1.25:
            assert 1 / found > 1 + 0.5 * (best.speedup - 1), (acceptance, best, speculator.summary())


def test_many_at_once():
    for acceptance in (0.1, 0.9):
        assert times(acceptance, 0.1, steep, 4)[0] <= LOSES
    assert times(0.9, 0.1, flat, 4)[0] < 0.75


def test_why_it_is_off_is_said_with_the_acceptance_that_would_do():
    _, speculator = times(0.2, 0.3, flat)
    assert not speculator.gate.on
    assert "must: a drafted token costs 0.30 of a step, verifying" in speculator.summary()
    _, speculator = times(1.0, 1.5, flat)
    assert "whatever is accepted" in speculator.summary()
    assert speculator.counts.drafted == 0


def test_it_notices_that_drafting_has_begun_to_pay_and_that_it_has_ceased_to():
    runner = CountingRunner(flat)
    draft = ForcedDraft(texts(1), 0.0, 0.05, runner.spend)
    was_on: list[bool] = []

    def change(step: int) -> None:
        draft.acceptance = float(step >= NEW // 3)

    engine = Engine(runner, Limits(pages=200, page=16, rows=1))
    engine.speculator = Speculator(draft, engine._forward, 1, clock=lambda: runner.now)
    engine.submit(Request((0,), Sampling(max_new_tokens=NEW)), lambda output: None)
    step = 0
    while engine.busy:
        change(step)
        engine.step()
        was_on.append(engine.speculator.gate.on)
        step += 1
    assert not was_on[NEW // 3]
    assert was_on[-1]
    assert len(was_on) < 0.75 * NEW


def test_what_may_be_lost_is_bounded_whatever_is_expected():
    """A gate that believes in its draft, and a draft that never pays."""
    runner = CountingRunner(flat)
    engine = Engine(runner, Limits(pages=200, page=16, rows=1))
    draft = ForcedDraft(texts(1), 0.0, 0.3, runner.spend)
    engine.speculator = Speculator(draft, engine._forward, 1, clock=lambda: runner.now)
    engine.speculator.gate.acceptance.hazards = lambda length: [0.99] * length  # type: ignore[method-assign]
    engine.submit(Request((0,), Sampling(max_new_tokens=NEW)), lambda output: None)
    began = runner.now
    while engine.busy:
        engine.step()
    most = max(LENGTHS) * 0.3 + flat(1 + max(LENGTHS))
    assert runner.now - began <= NEW * (1 + BUDGET) + GRACE + most
    assert "though faster by what was measured" in engine.speculator.summary()


def test_gains_are_saved_up_for_bad_luck_but_not_without_end():
    gate = Gate(StepCosts([(1, 2.0), (8, 3.0)]), GuessCosts(0.1, 0.0))
    for _ in range(100):
        gate.book(-1.0)
    assert gate.lost == -GRACE * 2.0
    gate.book(5.0)
    assert gate.lost == -GRACE * 2.0 + 5.0


def test_what_a_fixed_length_loses_is_no_debt_of_the_gates():
    runner = CountingRunner(steep)
    draft = ForcedDraft(texts(1), 0.0, 0.3, runner.spend)
    engine = Engine(runner, Limits(pages=200, page=16, rows=1))
    speculator = engine.speculator = Speculator(draft, engine._forward, 1, fixed=5, clock=lambda: runner.now)
    engine.submit(Request((0,), Sampling(max_new_tokens=NEW)), lambda output: None)
    while engine.busy:
        engine.step()
    assert speculator.counts.rounds > NEW // 2
    assert speculator.gate.lost <= 0


def test_a_longer_round_that_did_badly_once_is_tried_again():
    """What no round offers any more is forgotten: its place is taken to be as good as the others."""
    acceptance = Acceptance()
    for _ in range(5):
        acceptance.add(2, 1, LONG)
    assert acceptance.hazards(2)[1] < 0.5
    for _ in range(200):
        acceptance.add(1, 1, LONG)
    assert acceptance.hazards(2) == pytest.approx([1, 1], abs=0.06)


@pytest.mark.sabotage
def test_sabotage_the_gate_believes_its_draft(monkeypatch):
    monkeypatch.setattr(Gate, "next", lambda self, sequences, behind=0: 5)
    with pytest.raises(AssertionError):
        test_never_slower(0.2, steep)
