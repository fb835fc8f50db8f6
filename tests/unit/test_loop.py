"""The loop: what it calls when, what it writes, how it stops and goes on."""

import os
import signal

import pytest
import torch
from tiny_training import tiny_batch, tiny_trainable, weights

from burnish.errors import PartlyDone, Stopped, UserError
from burnish.records import Evaluation, Step
from burnish.train import loop
from burnish.train.evaluate import evaluate
from burnish.train.loop import Hooks, Job, train
from burnish.train.metrics import MetricsLog, read_metrics

HELDOUT = [tiny_batch(2, seed=100), tiny_batch(1, seed=101, counted=[3])]


def _job(folder, trainable=None, steps=6, **changes):
    settings = {
        "batches": lambda step: [tiny_batch(2, seed=2 * step), tiny_batch(1, seed=2 * step + 1)],
        "lr": lambda step: 0.01 / (step + 1),
        "global_batch": 3,
        "identity": {"lr": 0.01},
        "checkpoint_every": 2,
    }
    if trainable is not None:
        settings["evaluate"] = lambda: (evaluate(trainable.parts[0], HELDOUT).loss, 1.5)
    return Job(steps=steps, folder=folder, **settings | changes)


class Events(list):
    """Records what the loop reports."""

    def hooks(self, **extra):
        names = ("started", "stepped", "evaluated", "saved", "noted")
        return Hooks(**{name: lambda value, name=name: self.append((name, value)) for name in names} | extra)

    def names(self):
        return [name for name, _ in self]


def test_runs_to_the_end_and_reports_in_order(tmp_path):
    trainable, events = tiny_trainable(), Events()
    outcome = train(trainable, _job(tmp_path, trainable, steps=5, eval_every=3), events.hooks())
    step = "stepped"
    assert events.names() == [
        *("started", step, step, "saved", step, "evaluated", "saved", step, "saved", step, "evaluated", "saved"),
    ]
    assert [record.step for record in outcome.curve] == [1, 2, 3, 4, 5]
    assert [record.lr for record in outcome.curve] == [0.01 / n for n in (1, 2, 3, 4, 5)]
    assert {record.tokens for record in outcome.curve} == {33}
    assert [(e.step, e.bits_per_byte) for e in outcome.evals] == [(3, 1.5), (5, 1.5)]
    assert outcome.evals[1].loss == evaluate(trainable.parts[0], HELDOUT).loss
    assert outcome.last.name == "step-000005"
    progress = events[1][1]
    assert progress.steps == 5
    assert progress.eta > 0
    assert progress.tokens_per_second == progress.record.tokens / progress.record.seconds


def test_best_checkpoint_is_that_of_the_lowest_heldout_loss(tmp_path):
    losses = iter([3.0, 2.0, 2.5, 2.0, 2.75, 2.25])
    job = _job(tmp_path, eval_every=1, checkpoint_every=0, keep=1, evaluate=lambda: (next(losses), 1.0))
    outcome = train(tiny_trainable(), job)
    assert outcome.best.name == "step-000002"
    assert sorted(os.listdir(job.checkpoints)) == ["step-000002", "step-000006"]


@pytest.mark.parametrize("at", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_finishes_the_step_saves_and_resumes_exactly(tmp_path, at, number):
    whole = tiny_trainable()
    expected = train(whole, _job(tmp_path / "whole", whole, eval_every=3))
    before = signal.getsignal(number)
    stopped = tiny_trainable()
    job = _job(tmp_path / "stopped", stopped, eval_every=3)

    def interrupt(progress):
        if progress.record.step == at:
            os.kill(os.getpid(), number)

    with pytest.raises(Stopped, match=rf"stopped after step {at} of 6") as caught:
        train(stopped, job, Hooks(stepped=interrupt))
    assert caught.value.exit_code == 128 + number
    assert "\n" not in str(caught.value)
    assert signal.getsignal(number) is before
    resumed, started = tiny_trainable(seed=7), []
    outcome = train(resumed, _job(tmp_path / "stopped", resumed, eval_every=3), Hooks(started=started.append))
    assert started[0].step == at
    assert started[0].next_sample == 3 * at
    assert [r.loss for r in outcome.curve] == [r.loss for r in expected.curve]
    assert outcome.evals == expected.evals
    assert outcome.best.name == expected.best.name
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(resumed).items())


