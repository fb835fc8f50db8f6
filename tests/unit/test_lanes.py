"""Lanes do every piece once, whichever lane takes it, tell what went wrong, and end with who made them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from burnish.serve.lanes import Lanes


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("pieces", [0, 1, 3, 50])
@pytest.mark.parametrize("alone", [True, False])
def test_every_piece_is_done_once_with_what_is_given(count, pieces, alone):
    lanes, seen = Lanes(count), []
    for turn in range(5):
        lanes.run([lambda given, k=k: seen.append((given, k)) for k in range(pieces)], turn, alone)
        assert sorted(seen) == [(turn, k) for k in range(pieces)]
        seen.clear()


def test_pieces_run_beside_each_other():
    barrier = threading.Barrier(2, timeout=20)
    Lanes(2).run([lambda given: barrier.wait(), lambda given: barrier.wait()], None)


@pytest.mark.parametrize("bad", [0, 7, 19])
def test_what_a_piece_raises_is_raised_and_the_lanes_go_on(bad):
    lanes, seen = Lanes(3), []

    def piece(number: int):
        def work(given: None) -> None:
            if number == bad:
                raise ValueError(f"piece {number}")
            seen.append(number)

        return work

    with pytest.raises(ValueError, match=f"piece {bad}"):
        lanes.run([piece(k) for k in range(20)], None)
    seen.clear()
    lanes.run([piece(k) for k in range(20, 30)], None)
    assert sorted(seen) == list(range(20, 30))


def test_threads_end_with_their_lanes():
    before = set(threading.enumerate())
    lanes = Lanes(4)
    own = set(threading.enumerate()) - before
    assert len(own) == 3
    del lanes
    gc.collect()
    for thread in own:
        thread.join(20)
        assert not thread.is_alive()


def test_a_process_with_lanes_ends_in_peace():
    lines = (
        "import torch",
        "from burnish.serve.lanes import Lanes",
        "lanes, x = Lanes(3), torch.ones(50, 50)",
        "lanes.run([lambda given: given @ given] * 9, x)",
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
