"""How a plan is worded: names for numbers, the right noun and plural, lines that fit, reasons that are the reason."""

from dataclasses import replace

import numpy as np
import pytest

from burnish.errors import UserError
from burnish.mapping import OFFLOAD, RECOMPUTE, Mapping
from burnish.planner import Request, plan_model, request
from burnish.planner.choice import choices
from burnish.planner.explain import over, tensor_links
from burnish.planner.legal import fixed_degrees, why_illegal
from burnish.planner.neighbours import best, degrees_of, neighbours
from burnish.planner.pricing import _whole, capacity, forward_share, tensor_seconds
from burnish.planner.record import record
from burnish.planner.remedies import ladders, more_of
from burnish.planner.search import TIE, search
from burnish.planner.text import WIDTH, lines

NODES = request("llama3-70b", "h100-sxm:8x8", 8192, 128)
ALONE = request("qwen3-0.6b", "h100-sxm:1x1", 4096, 1)
SMALL = request("llama3-8b", "h100-sxm:1x8", 8192, 64)


def said(asked: Request) -> str:
    return "\n".join(lines(plan_model(asked)))


def test_one_gpu_has_no_network_and_one_sequence_no_plural() -> None:
    text = said(ALONE)
    assert "network" not in text
    assert "step: 1 sequence of 4,096 = 4,096 tokens" in text
    assert "  network  " in said(SMALL)


def test_a_processor_is_no_gpu() -> None:
    text = said(request("qwen3-0.6b", "cpu:1x1", 128, 1))
    assert "pick: 1 processor, micro batch 1" in text
    assert "GPU" not in text


def test_single_cards_are_counted_themselves() -> None:
    there = request("llama3-8b", "h100-sxm:1x1", 8192, 8).cluster
    assert more_of(replace(there, nodes=2), there, "GPU") == "2 GPUs instead of 1"
    assert more_of(replace(NODES.cluster, nodes=16), NODES.cluster, "GPU") == "16 nodes of 8 instead of 8"


def test_what_is_fixed_is_named_and_not_numbered() -> None:
    fix = {"offload": OFFLOAD.index("optimizer"), "recompute": RECOMPUTE.index("full"), "tp": 8}
    asked = replace(SMALL, fix=fix)
    changes = [change for ladder in ladders(asked) for change, _ in ladder]
    assert "without --fix offload=optimizer" in changes
    plan = plan_model(asked, [{"recompute": RECOMPUTE.index("none")}])
    values = record(plan)
    assert values["fixed"] == {"offload": "optimizer", "recompute": "full", "tp": 8}
    assert values["why_not"][0]["asked"] == {"recompute": "none"}
    with pytest.raises(UserError) as refused:
        plan_model(replace(NODES, batch=1, fix={"pp": 8, "tp": 8, "vpp": 5, "schedule": 2}))
    assert "schedule=2" not in str(refused.value)


def test_large_sizes_have_thousands_separators() -> None:
    one = choices(NODES, [Mapping(tp=1, dp=64, micro_batch=2)])[0]
    assert f"{(one.memory - capacity(NODES)) / 2**30:,.1f} GiB over" in over(NODES, one)
    assert "1,2" in over(NODES, replace(one, memory=capacity(NODES) + 1250 * 2**30))


