"""The training loop: steps, evaluations and checkpoints until the last step, a signal, or a loss that is not finite.

It goes on from the newest whole checkpoint of its folder. Everything a step depends on is in a checkpoint or a function
of the step's number, so a run that was killed anywhere and resumed gives the losses of one that was not.

On many ranks each runs the loop, and all of them together decide whether to go on after every step; the first one writes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from burnish.crew import ALONE, Crew
from burnish.errors import BurnishError, PartlyDone, Stopped, UserError
from burnish.records import Evaluation, Step
from burnish.train.diverged import bad_parameter_of, first_bad_of
from burnish.train.metrics import MetricsLog, read_metrics
from burnish.train.optim import fill_state
from burnish.train.state import Best, State, checkpoint_path, latest, load_checkpoint, save_checkpoint
from burnish.train.step import NonFiniteError, Trainable
from burnish.train.stopping import StopRequest, watched_signals

FAULT = 1000  # above every signal: the first rank cannot go on
SHOWN_STEPS = 20  # that the speed on the screen is the mean of
RESUME = "run the same command again to go on"


class Heldout(NamedTuple):
    """What an evaluation gives: the loss that the best weights are chosen by, and how good that is in the user's terms."""

    loss: float
    bits_per_byte: float | None = None
    score: float | None = None


@dataclass(frozen=True)
class Job:
    """What the loop needs to know. Steps count from 1; `batches(n)` and `lr(n)` take the number n of steps done before.

    `evaluate` gives the loss on what is held out, with bits per byte of text or a score; it is called every `eval_every`
    steps and at the end (0: only then). Checkpoints are written every `checkpoint_every` steps, at the end, and after the
    best evaluation so far.
    `identity` holds the settings without which a checkpoint must not be resumed.
    """

    steps: int
    batches: Callable[[int], list[Any]]
    lr: Callable[[int], float]
    folder: Path
    global_batch: int
    identity: Mapping[str, Any]
    evaluate: Callable[[], Heldout | tuple[float, float]] | None = None
    eval_every: int = 0
    checkpoint_every: int = 0
    keep: int = 2
    tensorboard: bool = False
    crew: Crew = ALONE

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


@dataclass(frozen=True)
class Progress:
    """One finished step, for whoever shows it. `tokens_per_second` is over the last few steps, `eta` in seconds, from the
    mean speed of this process so far."""

    record: Step
    steps: int
    tokens_per_second: float
    eta: float


def _ignore(_: Any) -> None:
    pass


@dataclass(frozen=True)
class Hooks:
    """What to call when something happened; none of them can change the run."""

    started: Callable[[State], None] = _ignore
    stepped: Callable[[Progress], None] = _ignore
    evaluated: Callable[[Evaluation], None] = _ignore
    saved: Callable[[Path], None] = _ignore
    noted: Callable[[str], None] = _ignore


@dataclass(frozen=True)
class Outcome:
    """The whole run, earlier processes included: every step and evaluation, and where the weights are."""

    curve: tuple[Step, ...]
    evals: tuple[Evaluation, ...]
    last: Path
    best: Path


def train(trainable: Trainable, job: Job, hooks: Hooks | None = None) -> Outcome:
    """Run `job` to its end, or on from where it stands.

    Raises Stopped after SIGTERM or SIGINT, with the step finished and saved. Raises PartlyDone, with the last good
    checkpoint kept, when a loss or gradient is not finite (naming step and layer; the update is not applied) or when
    a checkpoint cannot be written. Raises UserError for a folder that cannot be written or holds other settings.
    """
    hooks = hooks or Hooks()
    fill_state(trainable.optimizer)
    state = _resume(trainable, job, hooks)
    log = _open_log(job, state, hooks)
    try:
        with watched_signals(patient=job.crew.world > 1) as request:
            state = _Run(trainable, job, hooks, log, request).go_on(state)
    finally:
        if log is not None:
            log.close()
    curve, evals = read_metrics(job.metrics) if job.crew.leads else ((), ())
    last = checkpoint_path(job.checkpoints, state.step)
    return Outcome(curve, evals, last, checkpoint_path(job.checkpoints, state.best.step) if state.best else last)


def _resume(trainable: Trainable, job: Job, hooks: Hooks) -> State:
    found, skipped = job.crew.first(lambda: latest(job.checkpoints))
    for note in skipped:
        hooks.noted(note)
    state = State(0, 0, job.identity)
    if found:
        state = load_checkpoint(found, trainable, job.identity, job.crew)
    if state.step > job.steps:
        raise UserError(f"{found} is after step {state.step}, train.steps is {job.steps}; use at least {state.step}")
    hooks.started(state)
    return state


def _open_log(job: Job, state: State, hooks: Hooks) -> MetricsLog | None:
    """The log, for the rank that writes it. Raises UserError, on all ranks, when it cannot be written."""
    made: list[MetricsLog] = []

    def make() -> int:
        board = job.folder / "tensorboard" if job.tensorboard else None
        made.append(MetricsLog(job.metrics, state.step, state.evaluated, board))
        return made[0].lost

    if lost := job.crew.first(make):
        hooks.noted(
            f"{job.metrics}: {lost} of the {state.step} steps so far are damaged or missing in it; the curve leaves them out"
        )
    return made[0] if made else None


