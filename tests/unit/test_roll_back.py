"""What is left of a sequence after some of its guesses fell: pages, positions and marks as if nobody had guessed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.serve.pages import Pages
from burnish.serve.schedule import Schedule, Sequence

LENGTH = 40


def grown(rounds: list[tuple[int, int]], page: int) -> tuple[Schedule, Sequence]:
    """A sequence after rounds of (guesses, those that stood); its tokens are numbers in their order."""
    schedule = Schedule(Pages(LENGTH, page), 1, LENGTH)
    sequence = Sequence([0, 1, 2], 3, LENGTH)
    schedule.add(sequence)
    (piece,) = schedule.next()
    schedule.done(piece)
    sequence.tokens.append(3)
    for guesses, stood in rounds:
        (piece,) = schedule.next()
        after = len(sequence.tokens)
        wrong = [99] * (guesses - stood)
        wide = schedule.widen(piece, [*range(after, after + stood), *wrong])
        assert wide.scored == 1 + guesses
        assert wide.tokens == [after - 1, *wide.guesses]
        schedule.done(wide, stood)
        sequence.tokens.extend(range(after, after + stood + 1))
    return schedule, sequence


ROUNDS = st.lists(st.integers(0, 5).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), max_size=6)


def check_as_if_nobody_had_guessed(rounds: list[tuple[int, int]], page: int) -> None:
    """The named check."""
    schedule, sequence = grown(rounds, page)
    plain_schedule, plain = grown([(0, 0)] * sum(stood + 1 for _, stood in rounds), page)
    assert sequence.tokens == plain.tokens
    assert (sequence.computed, len(sequence.pages)) == (plain.computed, len(plain.pages))
    assert len(sequence.marks) == len(plain.marks) == sequence.computed // page
    assert schedule.pages.free == plain_schedule.pages.free
    other = Sequence(list(range(LENGTH)), LENGTH, LENGTH)
    assert len(schedule.pages.match(other.tokens)) == len(plain_schedule.pages.match(other.tokens))


@settings(deadline=None, max_examples=60)
@given(ROUNDS, st.integers(1, 6))
def test_pages_positions_and_marks(rounds, page):
    check_as_if_nobody_had_guessed(rounds, page)


def test_a_page_that_others_know_is_never_written_again():
    schedule, sequence = grown([(3, 3)], 4)
    first = sequence.pages[0]
    schedule.roll_back(sequence, 6)
    assert (sequence.computed, len(sequence.pages), len(sequence.marks)) == (6, 2, 1)
    schedule.roll_back(sequence, 3)
    assert (sequence.computed, sequence.pages, sequence.marks) == (0, [], [])
    assert schedule.pages.match([0, 1, 2, 3, 4]) == [first]


def test_nobody_gives_way_for_a_guess():
    schedule = Schedule(Pages(3, 2), 2, 8)
    first, second = Sequence([0], 1, 6, 0), Sequence([1], 1, 6, 1)
    schedule.add(first)
    schedule.add(second)
    pieces = schedule.next()
    wide = schedule.widen(pieces[0], [1, 2, 3, 4])
    assert (wide.guesses, wide.count) == ((1, 2, 3), 4)
    assert schedule.widen(pieces[1], [7, 7, 7]).guesses == (7,)
    assert (schedule.preempted, schedule.running) == (0, [first, second])


@pytest.mark.sabotage
def test_sabotage_pages_are_known_by_guesses_that_fell(monkeypatch):
    done = Schedule.done
    monkeypatch.setattr(Schedule, "done", lambda self, piece, accepted=0: done(self, piece, len(piece.guesses)))
    with pytest.raises(AssertionError):
        check_as_if_nobody_had_guessed([(5, 1)], 2)


@pytest.mark.sabotage
def test_sabotage_positions_are_kept_that_fell(monkeypatch):
    monkeypatch.setattr(Schedule, "roll_back", lambda self, sequence, length: None)
    with pytest.raises((AssertionError, ValueError)):
        check_as_if_nobody_had_guessed([(3, 0)], 4)
