"""Published rows of serving and attention: what is read, what is not and why, and errors by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish import score
from burnish.hardware import chips
from burnish.rows.attention import read_attention
from burnish.rows.inference import read_inference
from burnish.rows.speculation import read_speculation
from burnish.serve_plan.attention_time import Kernel, kernel_seconds

SERVED = (
    "id,source,engine,gpu,n_gpus,model,layers,hidden,heads,weight_precision,tp,mode,"
    "input_len,output_len,batch_or_concurrency,total_latency_ms,outcome\n"
)
GOOD = "a,page,FasterTransformer,A100 SXM,2,GPT-20B,44,6144,48,fp16,2,static batch,20,8,4,300,ok\n"
KERNELS = (
    "id,source,gpu,gpu_mem_gb,implementation,batch,heads,head_dim,"
    "seq_len_q,seq_len_kv,causal,padding_mask,dropout,pass,time_ms\n"
)
KERNEL = "{},page,A100,40,PyTorch,16,8,64,1024,1024,no,no,0,{},{}\n"


def test_a_static_batch_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(SERVED + GOOD, encoding="utf-8")
    (row,) = read_inference(path)
    assert row.serving is not None
    assert (row.serving.tp, row.serving.weights, row.serving.engine) == (2, "bf16", "fused-2022")
    assert (row.batch, row.prompt, row.new, row.seconds) == (4, 20, 8, {"total": 0.3})


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("static batch", "offline max throughput", "mode"),
        (",ok", ",oom", "outcome"),
        (",20,8,4,", ",20,8,,", "batch"),
        (",fp16,2,", ",fp16,1,", "2 chips"),
        ("GPT-20B,44,6144,48", "Whatever,,,", "model"),
        ("FasterTransformer", "abacus", "engine"),
        (",300,", ",,", "nothing timed"),
    ],
)
def test_a_row_that_is_not_read_says_why(tmp_path: Path, old: str, new: str, why: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(SERVED + GOOD.replace(old, new), encoding="utf-8")
    (row,) = read_inference(path)
    assert row.why_not.startswith(why)
    assert row.serving is None


def test_a_forward_longer_than_two_thirds_of_both_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(KERNELS + KERNEL.format("a", "fwd", 3.0) + KERNEL.format("b", "fwd+bwd", 4.0), encoding="utf-8")
    assert [row.why_not.split(":")[0] for row in read_attention(path)] == ["impossible", ""]
    path.write_text(KERNELS + KERNEL.format("a", "fwd", 1.3) + KERNEL.format("b", "fwd+bwd", 4.0), encoding="utf-8")
    assert [row.why_not for row in read_attention(path)] == ["", ""]


def test_a_long_kernel_takes_its_products_and_its_scores() -> None:
    chip = chips()["h100-sxm"]
    c = {"start": 1e-9, "products": 0.5, "score": 8.0, "mask": 1.0, "dropout": 2.0}
    kernel = Kernel("unfused", 2, 3, 64, 1000, 1000, dropout=True)
    scores = 2 * 3 * 1000 * 1000
    wanted = 4 * 64 * scores / (chip.flops["fp16"] * 0.5) + scores * 10 / chip.bandwidth
    assert kernel_seconds(kernel, chip, c) == pytest.approx(wanted)


def test_the_score_of_served_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(SERVED + GOOD + GOOD.replace("a,page", "b,page").replace(",ok", ",oom"), encoding="utf-8")
    made = json.loads("\n".join(score.shown(path, as_json=True)))
    assert (made["rows"], made["judged"], made["not_judged"]) == (2, 1, {"outcome": 1})
    assert made["timed"]["total"]["times"] == 1
    assert "1 of 2 rows judged" in next(iter(score.shown(path)))


DRAFTED = (
    "id,source,method,task,temperature,alpha_acceptance,cost_ratio_c,gamma_or_K,"
    "mean_accepted_tokens_per_step,predicted_speedup,measured_speedup,notes\n"
)
GAIN = "a,page,speculative decoding,EnDe,0,0.8,0.04,7,,3.3,2.8,\n"


def test_a_gain_of_drafting_is_what_the_formula_says(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(DRAFTED + GAIN, encoding="utf-8")
    (row,) = read_speculation(path)
    wanted = (1 - 0.8**8) / (1 - 0.8) / (7 * 0.04 + 1)  # theorem 3.8, and 3.3 as the paper prints it
    assert row.predicted() == pytest.approx(wanted)
    assert row.predicted(verify=2.0, dearer=3.0) == pytest.approx((1 - 0.8**8) / 0.2 / (7 * 0.12 + 2))
    made = json.loads("\n".join(score.shown(path, as_json=True)))
    assert made["timed"]["gain of drafting"]["mean_pct"] == pytest.approx(100 * abs(wanted / 2.8 - 1))
    assert list(made["assumed"].values()) == [1]
    assert any("no row states it" in line for line in score.shown(path))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (",0.8,", ",,", "acceptance"),
        (",0.8,", ",1.2,", "acceptance"),
        (",0.04,", ",,", "cost"),
        (",2.8,", ",,", "gain"),
        (",2.8,", ",8.5,", "impossible: 8.5 times as fast with 7 drafted"),
        (",7,,", ",7,2.5,", "impossible: 2.8 times as fast with 2.5 tokens a round"),
    ],
)
def test_a_gain_that_is_not_judged_says_why(tmp_path: Path, old: str, new: str, why: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(DRAFTED + GAIN.replace(old, new), encoding="utf-8")
    (row,) = read_speculation(path)
    assert row.why_not.startswith(why)


def test_what_a_round_cost_is_told_where_tokens_and_gain_are_of_the_same_texts(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    row = "a,page,SpS,overall,0,,,,2.4,,1.5,{}\n"
    path.write_text(DRAFTED + row.format("") + row.format("mean is over all tasks; not this one"), encoding="utf-8")
    assert [one.round_cost for one in read_speculation(path)] == [pytest.approx(1.6), None]
