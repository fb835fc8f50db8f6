"""Bad input to the planner: one line that names it, with near names or legal values, exit code 2, no traceback."""

import json
from pathlib import Path

import pytest

from burnish.cli import code_of

MODEL, CLUSTER = "llama3-70b", "h100-sxm:8x8"


def asked(*more: str, model: str = MODEL, cluster: str = CLUSTER, seq: str = "8192", batch: str = "256") -> list[str]:
    return ["plan", model, "--cluster", cluster, "--seq", seq, "--batch", batch, *more]


CASES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "unknown chip": (asked(cluster="h100-smx:8x8"), ("h100-smx", "h100-sxm")),
    "no GPUs": (asked(cluster="h100-sxm:0x8"), ("0", "nodes")),
    "no GPUs in a node": (asked(cluster="h100-sxm:8x0"), ("0",)),
    "counts that are words": (asked(cluster="h100-sxm:eightxeight"), ("eight",)),
    "negative nodes": (asked(cluster="h100-sxm:-1x8"), ("-1",)),
    "unknown model": (asked(model="llama3-70c"), ("llama3-70c", "llama")),
    "model that is empty": (asked(model=""), ("model",)),
    "no cluster": (["plan", MODEL], ("--cluster",)),
    "no sequence": (["plan", MODEL, "--cluster", CLUSTER, "--batch", "8"], ("--seq",)),
    "no batch": (["plan", MODEL, "--cluster", CLUSTER, "--seq", "8192"], ("--batch",)),
    "sequence of none": (asked(seq="0"), ("--seq 0", "at least 1")),
    "negative sequence": (asked(seq="-5"), ("--seq -5",)),
    "sequence that is a word": (asked(seq="long"), ("--seq", "integer")),
    "batch of none": (asked(batch="0"), ("--batch 0",)),
    "batch that no mapping takes": (asked("--fix", "tp=8,pp=1,cp=1", batch="7"), ("cp=1", "legal: 8")),
    "batch smaller than dp": (asked("--fix", "dp=64", batch="32"), ("dp=64", "32 sequences", "legal: 1, 2")),
    "heads that tp does not divide": (asked("--fix", "tp=3"), ("tp=3", "64 heads", "legal: 1, 2, 4, 8")),
    "more stages than layers": (asked("--fix", "pp=128", cluster="h100-sxm:16x8"), ("pp=128", "80 layers")),
    "stages that do not divide the GPUs": (asked("--fix", "pp=5"), ("pp=5", "64 GPUs")),
    "degrees above the GPUs": (asked("--fix", "tp=8,pp=8,dp=2"), ("dp=2", "tp=8", "legal: 1")),
    "degrees below the GPUs": (asked("--fix", "tp=2,pp=2,dp=2,cp=1"), ("64 GPUs", "legal")),
    "experts of a dense model": (asked("--fix", "ep=8"), ("ep=8", "no experts")),
    "experts that ep does not divide": (
        asked("--fix", "ep=3", model="mixtral-8x7b"),
        ("8 experts", "legal: 1, 2, 4, 8"),
    ),
    "context that does not divide": (asked("--fix", "cp=2", seq="4098"), ("cp=2", "4098 tokens")),
    "micro batch above the batch": (asked("--fix", "micro_batch=512"), ("micro_batch=512", "legal")),
    "chunks above the layers": (asked("--fix", "vpp=81"), ("vpp=81", "layers")),
    "chunks without a pipeline": (asked("--fix", "pp=1,vpp=2"), ("vpp=2", "legal: 1")),
    "unknown key": (asked("--fix", "tpp=8"), ("tpp", "tp")),
    "key without a value": (asked("--fix", "tp"), ("KEY=VALUE", "tp=8")),
    "value that is no number": (asked("--fix", "tp=many"), ("many", "whole number")),
    "value below the least": (asked("--fix", "tp=0"), ("tp=0", "at least 1")),
    "stage that is not": (asked("--fix", "zero=4"), ("zero=4", "0..3")),
    "key given twice": (asked("--fix", "tp=8", "--fix", "tp=4"), ("tp", "twice")),
    "unknown recompute": (asked("--fix", "recompute=some"), ("none, attention, products, full",)),
    "unknown schedule": (asked("--fix", "schedule=dualpipe"), ("gpipe, 1f1b, zero-bubble",)),
    "unknown key to explain": (asked("--why-not", "pt=8"), ("--why-not", "pt")),
    "unknown precision": (asked("--precision", "bf61"), ("bf61", "bf16")),
    "precision the chip lacks": (asked("--precision", "fp8", cluster="a100-80gb:8x8"), ("fp8", "bf16")),
    "block scales the chip lacks": (asked("--precision", "mxfp8"), ("mxfp8", "fp8")),
    "unknown attention": (asked("--attention", "flsh"), ("flsh", "flash")),
    "unknown optimizer": (asked("--optimizer", "adamv"), ("adamv", "adam")),
    "unknown way to train": (asked("--trained", "lorra"), ("lorra", "lora")),
    "adapters without a rank": (asked("--trained", "lora"), ("--lora-rank",)),
    "unknown state to shrink": (asked("--must-shrink", "gradient"), ("gradients",)),
    "shrinking that needs a gather": (asked("--must-shrink", "parameters", "--no-forward-gather"), ("gather",)),
    "nobody to shrink with": (asked("--must-shrink", "optimizer", "--fix", "tp=8,pp=8"), ("--must-shrink",)),
    "unknown other stack": (asked("--as", "megatronn"), ("megatronn", "megatron")),
    "what another stack cannot do": (asked("--as", "megatron", "--fix", "zero=2,pp=4"), ("megatron", "pipeline")),
    "alternatives below one": (asked("--top", "0"), ("--top",)),
    "change of a recipe for a model": (asked("train.steps=3"), ("train.steps=3", "--fix")),
    "option of a model for a recipe": (["plan", "quickstart", "--fix", "tp=8"], ("--fix", "--cluster")),
    "runnable ranks that cannot divide": (
        asked("--runnable", "--fix", "tp=1,pp=1", batch="100"),
        ("pp=1", "legal: 16, 32, 64"),
    ),
    "batch that is not searched": (asked(batch="1000000000000000"), ("--batch", "at most")),
    "sequence that is not searched": (asked(seq="99999999999"), ("--seq", "at most")),
    "unknown stack": (asked("--stack", "foo"), ("foo", "megatron-core-2026")),
    "what a stack cannot do": (asked("--stack", "megatron-2021", "--fix", "zero=3"), ("megatron-2021", "ZeRO 0 and 1")),
    "adapters for another stack": (
        asked("--as", "megatron", "--trained", "lora", "--lora-rank", "8"),
        ("all weights",),
    ),
    "stage that leaves what must shrink": (asked("--must-shrink", "gradients", "--fix", "zero=0"), ("stage 2",)),
    "context parallelism that cannot be run": (asked("--runnable", "--fix", "cp=2"), ("--runnable", "cp=2")),
    "batch that no rank divides": (asked("--fix", "tp=8,pp=1,cp=1", batch="131"), ("131 sequences", "dp would be 8")),
    "page in a folder that is not there": (asked("--html", "missing/plan.html"), ("missing", "make it first")),
    "page without a name": (asked("--html", ""), ("folder",)),
    "page that cannot be written": (asked("--html", "/proc/here/plan.html"), ("/proc/here",)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_exit_code_2(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, needles = CASES[name]
    code = code_of(arguments)
    error = capsys.readouterr().err.strip().splitlines()
    assert code == 2, error
    assert len(error) == 1
    assert error[0].startswith("burnish: ")
    assert all(needle in error[0] for needle in needles), error[0]
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_no_decoder_is_refused_by_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"model_type": "t5", "d_model": 512, "num_layers": 6, "num_heads": 8, "vocab_size": 32128})
    )
    assert code_of(asked(model=str(config))) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert "t5" in error[0]


def test_what_does_not_fit_ends_with_exit_code_3_and_what_would(capsys: pytest.CaptureFixture) -> None:
    assert code_of([*asked(cluster="h100-sxm:1x8"), "--json"]) == 3
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["fits"] is False
    assert answer["pick"] is None
    assert all(not other["fits"] for other in answer["alternatives"])
    assert answer["would_fit"]
    assert all(remedy["fits"] for remedy in answer["would_fit"])
    assert len(said.err.strip().splitlines()) == 1
