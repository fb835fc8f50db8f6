"""What the terminal shows of plans and checks."""

import io

from rich.console import Console

from burnish import show
from burnish.plan import make_plan
from burnish.recipe import replace
from burnish.recipes.quickstart import quickstart


def printed(micro: int) -> str:
    console = Console(file=io.StringIO(), width=200)
    show.plan(make_plan(replace(quickstart(), {"train.micro_batch": micro})), console)
    return console.file.getvalue()


def test_one_of_a_thing_is_not_many() -> None:
    assert "4 rows = 1,024 tokens; a rank takes 4 rows in 1 micro batch of 4; 1,800 steps" in printed(4)
    assert "in 2 micro batches of 2;" in printed(2)


def test_counts_among_checks_are_whole() -> None:
    console = Console(file=io.StringIO(), width=200)
    show.checks({"tensors": 47, "text_equal": True}, console)
    assert console.file.getvalue() == "check: tensors: 47\ncheck: text equal: yes\n"