@dataclass(frozen=True)
class _Run:
    """The loop with what it works on; the state is passed along, never kept. `faults` is what the disk refused to take."""

    trainable: Trainable
    job: Job
    hooks: Hooks
    log: MetricsLog | None
    request: StopRequest
    faults: list[BurnishError] = field(default_factory=list)

    def go_on(self, state: State) -> State:
        """Take steps until the end. The state that comes in is on disk, unless it is the very start."""
        began, before = time.perf_counter(), state.step
        recent: deque[Step] = deque(maxlen=SHOWN_STEPS)
        if self._owes_evaluation(state):
            state = self._evaluate(state)
        while state.step < self.job.steps:
            record = self._step(state)
            state = replace(state, step=record.step, next_sample=record.step * self.job.global_batch)
            pace = (time.perf_counter() - began) / (state.step - before)
            recent.append(record)
            speed = sum(step.tokens for step in recent) / sum(step.seconds for step in recent)
            self.hooks.stepped(Progress(record, self.job.steps, speed, pace * (self.job.steps - state.step)))
            state = self._look_and_save(state)
        return state

    def _step(self, state: State) -> Step:
        began = time.perf_counter()
        micros, lr = self.job.batches(state.step), self.job.lr(state.step)
        number = state.step + 1
        try:
            result = self.trainable.step(micros, lr)
        except NonFiniteError as error:
            where = first_bad_of(self.trainable, micros, self.job.crew)
            values = f"loss {error.loss:.4g}, gradient norm {error.grad_norm:.4g}"
            raise self._partly(
                state, f"step {number} is not finite ({values}), first in {where}; lower optim.lr"
            ) from None
        seconds = time.perf_counter() - began
        record = Step(
            step=number, tokens=result.tokens, loss=result.loss, lr=lr, grad_norm=result.grad_norm, seconds=seconds
        )
        self._note(record)
        return record

    def _look_and_save(self, state: State) -> State:
        """Evaluate and save after a step, where due; a request to stop leaves the evaluation to the resumed run.

        The ranks stop at the same step, for whichever of them the signal came first.
        """
        stop = self._agreed(state)
        improved = False
        if not stop and self._owes_evaluation(state):
            best = state.best
            state = self._evaluate(state)
            improved = state.best != best
        every = self.job.checkpoint_every
        due = (every and state.step % every == 0) or state.step == self.job.steps
        if due or improved or stop:
            self._save(state)
        if stop and (state.step < self.job.steps or self._owes_evaluation(state)):
            raise Stopped(
                stop,
                f"stopped after step {state.step} of {self.job.steps}; saved in {self.job.checkpoints}; {RESUME}",
            )
        return state

    def _agreed(self, state: State) -> int:
        """The signal that asks to stop, 0 for none. Raises PartlyDone, on every rank, where the first could not write."""
        asked = self.job.crew.largest(FAULT if self.faults else self.request.signal)
        if asked == FAULT:
            self._write(state, lambda: self.job.crew.first(self._give_up))
        return asked

    def _give_up(self) -> None:
        raise self.faults[0]

    def _note(self, record: Step | Evaluation) -> None:
        """Write a record to the log, on the rank that has it; a fault waits for all ranks to hear of it."""
        try:
            if self.log is not None:
                self.log.add(record)
        except UserError as error:
            self.faults.append(error)

    def _owes_evaluation(self, state: State) -> bool:
        if self.job.evaluate is None or state.step == 0 or state.evaluated == state.step:
            return False
        every = self.job.eval_every
        return bool(every and state.step % every == 0) or state.step == self.job.steps

    def _evaluate(self, state: State) -> State:
        assert self.job.evaluate is not None
        found = Heldout(*self.job.evaluate())
        record = Evaluation(step=state.step, **found._asdict())
        self._note(record)
        self._agreed(state)
        self.hooks.evaluated(record)
        best = Best(state.step, found.loss) if state.best is None or found.loss < state.best.loss else state.best
        return replace(state, evaluated=state.step, best=best)

    def _save(self, state: State) -> None:
        if bad := bad_parameter_of(self.trainable, self.job.crew):
            raise self._partly(state, f"after step {state.step} {bad} is not finite; lower optim.lr")
        if self.log is not None:
            self.log.flush()
        self._write(state, lambda: self.hooks.saved(self._checkpoint(state)))

    def _checkpoint(self, state: State) -> Path:
        return save_checkpoint(self.job.checkpoints, self.trainable, state, self.job.keep, self.job.crew)

    def _write(self, state: State, action: Callable[[], None]) -> None:
        """Do what writes to the disk; where that fails, the run is partly done."""
        try:
            action()
        except UserError as error:
            raise self._partly(state, str(error)) from None

    def _partly(self, state: State, what: str) -> PartlyDone:
        kept, _ = latest(self.job.checkpoints)
        left = f"the last good checkpoint is {kept}" if kept else "there is no checkpoint yet"
        return PartlyDone(f"{what}; {state.step} of {self.job.steps} steps done; {left}")