def test_second_signal_acts_at_once(tmp_path):
    def interrupt(progress):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tiny_trainable(), _job(tmp_path), Hooks(stepped=interrupt))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_flt_013_finished_run_does_nothing_more_and_a_longer_one_goes_on(tmp_path):
    seen = []

    def batches(step):
        seen.append(step)
        return [tiny_batch(3, seed=step)]

    first = train(tiny_trainable(), _job(tmp_path, steps=4, batches=batches))
    again = train(tiny_trainable(), _job(tmp_path, steps=4, batches=batches))
    assert again.curve == first.curve
    longer = train(tiny_trainable(), _job(tmp_path, steps=6, batches=batches))
    assert seen == [0, 1, 2, 3, 4, 5]
    assert longer.curve[:4] == first.curve
    with pytest.raises(UserError, match=r"step-000006 is after step 6, train\.steps is 5"):
        train(tiny_trainable(), _job(tmp_path, steps=5))


def test_other_settings_do_not_resume(tmp_path):
    train(tiny_trainable(), _job(tmp_path, steps=2))
    with pytest.raises(UserError, match=r"lr: 0\.01 -> 0\.02"):
        train(tiny_trainable(), _job(tmp_path, identity={"lr": 0.02}))


def test_damaged_newest_checkpoint_is_named_and_the_one_before_used(tmp_path):
    whole = train(tiny_trainable(), _job(tmp_path / "whole"))
    train(tiny_trainable(), _job(tmp_path / "cut", steps=4))
    damaged = tmp_path / "cut" / "checkpoints" / "step-000004" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    events = Events()
    outcome = train(tiny_trainable(), _job(tmp_path / "cut"), events.hooks())
    assert events.names()[:2] == ["noted", "started"]
    assert "step-000004: model.safetensors is damaged" in events[0][1]
    assert events[1][1].step == 2
    assert [r.loss for r in outcome.curve] == [r.loss for r in whole.curve]


@pytest.mark.parametrize(
    ("poison", "where"),
    [
        (lambda m: m.layers[1].mlp.up.register_forward_hook(lambda *a: a[2] * float("nan")), r"layers\.1\.mlp\.up"),
        (
            lambda m: m.layers[0].attention.k.weight.register_hook(lambda g: g * float("inf")),
            r"layers\.0\.attention\.k",
        ),
        (lambda m: m.norm.weight.data[3].fill_(float("nan")), r"parameter model\.norm\.weight"),
        (lambda m: m.layers[1].attention.q.weight.data.fill_(3e38), r"output of model\.layers\.1\.attention\.q"),
    ],
)
def test_non_finite_stops_before_the_update_naming_step_and_layer(tmp_path, poison, where):
    trainable = tiny_trainable()
    kept = {}

    def stepped(progress):
        if progress.record.step == 3:
            poison(trainable.parts[0].model)
            kept.update(weights(trainable))

    with pytest.raises(PartlyDone, match=rf"step 4 is not finite .* first in .*{where}") as caught:
        train(trainable, _job(tmp_path), Hooks(stepped=stepped))
    message = str(caught.value)
    assert "3 of 6 steps done; the last good checkpoint is" in message
    assert message.endswith("step-000002")
    assert all(torch.equal(v, kept[n]) or n == "model.norm.weight" for n, v in weights(trainable).items())
    assert all(p.grad is None for p in trainable.parts[0].parameters())
    assert [record.step for record in read_metrics(tmp_path / "metrics.jsonl")[0]] == [1, 2, 3]


def test_parameters_that_overflowed_in_the_update_are_not_saved(tmp_path):
    job = _job(tmp_path, lr=lambda step: 1e39 if step == 3 else 0.01)
    with pytest.raises(PartlyDone, match=r"after step 4 parameter model\.embed\.weight is not finite"):
        train(tiny_trainable(), job)
    assert os.listdir(job.checkpoints) == ["step-000002"]


def test_disk_that_fills_up_is_partly_done_with_the_last_checkpoint_named(tmp_path, monkeypatch):
    whole = loop.save_checkpoint

    def save_checkpoint(folder, trainable, state, keep, crew):
        if state.step == 4:
            raise UserError("disk full")
        return whole(folder, trainable, state, keep, crew)

    monkeypatch.setattr(loop, "save_checkpoint", save_checkpoint)
    with pytest.raises(PartlyDone, match=r"disk full; 4 of 6 steps done; the last good checkpoint is .*step-000002"):
        train(tiny_trainable(), _job(tmp_path))


