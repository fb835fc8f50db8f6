"""Claims measured as a user measures them, in processes; and for each a break that must turn its verdict."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import burnish.prove
from burnish.compress.gram import Gram
from burnish.ops import fp8_linear, recompute
from burnish.prove import (
    awq,
    checkpointing,
    claims,
    flash_attention,
    fp8,
    mapping,
    pipeline,
    pool,
    pruning,
    recipes,
    segmentation,
    speculation,
    tensor_parallel,
    zero,
)
from burnish.prove.claim import Verdict
from burnish.serve.speculative.gate import Gate

TITLES = {
    "awq": "as predicted; 0 trained",
    "checkpointing": "full: FLOPs 1.",
    "flash-attention": "FLOPs 1.167x of plain, as predicted",
    "fp8": "all else as predicted; forward 28.",
    "int8": "0.500 steps; 1.18\u00a0MiB in memory, predicted 1.18\u00a0MiB",
    "mapping": "planner within 0.",
    "pipeline": "1F1B stage 0: 2 in flight",
    "segmentation": "pretrained 0.8",
    "pool": "pool: 0 allocations, 0\u00a0B, 9.8 % reserved unused",
    "pruning": "norms measured again 0.",
    "recipes": "12 of 12 losses equal; changed: optim.lr",
    "speculation": "1.23 and 3.23 tokens a round",
    "tensor-parallel": "losses within ",
    "zero": "every rank as predicted; stage 2: 0.498x to 0.502x of stage 0",
}


def test_each_claim_has_a_row_here() -> None:
    assert claims() == sorted(TITLES)


@pytest.mark.parametrize("claim", TITLES)
def test_claim_holds(claim: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "burnish", "prove", claim, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (verdict,) = [Verdict(**found) for found in json.loads(done.stdout)]
    assert (verdict.claim, verdict.holds) == (claim, True)
    assert TITLES[claim] in verdict.measured
    assert verdict.seconds > 0


def test_a_claim_that_does_not_hold_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from burnish.cli import code_of

    failed = Verdict(
        claim="zero",
        statement="",
        varied="",
        held="",
        expected="1",
        measured="2",
        holds=False,
        why="",
        source="",
        code="",
    )
    monkeypatch.setattr(burnish.prove, "prove", lambda claim: [failed])
    assert code_of(["prove", "zero"]) == 1
    printed = capsys.readouterr()
    assert "does not hold" in printed.out
    assert printed.err == "burnish: did not hold here: zero\n"


def test_all_claims_are_measured_and_told_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    blank = dict.fromkeys(("statement", "varied", "held", "expected", "measured", "why", "source", "code"), "")
    monkeypatch.setattr(burnish.prove, "_measure", lambda name: Verdict(claim=name, holds=True, **blank))
    assert [verdict.claim for verdict in burnish.prove.prove()] == claims()
    printed = capsys.readouterr()
    assert printed.err.splitlines()[0] == f"prove 0/{len(claims())}  {claims()[0]}"
    assert printed.out == ""


def check_holds(module: object) -> None:
    """The named check of the breaks below."""
    assert module.measure().holds  # type: ignore[attr-defined]


@pytest.mark.sabotage
def test_scales_without_activations_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check_holds(awq)

    def blind(gram: Gram, x: torch.Tensor) -> None:
        gram.total += torch.eye(len(gram.total))
        gram.sizes += 1
        gram.tokens += len(x)

    monkeypatch.setattr(Gram, "add", blind)
    with pytest.raises(AssertionError):
        check_holds(awq)


@pytest.mark.sabotage
@pytest.mark.parametrize("stage", [1, 3])
def test_another_stage_than_2_is_noticed(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage 1 keeps whole gradients, stage 3 gathers in forward."""
    monkeypatch.setattr(zero, "STAGE", stage)
    with pytest.raises(AssertionError):
        check_holds(zero)


@pytest.mark.sabotage
def test_a_network_as_fast_as_the_links_of_a_node_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "NODES", mapping.ONE_DOMAIN)
    with pytest.raises(AssertionError):
        check_holds(mapping)


@pytest.mark.sabotage
def test_sums_of_tensor_parallelism_left_out_of_the_count_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "HALVES", mapping.HALVES // 2)
    with pytest.raises(AssertionError):
        check_holds(mapping)


@pytest.mark.sabotage
def test_ranks_that_see_other_rows_than_one_process_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tensor_parallel.batches
    monkeypatch.setattr(tensor_parallel, "batches", lambda: right()[:1])
    with pytest.raises(AssertionError):
        check_holds(tensor_parallel)


@pytest.mark.sabotage
def test_a_product_kept_for_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "_last_product", lambda module: None)
    with pytest.raises(AssertionError):
        check_holds(checkpointing)


@pytest.mark.sabotage
def test_gradients_cast_without_a_scale_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fp8_linear.whole
    monkeypatch.setattr(fp8_linear, "whole", lambda x, scale, form: plain(x, torch.ones_like(scale), form))
    with pytest.raises(AssertionError):
        check_holds(fp8)


@pytest.mark.sabotage
def test_attention_with_stored_scores_in_place_of_tiles_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(flash_attention.KERNELS, "tiled", flash_attention.plain_attention)
    with pytest.raises(AssertionError):
        check_holds(flash_attention)


@pytest.mark.sabotage
def test_transforms_on_both_sides_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "replace", lambda own, changes: own)
    with pytest.raises(AssertionError):
        check_holds(segmentation)


@pytest.mark.sabotage
def test_a_lock_file_that_forgets_the_seed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    load = recipes.recipe_files.load_locked

    def without_seed(*given: Any) -> Any:
        recipe, lock = load(*given)
        return recipes.replace(recipe, {"train.seed": recipe.train.seed + 1}), lock

    monkeypatch.setattr(recipes.recipe_files, "load_locked", without_seed)
    with pytest.raises(AssertionError):
        check_holds(recipes)


@pytest.mark.sabotage
def test_a_first_stage_that_runs_all_forward_first_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are new processes: what they do is changed by what the claim asks of them."""
    work_of = pipeline.work_of
    monkeypatch.setattr(pipeline, "work_of", lambda way, mesh: work_of("GPipe", mesh))
    with pytest.raises(AssertionError):
        check_holds(pipeline)


@pytest.mark.sabotage
def test_tensors_that_grow_in_place_of_a_pool_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "Pooled", lambda shape, pages, page: pool.Grown(shape))
    with pytest.raises(AssertionError):
        check_holds(pool)


@pytest.mark.sabotage
def test_norms_that_are_not_measured_again_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check_holds(pruning)
    monkeypatch.setattr(pruning, "reestimate", lambda model, batches: 0)
    with pytest.raises(AssertionError):
        check_holds(pruning)


@pytest.mark.sabotage
def test_a_gate_that_is_never_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check_holds(speculation)
    monkeypatch.setattr(Gate, "next", lambda self, sequences, behind=0: speculation.LENGTH)
    with pytest.raises(AssertionError):
        check_holds(speculation)