@pytest.mark.parametrize("name", ["a name " * 30, "llama"])
def test_the_question_keeps_to_a_hundred_columns(name: str) -> None:
    asked = replace(
        NODES, model=replace(NODES.model, name=name), cluster=replace(NODES.cluster, name="a/path " * 20 + "c.toml")
    )
    assert max(map(len, lines(plan_model(asked)))) <= WIDTH


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"must_shrink": ("gradients",), "fix": {"zero": 0}}, "ZeRO stage 0 leaves gradients whole"),
        ({"forward_gather": False, "fix": {"zero": 3}}, "stage 3 gathers parameters in forward; use 0..2"),
        ({"runnable": True, "fix": {"cp": 2}}, "tensor, pipeline and data parallelism with ZeRO, cp 1; drop cp=2"),
        ({"runnable": True, "fix": {"recompute": 1}}, "recompute none or full; drop recompute=attention"),
        ({"runnable": True, "fix": {"offload": 1}}, "offload none; drop offload=optimizer"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused_by_its_reason(changes: dict, words: str) -> None:
    with pytest.raises(UserError) as refused:
        plan_model(replace(NODES, **changes))
    assert words in str(refused.value)


def test_a_batch_that_stands_in_the_way_is_the_reason() -> None:
    prime = replace(NODES, batch=131, fix={"tp": 8, "pp": 1, "cp": 1})
    refused = why_illegal(prime, prime.fix)
    assert refused is not None
    assert "dp would be 8, which the batch of 131 sequences does not divide by" in refused
    with pytest.raises(UserError, match="--batch 131"):
        fixed_degrees(replace(request("gpt2", "h100-sxm:8x8", 1024, 131)))


def test_neighbours_have_the_settings_that_suit_them_best() -> None:
    pick = plan_model(NODES).pick
    assert pick is not None
    moved = [mapping for axis, mapping in neighbours(NODES, pick.mapping) if axis in ("tp", "pp", "cp")]
    assert moved
    for mapping in moved:
        only = degrees_of(mapping)._asdict()
        found = search(replace(NODES, fix=only))
        mine = choices(NODES, [mapping])[0]
        assert mine.fits == bool(found.count)
        if found.count:
            assert mine.seconds <= found.price.seconds.min() * (1 + TIE) * (1 + 1e-9)


def test_neighbours_keep_what_is_fixed() -> None:
    asked = replace(NODES, fix={"zero": 1, "micro_batch": 16})
    pick = plan_model(asked).pick
    assert pick is not None
    found = neighbours(asked, pick.mapping)
    assert found
    assert all((mapping.micro_batch, mapping.zero) == (16, 1) or mapping.dp * mapping.cp == 1 for _, mapping in found)


def test_a_tie_keeps_the_settings_of_the_pick() -> None:
    pick = plan_model(NODES).pick
    assert pick is not None
    again = best(NODES, pick.mapping, degrees_of(pick.mapping))
    assert choices(NODES, [again])[0].seconds <= pick.seconds * (1 + TIE)
    assert (again.zero, again.recompute) == (pick.mapping.zero, pick.mapping.recompute)


def test_the_whole_traffic_is_compared_on_both_links() -> None:
    mapping = Mapping(tp=8, pp=4, dp=2, sp=1, zero=1, micro_batch=1)
    whole, shows = tensor_seconds(NODES, mapping)
    assert 0 < shows < whole
    slow = replace(NODES, cluster=replace(NODES.cluster, domain=1, network=NODES.cluster.link))
    assert tensor_seconds(slow, mapping)[0] == pytest.approx(whole, rel=0.15)
    assert "of which" in tensor_links(NODES, choices(NODES, [mapping])[0])


def test_forward_of_a_micro_batch_is_the_share_the_price_gives_it() -> None:
    mapping = Mapping(tp=2, dp=4, sp=1)
    whole = forward_share(SMALL, mapping)
    adapters = replace(SMALL, trained="lora", lora_rank=16)
    assert 0.2 < whole < 0.42
    assert forward_share(adapters, mapping) > whole + 0.05
    plan = plan_model(adapters)
    assert plan.pick is not None
    drawn = record(plan)["pick"]["pipeline"]
    again = plan.pick.parts["recompute"] / drawn["micro_batches"]
    both = drawn["forward_seconds"] + drawn["backward_seconds"] - again
    assert drawn["forward_seconds"] / both == pytest.approx(forward_share(adapters, plan.pick.mapping))


def test_no_cause_takes_less_than_nothing() -> None:
    seconds = np.array([10.0, 10.0, 10.0])
    assert str(_whole(np.array([-1e-16, -1.0, 2.0]), seconds).tolist()) == "[0.0, -1.0, 2.0]"
    found = search(request("llama3-8b", "h100-sxm:2x8", 8192, 64))
    assert all(np.all(part >= 0) for part in found.price.parts.values())