def test_folder_that_cannot_be_made_is_refused_before_any_step(tmp_path):
    (tmp_path / "file").write_text("x")
    events = Events()
    with pytest.raises(UserError, match="cannot be written"):
        train(tiny_trainable(), _job(tmp_path / "file"), events.hooks())
    assert "stepped" not in events.names()


def test_log_is_cut_to_the_resumed_step_whatever_it_ends_with(tmp_path):
    path = tmp_path / "metrics.jsonl"
    steps = [Step(step=n, tokens=1, loss=n / 3, lr=0.1, grad_norm=1.0, seconds=0.5) for n in (1, 2, 3)]
    marks = [Evaluation(step=n, loss=2.5, bits_per_byte=1.0) for n in (2, 3)]
    log = MetricsLog(path)
    for record in (steps[0], steps[1], marks[0], steps[2], marks[1]):
        log.add(record)
    log.close()
    with path.open("ab") as file:
        file.write(b'{"kind": "step", "ste')
    assert read_metrics(path) == (tuple(steps), tuple(marks))
    MetricsLog(path, 2, 2).close()
    assert read_metrics(path) == (tuple(steps[:2]), (marks[0],))
    MetricsLog(path, 2, 0).close()  # stopped at step 2 before its evaluation
    assert read_metrics(path) == (tuple(steps[:2]), ())
    log = MetricsLog(path, 2, 0)
    log.add(marks[0])
    log.close()
    assert read_metrics(path) == (tuple(steps[:2]), (marks[0],))


def test_tensorboard_events_lie_beside_the_log(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainable = tiny_trainable()
    outcome = train(trainable, _job(tmp_path, trainable, steps=3, tensorboard=True))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.value for e in events.Scalars("step/loss")] == pytest.approx([r.loss for r in outcome.curve], rel=1e-6)
    assert [e.step for e in events.Scalars("evaluation/loss")] == [3]


def test_evaluation_weighs_every_label_the_same_and_leaves_the_mode():
    trainable = tiny_trainable()
    loss = trainable.parts[0]
    together, apart = evaluate(loss, HELDOUT), [evaluate(loss, [batch]) for batch in HELDOUT]
    assert (together.labels, [score.labels for score in apart]) == (25, [22, 3])
    assert together.loss == pytest.approx((apart[0].loss * 22 + apart[1].loss * 3) / 25, rel=1e-6)
    assert together.bits_per_byte(50) == pytest.approx(together.loss * 25 / 50 / 0.6931471805599453, rel=1e-12)
    assert loss.training
    with pytest.raises(UserError, match="no token to predict"):
        evaluate(loss, [tiny_batch(1, counted=[0])])


def test_a_damaged_log_is_said_and_only_its_damaged_lines_are_lost(tmp_path):
    whole = _job(tmp_path, steps=4)
    train(tiny_trainable(), whole)
    lines = whole.metrics.read_bytes().splitlines(keepends=True)
    whole.metrics.write_bytes(b"".join([lines[0], b"\0" * 40 + b"\n", *lines[2:]]))
    events = Events()
    outcome = train(tiny_trainable(), _job(tmp_path, steps=6), events.hooks())
    assert [step.step for step in outcome.curve] == [1, 3, 4, 5, 6]
    (note,) = [value for name, value in events if name == "noted"]
    assert note.startswith(f"{whole.metrics}: 1 of the 4 steps so far are damaged or missing")
    whole.metrics.unlink()
    again = Events()
    assert train(tiny_trainable(), _job(tmp_path, steps=7), again.hooks()).curve[0].step == 7
    assert any("6 of the 6 steps" in str(value) for name, value in again if name == "noted")


def test_the_speed_shown_is_that_of_several_steps(tmp_path):
    events = Events()
    train(tiny_trainable(), _job(tmp_path, steps=loop.SHOWN_STEPS + 4), events.hooks())
    shown = [value for name, value in events if name == "stepped"]
    last = [p.record for p in shown[-loop.SHOWN_STEPS :]]
    assert shown[-1].tokens_per_second == pytest.approx(sum(s.tokens for s in last) / sum(s.seconds for s in last))
