"""Ranks started for one call: they form a group, and one that raises, dies or hangs is named and leaves nothing behind."""

import multiprocessing
import os
import time

import pytest
import torch
import torch.distributed as dist

from burnish import ranks


def gathered(word: str) -> tuple[int, list[str], int]:
    words: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(words, f"{word} {dist.get_rank()}")
    return dist.get_rank(), words, torch.get_num_threads()


def raise_on_last() -> None:
    if dist.get_rank() == dist.get_world_size() - 1:
        raise KeyError("the odd one")
    time.sleep(60)


def die_on_first() -> None:
    if dist.get_rank() == 0:
        os._exit(7)
    time.sleep(60)


def hang() -> None:
    time.sleep(60)


def test_each_rank_answers_in_its_place():
    words = ["from 0", "from 1"]
    assert ranks.run(2, gathered, "from") == [(0, words, 1), (1, words, 1)]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("function", "limit", "message"),
    [
        (raise_on_last, 60, r"rank 1 raised:(.|\n)*the odd one"),
        (die_on_first, 60, r"rank 0 died"),
        (hang, 1, r"no answer in time from rank 0, 1"),
    ],
)
def test_a_rank_that_fails_ends_the_call(function, limit, message):
    began = time.monotonic()
    with pytest.raises(ranks.RankError, match=message):
        ranks.run(2, function, limit=limit)
    assert time.monotonic() - began < 40
    assert not multiprocessing.active_children()
