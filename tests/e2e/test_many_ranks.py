"""Ranks from the command line, as a user starts them: real processes that train together, die, and are named."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from many_ranks import LONG, SMALL, alive, at_step, end, losses, ranks_of, send, start

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="ranks are found by /proc")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one process has been to the end, in `alone`."""
    place = tmp_path_factory.mktemp("ranks")
    code, said = end(start("train", *SMALL, "--out", "alone", cwd=place))
    assert code == 0, said
    return place


def same_losses(place: Path, name: str) -> None:
    expected, found = losses(place / "alone"), losses(place / name)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, abs=1e-6)


def test_two_ranks_are_one_run(place: Path) -> None:
    """Losses, held-out loss, what is exported and what is reported; tensor and data parallel ranks alike."""
    code, said = end(start("run", *SMALL, "parallel.zero=2", "--out", "pair", "--nproc", "2", cwd=place))
    assert (code, said) == (0, [])
    same_losses(place, "pair")
    report, alone = (json.loads((place / name / "report.json").read_text()) for name in ("pair", "alone"))
    assert report["status"] == "done"
    assert report["machine"]["ranks"] == 2
    assert [e["loss"] for e in report["evals"]] == pytest.approx([e["loss"] for e in alone["evals"]], abs=1e-6)
    rows = {row["key"]: row for row in report["rows"]}
    for key in ("parameters", "memory.optimizer", "comm.count", "comm.bytes"):
        assert rows[key]["measured"] == rows[key]["predicted"] > 0, key


def test_a_killed_rank_is_named_and_other_ranks_go_on_from_the_checkpoint(place: Path) -> None:
    launcher = start("train", *SMALL, "--out", "killed", "--nproc", "3", cwd=place)
    at_step(place / "killed", 5, launcher)
    ranks = ranks_of(launcher)
    send(ranks[1], signal.SIGKILL)
    code, (said,) = end(launcher, limit=60)
    assert code == 4
    assert "rank 1 is gone in step " in said
    assert "waited for it in " in said
    assert "the last good checkpoint is killed/checkpoints/step-0000" in said
    assert not alive(ranks)
    code, _ = end(start("train", *SMALL, "parallel.zero=3", "--out", "killed", "--nproc", "2", cwd=place))
    assert code == 0
    same_losses(place, "killed")


def test_ranks_that_do_not_come_out_are_refused_before_any_starts(place: Path) -> None:
    for wrong, said in (
        (["parallel.dp=2", "--nproc", "3"], "3 ranks were started, parallel.dp 2 needs 2"),
        (["parallel.tp=2", "--nproc", "3"], "3 ranks were started, which parallel.tp 2 does not divide"),
        (["parallel.dp=2"], "add --nproc 2"),
        (["--nproc", "0"], "--nproc"),
    ):
        code, lines = end(start("train", *SMALL, *wrong, "--out", "none", cwd=place))
        assert code == 2
        assert said in lines[0]
    assert not (place / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_stops_all_at_one_step(place: Path, number: signal.Signals) -> None:
    name = f"told {number.name}"
    launcher = start("train", *LONG, "--out", name, "--nproc", "2", cwd=place)
    at_step(place / name, 5, launcher)
    ranks = ranks_of(launcher)
    launcher.send_signal(number)
    code, said = end(launcher, limit=60)
    assert code == 128 + number
    done = max(losses(place / name))
    assert f"stopped after step {done} of 4000; saved in" in said[0]
    assert (place / name / "checkpoints" / f"step-{done:06d}").is_dir()
    assert not alive(ranks)


@pytest.mark.slow
def test_a_frozen_rank_is_named_and_ended(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_SILENCE", "8")
    launcher = start("train", *LONG, "--out", "frozen", "--nproc", "3", cwd=place)
    at_step(place / "frozen", 5, launcher)
    ranks = ranks_of(launcher)
    send(ranks[2], signal.SIGSTOP)
    code, (said,) = end(launcher, limit=60)
    assert code == 4
    assert "rank 2 has not answered for 8 s in step " in said
    assert not alive(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["parallel.tp=2", "parallel.pp=2"])
def test_ranks_that_split_the_model(place: Path, split: str) -> None:
    code, said = end(start("train", *SMALL, split, "--out", split, "--nproc", "4", cwd=place))
    assert (code, said) == (0, [])
    same_losses(place, split)


WRONG = """
import os
from burnish.recipe import replace
from burnish.recipe_files import load
from burnish.train.step import Trainable

def recipe():
    made = load("quickstart")
    return replace(made, {"optim.lr": 0.5}) if os.environ.get("RANK") == "1" else made

def failing():
    from burnish.train import loop
    step = loop._Run._step
    def broken(self, state):
        if state.step == 5 and os.environ["RANK"] == "1":
            raise ZeroDivisionError("no luck")
        return step(self, state)
    if "RANK" in os.environ:
        loop._Run._step = broken
    return load("quickstart")
"""


@pytest.mark.slow
def test_a_rank_with_another_recipe_and_one_that_raises_are_named_once(place: Path) -> None:
    (place / "wrong.py").write_text(WRONG)
    code, said = end(start("train", "wrong.py:recipe", *SMALL[1:], "--out", "w", "--nproc", "2", cwd=place))
    assert code == 2
    assert said == [
        "burnish: rank 1 has another recipe or other data than rank 0 (optim.lr: 0.004 -> 0.5); give all ranks the same"
    ]
    options = ["--out", "r", "--nproc", "2", "--restarts", "1"]
    code, said = end(start("train", "wrong.py:failing", *SMALL[1:], *options, cwd=place))
    assert code == 1
    line = "burnish: rank 1 in step 6: ZeroDivisionError: no luck"
    assert [text for text in said if text.startswith("burnish")] == [
        line,
        "burnish: starts again (1 restart left)",
        line,
    ]


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(place: Path) -> None:
    """No file may grow beyond a size that the second half of the run's checkpoints needs."""
    code, _ = end(start("train", *SMALL, "train.steps=12", "--out", "full", "--nproc", "2", cwd=place))
    assert code == 0
    kept = sorted(path.name for path in (place / "full" / "checkpoints").iterdir())

    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    code, said = end(
        start("train", *LONG, "--out", "full2", "--nproc", "2", cwd=place, preexec_fn=limit)  # the optimizer is larger
    )
    assert code == 4
    assert len(said) == 1
    assert "cannot write a checkpoint" in said[0]
    assert "4 of 4000 steps done; there is no checkpoint yet" in said[0]
    assert list((place / "full2" / "checkpoints").iterdir()) == []
    assert kept == ["step-000008", "step-000012"]
