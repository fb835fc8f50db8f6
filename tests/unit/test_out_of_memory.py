"""Out of memory: the advice depends on the state, and the plan keeps a margin for a fragmented heap."""

import pytest

from burnish.out_of_memory import Memory, advice, expandable, explain, is_out_of_memory, requested
from burnish.plan import make_plan
from burnish.recipe_files import load

GIB = 2**30


def test_flt_126_a_setting_that_is_on_is_not_recommended() -> None:
    """11.6 GiB asked, 40 GiB idle: expandable segments help only where they are off."""
    off = Memory(11.6 * GIB, 30 * GIB, 70 * GIB, 80 * GIB, expandable=False)
    on = Memory(11.6 * GIB, 30 * GIB, 70 * GIB, 80 * GIB, expandable=True)
    assert "expandable_segments:True" in advice(off, "full", 1)[0]
    assert "expandable_segments:True" not in " ".join(advice(on, "full", 1))
    assert "although expandable segments are on" in advice(on, "full", 1)[0]


def test_full_memory_is_not_called_fragmented() -> None:
    full = Memory(2 * GIB, 78 * GIB, 79 * GIB, 80 * GIB, expandable=False)
    assert advice(full, "none", 8) == [
        "train.micro_batch=4 with the same train.global_batch",
        "memory.checkpointing=full",
    ]
    assert advice(full, "full", 1) == ["a higher parallel.zero on more ranks, a shorter data.seq, or a smaller model"]


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("CUDA out of memory. Tried to allocate 11.60 GiB. GPU 0 has", 11.6 * GIB),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 400000000 bytes. Error code 12", 4e8),
        ("something else", 0.0),
    ],
)
def test_the_request_is_read_from_the_message(message: str, size: float) -> None:
    assert requested(message) == pytest.approx(size)
    assert is_out_of_memory(RuntimeError(message)) == ("can't allocate" in message)


def test_whether_segments_may_grow_is_read_from_the_environment() -> None:
    assert expandable({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"})
    assert not expandable({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})
    assert not expandable({})


def test_explained_in_one_line() -> None:
    said = explain(Memory(GIB, 3 * GIB, 3 * GIB, 4 * GIB, False), "saved for backward", "none", 2)
    assert "\n" not in said
    assert "1.00\u00a0GiB failed" in said
    assert "saved for backward" in said


def test_flt_125_the_plan_keeps_a_margin_for_a_fragmented_heap() -> None:
    planned = make_plan(load("llama3-8b-h100")).predicted
    parts = [
        planned[key] for key in planned if key.startswith("memory.") and key not in ("memory.peak", "memory.reserve")
    ]
    assert planned["memory.reserve"] == pytest.approx(0.07 * sum(parts))
    assert planned["memory.peak"] == pytest.approx(1.07 * sum(parts))
    assert "memory.reserve" not in make_plan(load("quickstart")).predicted
