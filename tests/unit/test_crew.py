"""What ranks agree on: one answer, one error, one largest number."""

from __future__ import annotations

import pytest

import ranks
from burnish.crew import ALONE, Crew, check_equal, started_crew
from burnish.errors import BurnishError, MissingExtra, Stopped, UserError
from burnish.recipe_files import differences


def _outcome(action):
    try:
        return action()
    except BurnishError as error:
        return type(error).__name__, str(error), error.exit_code


def _agree(_: int) -> list:
    crew = started_crew()

    def odd():
        if crew.rank % 2:
            raise UserError(f"rank {crew.rank} cannot")
        return crew.rank

    def never():
        if crew.rank:
            raise AssertionError("called on a rank that does not lead")
        raise Stopped(15, "told to")

    def lacks():
        raise MissingExtra("train", "train", "tensorboard")

    mine = {"optim": {"lr": 0.1 if crew.rank < 2 else 0.2}}
    return [
        crew.gather(crew.rank * 10),
        crew.largest(7 if crew.rank == 1 else 2),
        crew.first(lambda: f"said by {crew.rank}"),
        _outcome(lambda: crew.every(odd)),
        _outcome(lambda: crew.first(never)),
        _outcome(lambda: crew.first(lacks)),
        _outcome(lambda: check_equal(crew, mine, differences)),
        crew.every(lambda: crew.rank),
        crew.leads,
    ]


def test_three_ranks():
    answers = ranks.run(3, _agree, 0)
    assert [answer.pop() for answer in answers] == [True, False, False]
    assert [answer.pop() for answer in answers] == [0, 1, 2]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0] == [
        [0, 10, 20],
        7,
        "said by 0",
        ("UserError", "rank 1 cannot", 2),
        ("Stopped", "told to", 143),
        (
            "MissingExtra",
            "train needs tensorboard, which is not installed; install it with: pip install 'burnish[train]'",
            2,
        ),
        (
            "UserError",
            "rank 2 has another recipe or other data than rank 0 (optim.lr: 0.1 -> 0.2); give all ranks the same",
            2,
        ),
    ]


def test_one_alone():
    assert started_crew() == ALONE == Crew()
    assert (ALONE.gather(3), ALONE.largest(4), ALONE.first(lambda: 5), ALONE.every(lambda: 6)) == ([3], 4, 5, 6)
    with pytest.raises(UserError, match="no"):
        ALONE.first(lambda: _raise())
    with pytest.raises(UserError, match="no"):
        ALONE.every(lambda: _raise())


def _raise():
    raise UserError("no")
