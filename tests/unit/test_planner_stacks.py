"""Stacks by name: unknown ones are refused, known ones keep to what they can run, and commands say what they leave out."""

from dataclasses import replace

import pytest

from burnish.errors import UserError
from burnish.planner import names, plan_model, request
from burnish.planner.abilities import limits
from burnish.planner.commands import command, told, unsaid
from burnish.presets import presets
from burnish.stack import stacks

DENSE = request("llama3-8b", "h100-sxm:2x8", 8192, 64)
ROUTED = request("mixtral-8x7b", "h100-sxm:2x8", 4096, 64)
MEGATRON, TITAN = replace(DENSE, dialect="megatron"), replace(DENSE, dialect="torchrun")


@pytest.mark.parametrize(("name", "near"), [("foo", "known: "), ("megatorn-core-2026", "'megatron-core-2026'")])
def test_an_unknown_stack_is_refused_with_those_that_are_known(name: str, near: str) -> None:
    with pytest.raises(UserError) as refused:
        plan_model(replace(DENSE, stack=name))
    said = str(refused.value)
    assert near in said
    assert all(known in said for known in stacks())


def test_an_early_megatron_splits_optimizer_states_at_most() -> None:
    plan = plan_model(replace(DENSE, stack="megatron-2021"))
    assert plan.pick is not None
    assert all(each.mapping.zero <= 1 and each.mapping.cp == 1 for each in (plan.pick, *plan.alternatives))
    assert any(note.startswith("megatron-2021 has ZeRO 0 and 1") for note in plan.notes)
    with pytest.raises(UserError, match="--stack megatron-2021: it has ZeRO 0 and 1"):
        plan_model(replace(DENSE, stack="megatron-2021", fix={"zero": 3}))


@pytest.mark.parametrize("name", ["unsloth", "hf-trainer"])
def test_a_plain_stack_has_one_gpu_or_data_parallelism(name: str) -> None:
    plan = plan_model(replace(DENSE, stack=name, trained="lora", lora_rank=8))
    assert plan.pick is not None
    for each in (plan.pick, *plan.alternatives):
        m = each.mapping
        assert (m.tp, m.pp, m.cp, m.zero, m.offload, m.dp) == (1, 1, 1, 0, 0, 16)
    with pytest.raises(UserError, match=f"--stack {name}: it has one GPU"):
        plan_model(replace(DENSE, stack=name, fix={"tp": 2}))


def test_other_stacks_are_not_held_back() -> None:
    assert [name for name, stack in stacks().items() if limits(stack) and stack.year >= 2023] == [
        *("litgpt-2023", "hf-trainer", "unsloth")
    ]


def test_experts_are_sent_by_all_to_all() -> None:
    asked = replace(ROUTED, dialect="megatron")
    pick = plan_model(asked).pick
    assert pick is not None
    assert "--moe-token-dispatcher-type alltoall" in command(asked, pick.mapping)
    dense = plan_model(MEGATRON).pick
    assert dense is not None
    assert "alltoall" not in command(MEGATRON, dense.mapping)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "lion"}, "--optimizer lion"),
        ({"precision": "tf32"}, "--precision tf32"),
        ({"attention": "flash-2"}, "attention by flash-2"),
        ({"stack": "deepspeed"}, "priced as deepspeed"),
    ],
)
@pytest.mark.parametrize("asked", [MEGATRON, TITAN], ids=["megatron", "torchrun"])
def test_what_the_command_cannot_say_stands_below_it(asked: object, changes: dict[str, str], words: str) -> None:
    job = replace(asked, **changes)  # type: ignore[type-var]
    pick = plan_model(job).pick
    assert pick is not None
    below = [line for line in told(job, pick.mapping).splitlines() if line.startswith("#")]
    assert "yours to add" in below[0]
    assert "the command cannot say" in below[1]
    assert words in " ".join(below)
    assert unsaid(asked) == []  # type: ignore[arg-type]


def test_what_the_command_can_say_is_said() -> None:
    pick = plan_model(MEGATRON).pick
    assert pick is not None
    stored = command(replace(MEGATRON, attention="unfused", optimizer="sgd"), pick.mapping)
    assert "--attention-backend unfused" in stored
    assert "--optimizer sgd" in stored
    assert "--training.mixed_precision_param float32" in command(replace(TITAN, precision="fp32"), pick.mapping)
    assert "--hidden-dropout 0" in command(MEGATRON, pick.mapping)


@pytest.mark.parametrize("asked", [MEGATRON, TITAN], ids=["megatron", "torchrun"])
@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_adapters_have_no_command(asked: object, kind: str) -> None:
    with pytest.raises(UserError, match=f"--as .*: its command trains all weights; --trained {kind}"):
        plan_model(replace(asked, trained=kind, lora_rank=8))  # type: ignore[type-var]


def test_names_are_listed() -> None:
    assert [line.split()[0] for line in names.lines("models")] == list(presets())
    listed = [line.split()[0] for line in names.lines("stacks") if not line.startswith(" ")]
    assert listed == list(stacks())
    assert max(map(len, names.lines("stacks"))) <= names.WIDTH
    with pytest.raises(UserError, match="models"):
        list(names.lines("model"))


def test_a_release_without_a_profile_is_priced_by_the_nearest_of_its_tool_and_said_so() -> None:
    asked = request("llama3-8b", "h100-sxm:1x8", 4096, 64, stack="nemo-25.03")
    assert asked.profile.name in ("nemo-25.02", "nemo-25.04")
    assert asked.stack_note == f"no profile of stack 'nemo-25.03'; priced as {asked.profile.name}"
