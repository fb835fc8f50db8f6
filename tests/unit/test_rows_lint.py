"""The lint of published rows: impossible ones by arithmetic and memory, suspicious ones beside their siblings."""

from __future__ import annotations

from typing import Any

import pytest
from published_row import published

from burnish.rows.lint import IMPOSSIBLE, SUSPICIOUS, Finding, lint, state_bytes
from burnish.rows.training import row_of

DENSE_70B = {
    "model": "Llama-3-70B",
    "n_params": "70550000000",
    "layers": 80,
    "hidden": 8192,
    "heads": 64,
    "kv_heads": 8,
    "ffn_hidden": 28672,
    "vocab": 128256,
    "n_gpus": 64,
    "global_batch": 256,
    "seq_len": 8192,
}


def found(*rows: dict[str, str]) -> list[Finding]:
    return lint([row_of(row) for row in rows])


def test_a_sound_row_has_no_finding() -> None:
    assert found(published()) == []


IMPOSSIBLE_ROWS = [
    ({"dp": 8}, "not 16 chips"),
    ({"heads": 25, "tp": 2}, "25 heads do not divide by tp 2"),
    ({"global_batch": 63}, "does not divide by dp 4 x micro-batch 2"),
    ({"pp": 8, "tp": 1, "dp": 2, "vpp": 8}, "32 layers on 8 stages of 8 chunks"),
    ({"gpu": "A100 SXM", "precision": "fp8"}, "has no fp8"),
    ({"iter_time_s": "0.0001"}, "at their peak"),
    ({**DENSE_70B, "tp": 1, "pp": 1, "dp": 64, "micro_batch": 2}, "GiB of states"),
]


@pytest.mark.parametrize(("changes", "reason"), IMPOSSIBLE_ROWS)
def test_impossible_rows_are_named_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    findings = [finding for finding in found(published(**changes)) if finding.kind == IMPOSSIBLE]
    assert any(reason in finding.reason for finding in findings), findings


def test_a_run_that_ran_out_of_memory_may_be_too_large() -> None:
    assert not found(published(**{**DENSE_70B, "tp": 1, "pp": 1, "dp": 64}, outcome="oom"))


def test_states_are_split_as_the_mapping_splits_them() -> None:
    def per_rank(**changes: object) -> float:
        row = row_of(published(**{**DENSE_70B, "iter_time_s": 9, **changes}))
        assert row.setting is not None
        return state_bytes(row.setting)

    count = 70.55e9
    one = per_rank(tp=1, pp=1, dp=64, sharding="dist-opt(zero1)")
    assert one == pytest.approx(count * (2 + 2 + 12 / 64), rel=1e-3)
    assert per_rank(tp=1, pp=1, dp=64, sharding="fsdp(zero3)") == pytest.approx(count * 16 / 64, rel=1e-3)
    assert per_rank(tp=8, pp=4, dp=2, sharding="zero0") == pytest.approx(count * 16 / 32, rel=1e-3)


def test_a_figure_that_does_not_follow_from_the_others_is_suspicious() -> None:
    rows = [published(id=f"r{k}", iter_time_s=2.5 + k / 10, mfu=40 / (1 + k / 25)) for k in range(4)]
    rows.append(published(id="odd", iter_time_s=2.5, mfu=44))
    assert [(f.id, f.kind) for f in found(*rows)] == [("odd", SUSPICIOUS)]


def test_tokens_and_flops_that_disagree_are_suspicious() -> None:
    rows = [published(id=f"r{k}", tflops_per_gpu=400 + k, tokens_per_s_per_gpu=9000 + 22.5 * k) for k in range(4)]
    rows.append(published(id="odd", tflops_per_gpu=400, tokens_per_s_per_gpu=7500))
    assert [f.id for f in found(*rows)] == ["odd"]


def test_one_setting_with_two_times_is_suspicious() -> None:
    names = [f.id for f in found(published(id="a"), published(id="b", iter_time_s=4.0))]
    assert names == ["a", "b"]
    assert found(published(id="a"), published(id="b", iter_time_s=2.6)) == []


def test_sizes_that_do_not_make_the_stated_parameters_are_suspicious() -> None:
    assert "the row says 13" in found(published(n_params="13000000000"))[0].reason
