"""What a plan says: every reason is a number that pricing the mapping again gives, and nothing is left unsaid."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.hardware import GIB
from burnish.mapping import OFFLOAD, RECOMPUTE, Mapping
from burnish.plan import make_plan
from burnish.planner import ModelPlan, Request, plan_model, request
from burnish.planner.candidates import AXES
from burnish.planner.choice import Choice, choices, in_words
from burnish.planner.explain import compared, tensor_links
from burnish.planner.legal import degrees
from burnish.planner.neighbours import degrees_of, neighbours
from burnish.planner.pricing import capacity
from burnish.planner.record import record
from burnish.planner.search import TIE, search
from burnish.planner.text import WIDTH, lines

FIXTURES = Path(__file__).parents[1] / "fixtures"
CLASSIC = request("llama3-70b", "h100-sxm:8x8", 8192, 256)
ROUTED = request("mixtral-8x7b", "h100-sxm:2x8", 4096, 64)
TIGHT = request("llama3-70b", "h100-sxm:1x8", 8192, 64)


@pytest.fixture(scope="module")
def classic() -> ModelPlan:
    return plan_model(CLASSIC, [{"tp": 64}, {"tp": 7}, {"tp": 8, "pp": 8}])


@pytest.fixture(scope="module")
def tight() -> ModelPlan:
    return plan_model(TIGHT)


def made_up(**changes: object) -> Choice:
    """A choice whose numbers are given."""
    plain = Choice(
        mapping=Mapping(tp=8, dp=8, micro_batch=1),
        fits=True,
        seconds=10.0,
        memory=70 * GIB,
        stages={0: {"activations": 40 * GIB, "optimizer": 30 * GIB}},
        owner=0,
        parts={"compute": 9.0, "tensor": 1.0},
        cross_node_bytes=0.0,
        tokens_per_second=1.0,
        mfu=None,
    )
    return replace(plain, **changes)


def test_what_is_too_large_is_told_by_how_much_where_and_why() -> None:
    stages = {0: {"activations": 40 * GIB, "optimizer": 30 * GIB}, 3: {"activations": 60 * GIB, "optimizer": 31 * GIB}}
    other = made_up(mapping=Mapping(tp=2, pp=4, dp=8), fits=False, memory=91 * GIB, stages=stages, owner=3)
    over = f"{91 - CLASSIC.cluster.chip.memory / GIB:.1f}"
    said = compared(CLASSIC, made_up(), other)
    assert said == f"{over} GiB over on stage 3: activations 60.0 instead of 40.0 GiB"


def test_what_is_slower_is_told_by_how_much_and_in_which_part() -> None:
    said = compared(CLASSIC, made_up(), made_up(seconds=12.0, parts={"compute": 8.5, "tensor": 3.5}))
    assert said == "2.00 s slower (+20 %): 2.50 s more in tensor"


@pytest.mark.parametrize(("seconds", "sign"), [(10 * (1 + 0.9 * TIE), "+0.90 %"), (10 * (1 - 0.9 * TIE), "-0.90 %")])
def test_a_tie_is_told_with_what_is_less_simple(seconds: float, sign: str) -> None:
    said = compared(CLASSIC, made_up(), made_up(seconds=seconds, mapping=Mapping(tp=8, dp=8, zero=2)))
    assert said == f"a tie ({sign}), less simple: zero 2 for 0"


def test_every_open_axis_of_the_pick_has_a_reason_and_each_reason_is_true(classic: ModelPlan) -> None:
    assert classic.pick is not None
    said = {why.axis for why in classic.why}
    moved = [other for other in classic.alternatives if other.change]
    assert {other.change.split()[0] for other in moved} <= said
    assert {"tp", "pp", "zero", "micro_batch", "recompute"} <= said
    for other in classic.alternatives:
        again = choices(CLASSIC, [other.mapping])[0]
        assert (again.seconds, again.memory, again.fits) == (other.seconds, other.memory, other.fits)
        if not other.fits:
            assert f"{(again.memory - capacity(CLASSIC)) / GIB:.1f} GiB over" in other.reason
        else:
            assert ("slower" in other.reason) == (again.seconds > classic.pick.seconds * (1 + TIE))
            assert ("tie" in other.reason) or "slower" in other.reason


@pytest.mark.parametrize("asked", [CLASSIC, ROUTED], ids=["dense", "experts"])
def test_neighbours_are_legal_and_differ_in_the_axis_they_are_named_for(asked: Request) -> None:
    found = search(asked)
    for index in found.order[:40]:
        pick = Mapping(**{axis: int(getattr(found.mapping, axis)[index]) for axis in AXES})
        pairs = neighbours(asked, pick)
        assert len({mapping for _, mapping in pairs}) >= len(pairs) - 2
        for axis, mapping in pairs:
            assert getattr(mapping, axis) != getattr(pick, axis)
            assert degrees_of(mapping) in degrees(asked)
            assert asked.batch % (mapping.dp * mapping.micro_batch) == 0
            assert mapping.vpp == 1 or asked.batch // (mapping.dp * mapping.micro_batch) % mapping.pp == 0


def test_the_links_of_tensor_parallelism_are_compared_in_seconds_a_layer() -> None:
    pick = choices(CLASSIC, [Mapping(tp=8, pp=4, dp=2, sp=1, zero=1, micro_batch=1)])[0]
    said = tensor_links(CLASSIC, pick)
    found = re.fullmatch(
        r"stays in the node of 8: (\S+ m?s) a layer and micro batch on nvlink4, of which (\S+ m?s) shows; (\S+ m?s) across .*",
        said,
    )
    assert found is not None, said
    near, shows, far = (
        float(value) * {"s": 1, "ms": 1e-3}[unit] for value, unit in (text.split() for text in found.groups())
    )
    assert 0 < shows < near < far / 2
    wide = choices(CLASSIC, [Mapping(tp=16, pp=4, dp=1, sp=1, micro_batch=1)])[0]
    assert tensor_links(CLASSIC, wide).startswith("crosses domains of 8: ")


def test_a_mapping_that_was_asked_about_is_held_against_the_pick(classic: ModelPlan) -> None:
    wide, illegal, deep = classic.why_not
    assert wide.choice is not None
    assert wide.choice.mapping.tp == 64
    assert "slower" in wide.text
    assert illegal.choice is None
    assert "legal: 1, 2, 4, 8" in illegal.text
    assert deep.choice is not None
    assert (deep.choice.mapping.tp, deep.choice.mapping.pp, deep.choice.mapping.dp) == (8, 8, 1)


def test_the_pick_asked_about_is_known(classic: ModelPlan) -> None:
    assert classic.pick is not None
    values = {
        axis: int(getattr(classic.pick.mapping, axis))
        for axis in ("tp", "pp", "dp", "cp", "zero", "micro_batch", "vpp")
    }
    assert plan_model(CLASSIC, [values]).why_not[0].text == "this is the pick"


def test_where_nothing_fits_each_remedy_does_and_a_smaller_one_of_its_kind_does_not(tight: ModelPlan) -> None:
    assert tight.pick is None
    assert tight.remedies
    nodes = [remedy for remedy in tight.remedies if "nodes" in remedy.change]
    assert nodes
    assert all(remedy.choice.fits for remedy in tight.remedies)
    count = int(nodes[0].change.split()[0])
    fewer = replace(TIGHT, cluster=replace(TIGHT.cluster, nodes=count // 2))
    assert search(fewer).count == 0
    enough = replace(TIGHT, cluster=replace(TIGHT.cluster, nodes=count))
    assert choices(enough, [nodes[0].choice.mapping])[0].fits


def test_a_fix_that_stands_in_the_way_is_named() -> None:
    asked = replace(CLASSIC, fix={"tp": 1, "pp": 1, "cp": 1, "zero": 0})
    changes = [remedy.change for remedy in plan_model(asked).remedies]
    assert "without --fix zero=0" in changes


def test_states_that_must_shrink_without_a_gather_in_forward_take_stage_2() -> None:
    asked = replace(CLASSIC, must_shrink=("gradients", "optimizer"), forward_gather=False)
    plan = plan_model(asked)
    assert plan.pick is not None
    assert plan.pick.mapping.zero == 2
    found = record(plan)["shrunk"]
    ranks = plan.pick.mapping.dp * plan.pick.mapping.cp
    before, after = found["memory_gib"]["before"], found["memory_gib"]["after"]
    assert after["gradients"] == pytest.approx(before["gradients"] / ranks, rel=0.01)
    assert after["optimizer"] == pytest.approx(before["optimizer"] / ranks, rel=0.01)
    assert after["parameters"] == before["parameters"]
    assert found["forward_gathers"] is False


@pytest.mark.parametrize(
    ("states", "gather", "stages"),
    [
        (("optimizer",), True, {1, 2, 3}),
        (("gradients",), True, {2, 3}),
        (("parameters",), True, {3}),
        ((), False, {0, 1, 2}),
    ],
)
def test_only_stages_that_split_what_must_shrink_are_tried(
    states: tuple[str, ...], gather: bool, stages: set[int]
) -> None:
    found = search(replace(CLASSIC, must_shrink=states, forward_gather=gather))
    assert {int(zero) for zero in found.mapping.zero} == stages


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"fix": {"pp": 1, "vpp": 1}}, "--fix vpp"),
        ({"fix": {"pp": 1, "schedule": 0}}, "--fix schedule"),
        ({"fix": {"tp": 8, "pp": 8, "zero": 1}}, "--fix zero"),
        ({"lora_rank": 16}, "--lora-rank"),
    ],
)
def test_options_without_effect_are_named(changes: dict, option: str) -> None:
    assert option in plan_model(replace(CLASSIC, **changes)).ignored


def test_options_with_effect_are_not_called_ignored(classic: ModelPlan) -> None:
    assert classic.ignored == {}
    assert plan_model(replace(CLASSIC, fix={"pp": 4, "tp": 8, "recompute": 3})).ignored == {}


@pytest.mark.parametrize(("model", "fix"), [("llama3-8b", {}), ("llama3-8b", {"tp": 2, "pp": 4}), ("mixtral-8x7b", {})])
def test_runnable_plans_keep_to_what_train_takes(model: str, fix: dict) -> None:
    asked = request(model, "h200:1x8", 8192, 64, runnable=True, fix=fix)
    plan = plan_model(asked)
    assert plan.pick is not None
    for each in (plan.pick, *plan.alternatives):
        m = each.mapping
        assert (m.cp, m.ep, m.offload) == (1, 1, OFFLOAD.index("none"))
        assert m.tp == 1 or not asked.model.experts
        assert m.micro_batch * m.pp <= asked.batch // m.dp
        assert RECOMPUTE[int(m.recompute)] in ("none", "full")


def test_one_function_plans_recipes_and_requests(classic: ModelPlan) -> None:
    assert make_plan(CLASSIC).pick == classic.pick
    with pytest.raises(UserError, match="--seq 0"):
        make_plan(replace(CLASSIC, seq=0))


def keys(value: object) -> object:
    """The shape of a JSON value; of a list only what its entries have in common."""
    if isinstance(value, dict):
        return {
            key: keys(inner) for key, inner in value.items() if key not in ("parts", "memory_gib", "asked", "fixed")
        }
    if isinstance(value, list):
        return keys(value[0]) if value else None
    return None


def test_the_sample_that_pages_are_made_from_has_the_keys_of_a_plan(classic: ModelPlan, tight: ModelPlan) -> None:
    shown = plan_model(replace(CLASSIC, must_shrink=("gradients",)), [{"tp": 64}])
    for name, plan in (("plan", shown), ("plan_nothing_fits", tight)):
        sample = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
        made = json.loads(json.dumps(record(plan)))
        assert list(made) == list(sample)
        for part in ("pick", "alternatives", "why", "pareto", "would_fit", "cluster", "model"):
            assert keys(made[part]) == keys(sample[part]), part


def test_json_says_what_it_promises(classic: ModelPlan) -> None:
    values = json.loads(json.dumps(record(classic)))
    for each in (values["pick"], *values["alternatives"]):
        assert {"tp", "pp", "dp", "cp", "ep", "zero", "recompute", "micro_batch"} <= set(each["mapping"])
        assert each["mapping"]["recompute"] in RECOMPUTE
        assert each["reason"]
        assert each["seconds"] == pytest.approx(sum(each["parts"].values()), rel=1e-4)
        fullest = next(stage for stage in each["stages"] if stage["stage"] == each["fullest_stage"])
        assert each["memory_gib"] == pytest.approx(sum(fullest["memory_gib"].values()), rel=1e-4)
        assert each["fits"] == (each["memory_gib"] <= values["cluster"]["memory_gib"])
    assert values["label"] == "predicted"
    assert values["pick"]["tokens_per_second"] == pytest.approx(256 * 8192 / values["pick"]["seconds"], rel=1e-4)
    ranked = [each["seconds"] for each in values["alternatives"] if not each["change"]]
    assert ranked[1:] == sorted(ranked[1:]) or values["alternatives"][0]["tie"]


@pytest.mark.parametrize("asked", [CLASSIC, ROUTED, TIGHT], ids=["dense", "experts", "nothing fits"])
def test_text_keeps_to_a_hundred_columns(asked: Request) -> None:
    plan = plan_model(replace(asked, dialect="megatron"), [{"tp": 64}, {"tp": 2}, {"dp": asked.cluster.gpus}])
    text = list(lines(plan))
    assert max(map(len, text)) <= WIDTH
    assert "predicted" in "\n".join(text)


def test_a_chip_without_measured_runs_is_said_to_be_uncalibrated() -> None:
    asked = request("llama3-8b", "l40s:4x8", 4096, 64)
    assert not asked.cluster.chip.calibrated
    plan = plan_model(asked)
    text = "\n".join(lines(plan))
    assert record(plan)["uncalibrated"] is True
    assert "(uncalibrated)" in text
    assert "uncalibrated" not in "\n".join(lines(plan_model(ROUTED)))


def test_a_stack_that_was_not_named_is_said() -> None:
    assert "no stack was named; priced as megatron-core" in " ".join(lines(plan_model(CLASSIC)))
    assert record(plan_model(CLASSIC))["stack"]["note"]
    assert not record(plan_model(replace(CLASSIC, stack="torch")))["stack"]["note"]


def test_a_mapping_in_words_leaves_out_what_is_not_used() -> None:
    assert in_words(Mapping()) == "1 GPU, micro batch 1"
    full = Mapping(tp=8, pp=4, dp=16, vpp=5, zero=1, shard=8, sp=1, micro_batch=2, recompute=3)
    assert in_words(full) == "tp 8 x pp 4 x dp 16, vpp 5, ZeRO 1 in groups of 8, micro batch 2, recompute full"
