"""The pool of ranks: real groups of each size, and a rank that raises, dies or hangs is named, with where it was."""

import os
import time

import pytest
import torch
import torch.distributed as dist

import ranks


def total() -> tuple[float, int, int]:
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    return value.item(), dist.get_world_size(), os.getpid()


def raise_on_last() -> None:
    if dist.get_rank() == dist.get_world_size() - 1:
        raise KeyError("the odd one")
    dist.barrier()


def die_on_first() -> None:
    if dist.get_rank() == 0:
        os._exit(7)
    dist.barrier()


def wait_alone() -> None:
    if dist.get_rank() == 1:
        time.sleep(60)
    dist.barrier()


def test_groups_of_each_size_in_the_same_processes():
    pids = set()
    for world, expected in ((1, 1.0), (2, 3.0), (4, 10.0), (2, 3.0)):
        results = ranks.run(world, total)
        assert [r[:2] for r in results] == [(expected, world)] * world
        pids |= {r[2] for r in results}
    assert len(pids) == 4


@pytest.mark.parametrize(
    ("function", "message"),
    [(raise_on_last, "rank 1 raised:(.|\n)*the odd one"), (die_on_first, "exit code 7")],
)
def test_a_rank_that_fails_ends_the_call_at_once(function, message):
    began = time.monotonic()
    with pytest.raises(ranks.RankError, match=message):
        ranks.run(2, function)
    assert time.monotonic() - began < 20
    assert ranks.run(2, total)[0][0] == 3.0


def test_a_rank_that_hangs_is_named_with_its_stack():
    ranks.run(2, total)
    with pytest.raises(ranks.RankError, match=r"rank 1 hangs:(.|\n)*wait_alone"):
        ranks.run(2, wait_alone, limit=2)
