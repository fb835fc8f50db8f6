"""Recipes that split more than rows: their passes, ranks, figures and times, and what is refused in one line."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish import apply, planner
from burnish.cli import code_of
from burnish.describe import describe
from burnish.errors import UserError
from burnish.mapping import RECOMPUTE
from burnish.plan import make_plan
from burnish.planner.candidates import several
from burnish.planner.pricing import price_of
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.recipe_price import mapping_of
from burnish.shapes import shapes_of
from burnish.techniques import pipeline
from burnish.work import fold, state_bytes

SPLIT = {"parallel.tp": 2, "parallel.cp": 2, "parallel.pp": 2, "parallel.dp": 2, "parallel.zero": 1}


def small(**changes: object) -> Recipe:
    rows = {"train.global_batch": 16, "train.micro_batch": 2}
    return replace(load("quickstart"), rows | {key.replace("__", "."): value for key, value in changes.items()})


def large(**changes: object) -> Recipe:
    return replace(load("llama3-8b-h100"), {key.replace("__", "."): value for key, value in changes.items()})


def test_passes_in_their_order_and_what_is_planned_only():
    made = make_plan(replace(small(precision="bf16", memory__checkpointing="full"), SPLIT))
    names = ["precision", "tensor", "context", "pipeline", "checkpointing", "zero"]
    assert [taken.technique for taken in made.passes] == names
    assert made.plan_only == ("context",)
    assert made.mapping == {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "zero": 1}


def test_ranks_are_tensor_first_then_context_data_and_pipeline():
    recipe = replace(small(), SPLIT)
    seen = [apply.mesh_of(recipe, rank) for rank in range(16)]
    assert [mesh.stage for mesh in seen] == [0] * 8 + [1] * 8
    assert [mesh.rank for mesh in seen[:8]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert list(apply.stage_ranks(recipe)) == [0, 8]


def states(recipe: Recipe) -> list[dict[str, int]]:
    plain = describe(recipe.model, shapes_of(recipe))
    return [state_bytes(apply.predict(recipe, plain, rank)[0]) for rank in range(recipe.parallel.world)]


def test_optimizer_states_of_all_ranks_are_the_whole():
    """ZeRO splits them over data- and context-parallel ranks; norms stand on each tensor-parallel rank, a tied table on
    two stages."""
    recipe = replace(small(model__tied=True), SPLIT)
    model = recipe.model
    norms, table = (2 * model.layers + 1) * model.hidden, model.vocab * model.hidden
    tensors = 9 * model.layers + 3  # of one rank of each stage together: nine a layer, a table on both, the last norm
    total = sum(state["optimizer"] for state in states(recipe))
    assert total == 8 * (model.parameters + norms + table) + 8 * 4 * tensors


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_context_ranks_share_what_data_ranks_do(stage):
    """Two ranks of either kind have the same states and send the same to keep them together."""
    wanted = {"parallel.zero": stage, "train.global_batch": 16}
    by_axis = []
    for axis, batch in (("dp", 16), ("cp", 8)):
        recipe = replace(small(), wanted | {f"parallel.{axis}": 2, "train.global_batch": batch})
        work, _ = apply.predict(recipe, describe(recipe.model, shapes_of(recipe)))
        data = {key: n for key, n in fold(work).items() if key[2] in ("dp", "shard", "replicate")}
        by_axis.append((state_bytes(work), data))
    assert by_axis[0] == by_axis[1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallel__tp": 8, "parallel__dp": 1, "parallel__zero": 0},
        {"parallel__tp": 4, "parallel__pp": 4, "parallel__dp": 2, "parallel__vpp": 2, "parallel__zero": 1},
        {"parallel__tp": 2, "parallel__cp": 2, "parallel__dp": 4, "parallel__zero": 2},
        {"parallel__dp": 1, "parallel__zero": 0, "machine__chip": "a100-80gb"},
    ],
)
def test_a_recipe_takes_as_long_as_the_same_plan_of_its_model(changes):
    recipe = large(**changes)
    world, seq, batch = recipe.parallel.world, recipe.data.seq, recipe.train.global_batch
    there = f"{recipe.machine.chip}:{-(-world // 8)}x{min(world, 8)}"
    asked = planner.request("llama-3-8b", there, seq, batch, stack="burnish")
    full = several([dataclasses.replace(mapping_of(recipe), recompute=RECOMPUTE.index("full"))])
    made = make_plan(recipe)
    assert made.predicted["seconds.step"] == pytest.approx(float(price_of(asked, full).seconds[0]), rel=1e-9)
    assert made.predicted["tokens_per_second"] == pytest.approx(batch * seq / made.predicted["seconds.step"])
    assert any("predicted by the planner's rates" in note for note in made.notes)


def test_half_of_the_layers_again_takes_half_of_it():
    seconds = [
        make_plan(large(memory__checkpointing=mode)).predicted["seconds.step"]
        for mode in ("none", {"mode": "every", "every": 2}, "full")
    ]
    assert seconds[1] == pytest.approx((seconds[0] + seconds[2]) / 2)
    assert 1.1 < seconds[2] / seconds[0] < 4 / 3


def test_a_ragged_last_micro_batch_counts_its_rows():
    even, ragged = (
        make_plan(large(parallel__dp=1, parallel__zero=1, train__global_batch=rows, train__micro_batch=4))
        for rows in (40, 42)
    )
    assert ragged.predicted["seconds.step"] / even.predicted["seconds.step"] == pytest.approx(1.05, rel=1e-3)


def test_a_chip_without_measured_rows_is_called_uncalibrated():
    said = {chip: " ".join(make_plan(large(machine__chip=chip)).notes) for chip in ("h100-sxm", "l40s")}
    assert "uncalibrated: no measured step of" in said["l40s"]
    assert "uncalibrated" not in said["h100-sxm"]


def test_memory_is_that_of_the_fullest_stage():
    """Without recompute the first stage holds most micro batches; a large vocabulary makes the last one fuller."""
    first = make_plan(large(parallel__pp=4, parallel__dp=2, memory__checkpointing="none"))
    assert any("stage 0 of 0..3, the fullest" in note for note in first.notes)
    last = make_plan(small(parallel__pp=5, model__vocab=16384))
    assert any("stage 4 of 0..4, the fullest" in note for note in last.notes)


def test_bytes_by_axis_add_up(capsys):
    made = make_plan(large(parallel__tp=4, parallel__pp=2, parallel__dp=2))
    axes = {key.removeprefix("comm.bytes."): size for key, size in made.predicted.items() if "comm.bytes." in key}
    assert set(axes) == {"tp", "pp", "shard", "all"}
    assert sum(axes.values()) == made.predicted["comm.bytes"]
    assert code_of(["plan", "llama3-8b-h100", "parallel.tp=4", "parallel.pp=2", "parallel.dp=2"]) == 0
    out = capsys.readouterr().out
    assert "of it tp" in out
    assert "(planned only)" not in out


def test_data_parallel_plans_stay_as_they_were():
    assert not [key for key in make_plan(large()).predicted if key.startswith("comm.bytes.")]


CASES = {
    "heads": (["parallel.tp=3", "data.seq=255"], "parallel.tp 3 cannot split 4 query heads, 2 key-value heads"),
    "tokens": (
        ["parallel.tp=2", "data.seq=255", "train.micro_batch=1"],
        "data.seq 255 does not divide over parallel.tp 2; use 254 or 256, or parallel.sequence=false",
    ),
    "layers": (["parallel.pp=6"], "more than the 5 layers; use at most 5"),
    "chunks without a pipeline": (["parallel.vpp=2"], "use parallel.pp above 1"),
    "chunks without rounds": (
        ["parallel.pp=2", "parallel.vpp=2", "train.global_batch=6", "train.micro_batch=2"],
        "make them a multiple of 2",
    ),
    "fewer micro batches than stages": (
        ["parallel.pp=2"],
        "makes 1 micro batches of the 4 rows a rank has in a step, fewer than parallel.pp 2; use one of [1, 2]",
    ),
    "a smaller last micro batch": (
        ["parallel.pp=2", "train.global_batch=12", "train.micro_batch=5"],
        "a smaller last micro batch of the 12 rows a rank has in a step, which no pipeline takes; use one of [1, 2, 3, 4, 6]",
    ),
    "fewer rows than stages": (
        ["parallel.pp=5", "parallel.dp=2", "train.micro_batch=2"],
        "fewer than parallel.pp 5; use a train.global_batch of at least 10",
    ),
    "sequence": (["parallel.cp=3"], "data.seq 256 is not a multiple of 2 x parallel.cp 3; use 252 or 258"),
    "experts": (["parallel.ep=2"], "the model has no experts; use parallel.ep=1"),
    "shards": (["parallel.cp=2", "parallel.shard=3"], "does not divide parallel.dp x cp 2; values that do: [1, 2]"),
    "no ranks": (["parallel.tp=0"], "parallel.tp"),
    "schedule": (["parallel.schedule=2f2b"], "parallel.schedule"),
    "rows": (["parallel.dp=3", "parallel.tp=2"], "is not a multiple of parallel.dp 3"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_split_is_refused_in_one_line(name, capsys):
    changes, needle = CASES[name]
    assert code_of(["plan", "quickstart", *changes]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert needle in line


@given(st.integers(1, 60), st.integers(1, 60), st.integers(2, 8), st.integers(1, 4))
def test_flt_032_rows_that_micro_batches_do_not_divide_are_refused_with_those_that_do(rows, micro_batch, pp, dp):
    said = pipeline.check_rows(rows, micro_batch, pp, dp)
    assert (not said) == (rows % micro_batch == 0 and rows // micro_batch >= pp)
    if said and rows >= pp:
        offered = [int(size) for size in said.rpartition("[")[2].rstrip("]").split(",")]
        assert offered
        assert not any(pipeline.check_rows(rows, size, pp, dp) for size in offered)


@pytest.mark.parametrize(("change", "name"), [("cp", "context"), ("ep", "experts")])
def test_train_refuses_by_name_what_can_only_be_planned(change, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert code_of(["train", "quickstart", f"parallel.{change}=2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"burnish: quickstart: {name} can be planned but not run yet; use `burnish plan`"
    assert not list(tmp_path.iterdir())


def test_apply_refuses_it_too():
    with pytest.raises(UserError, match="context can be planned but not run yet"):
        apply.apply(small(parallel__cp=2), None)
