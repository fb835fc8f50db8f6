"""Commands of other stacks say the whole mapping, and are not made for a mapping they cannot say."""

import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

from burnish.mapping import OFFLOAD, RECOMPUTE, Mapping
from burnish.planner import Request, candidates, legal, plan_model, request
from burnish.planner.commands import WIDTH, can_say, command

DENSE = request("llama3-70b", "h100-sxm:8x8", 8192, 256)
ROUTED = request("deepseek-v3", "h100-sxm:64x8", 4096, 2048)


def options(asked: Request, mapping: Mapping) -> dict[str, str]:
    """The command read back: option -> value, "" for a flag."""
    text = command(asked, mapping)
    assert max(map(len, text.splitlines())) <= WIDTH + 4
    words = shlex.split(text.replace("\\\n", " "))
    found = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            value = words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("--") else ""
            assert word not in found, f"{word} twice"
            found[word] = value
    return found


def test_megatron_is_told_every_axis() -> None:
    asked = replace(DENSE, dialect="megatron", precision="fp8")
    mapping = Mapping(
        tp=4, pp=4, dp=2, cp=2, vpp=5, zero=1, shard=2, sp=1, micro_batch=2, recompute=RECOMPUTE.index("full")
    )
    said = options(asked, mapping)
    assert (said["--nnodes"], said["--nproc-per-node"]) == ("8", "8")
    assert said["--tensor-model-parallel-size"] == "4"
    assert said["--pipeline-model-parallel-size"] == "4"
    assert said["--context-parallel-size"] == "2"
    assert said["--num-virtual-stages-per-pipeline-rank"] == "5"
    assert (said["--micro-batch-size"], said["--global-batch-size"]) == ("2", "256")
    assert said["--num-distributed-optimizer-instances"] == "2"
    assert said["--recompute-granularity"] == "full"
    assert (said["--fp8-format"], said["--fp8-recipe"]) == ("hybrid", "tensorwise")
    assert (said["--num-layers"], said["--hidden-size"], said["--num-query-groups"]) == ("80", "8192", "8")
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--swiglu", "--overlap-grad-reduce"} <= set(said)
    assert "--use-megatron-fsdp" not in said


def test_megatron_is_told_what_its_sharding_is_called() -> None:
    asked = replace(DENSE, dialect="megatron")
    said = {zero: options(asked, Mapping(tp=8, dp=8, zero=zero, sp=1)) for zero in range(4)}
    assert ["--use-distributed-optimizer" in said[zero] for zero in range(4)] == [False, True, True, True]
    assert [said[zero].get("--data-parallel-sharding-strategy") for zero in range(4)] == [
        None,
        None,
        "optim_grads",
        "optim_grads_params",
    ]


def test_megatron_is_told_the_experts() -> None:
    said = options(replace(ROUTED, dialect="megatron"), Mapping(tp=2, pp=8, dp=32, ep=32, zero=1, sp=1))
    assert (said["--expert-model-parallel-size"], said["--expert-tensor-parallel-size"]) == ("32", "1")
    assert (said["--num-experts"], said["--moe-router-topk"]) == ("256", "8")
    assert said["--kv-lora-rank"] == "512"
    assert said["--moe-layer-freq"] == "([0]*3+[1]*58)"


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        (Mapping(dp=64, zero=3), {"replicate": "1", "shard": "64", "reshard": "always"}),
        (Mapping(tp=8, dp=8, zero=2, sp=1), {"replicate": "1", "shard": "8", "reshard": "never"}),
        (Mapping(dp=64, zero=3, shard=8), {"replicate": "8", "shard": "8", "reshard": "always"}),
        (Mapping(dp=64), {"replicate": "64", "shard": "1"}),
        (Mapping(dp=32, cp=2, zero=3), {"replicate": "1", "shard": "32", "reshard": "always"}),
    ],
)
def test_torchtitan_is_told_copies_and_shards(mapping: Mapping, expected: dict[str, str]) -> None:
    said = options(replace(DENSE, dialect="torchrun"), mapping)
    replicate, shard = (int(said[f"--parallelism.data_parallel_{kind}_degree"]) for kind in ("replicate", "shard"))
    assert (str(replicate), str(shard)) == (expected["replicate"], expected["shard"])
    assert replicate * shard == mapping.dp
    assert said.get("--parallelism.fsdp_reshard_after_forward") == expected.get("reshard")


def test_torchtitan_cuts_the_batch_of_a_rank_into_micro_batches_of_the_pipeline() -> None:
    mapping = Mapping(tp=4, pp=4, dp=4, vpp=5, zero=2, sp=1, micro_batch=2)
    said = options(replace(DENSE, dialect="torchrun"), mapping)
    assert said["--training.local_batch_size"] == "64"
    assert said["--parallelism.pipeline_parallel_microbatch_size"] == "2"
    assert said["--parallelism.pipeline_parallel_layers_per_stage"] == "4"
    assert said["--parallelism.pipeline_parallel_schedule"] == "Interleaved1F1B"


@pytest.mark.parametrize("dialect", ["megatron", "torchrun"])
@pytest.mark.parametrize("asked", [DENSE, ROUTED], ids=["dense", "experts"])
def test_what_can_be_said_is_said_whole(dialect: str, asked: Request) -> None:
    """Over all candidates of leanest settings: those that can be said give GPUs and axes back as they are."""
    asked = replace(asked, dialect=dialect)
    mapping = candidates.mapping_of(asked, candidates.lean(asked, legal.fixed_degrees(asked)))
    can = can_say(dialect, mapping)
    assert 0 < can.sum() < len(can)
    names = {
        "megatron": r"--(tensor|pipeline)-model-parallel-size|--context-parallel-size",
        "torchrun": r"--parallelism\.\w+_degree",
    }
    for index in np.flatnonzero(can)[:: max(int(can.sum()) // 60, 1)]:
        one = candidates.one(mapping, int(index))
        said = options(asked, one)
        apart = [int(v) for k, v in said.items() if re.fullmatch(names[dialect], k) and "expert" not in k]
        data = 1 if dialect == "torchrun" else one.dp
        assert int(np.prod(apart)) * data == one.gpus == asked.cluster.gpus


def test_a_plan_for_another_stack_picks_what_it_can_say() -> None:
    for dialect in ("megatron", "torchrun"):
        plan = plan_model(replace(DENSE, dialect=dialect))
        assert plan.pick is not None
        mapping = candidates.several([plan.pick.mapping])
        assert can_say(dialect, mapping).all()
    assert not can_say("torchrun", candidates.several([Mapping(dp=64, zero=1)])).any()
    assert not can_say("megatron", candidates.several([Mapping(dp=16, pp=4, zero=2)])).any()
    assert not can_say("megatron", candidates.several([Mapping(offload=OFFLOAD.index("states"))])).any()
