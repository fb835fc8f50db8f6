"""The folder and the command for vLLM: figures counted by hand, integers kept, nothing written where nothing fits."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from awq_models import config_of, decoder
from burnish.cli import code_of
from burnish.config import ModelConfig
from burnish.errors import BudgetNotMet, UserError
from burnish.export.compressed_tensors import save_compressed
from burnish.export.vllm import GRAPHS, STEP_TOKENS, serving
from burnish.hardware import chip, detect
from burnish.load.model import load_folder
from burnish.mesh import Mesh
from burnish.pool_size import step_bytes
from burnish.techniques import awq
from served_model import POSITIONS, chat_model

H100 = chip("h100-sxm")
LLAMA_70B = ModelConfig(
    vocab=128256, hidden=8192, ffn=28672, layers=80, heads=64, kv_heads=8, max_positions=131072, tied=False
)
WEIGHTS_70B = 141_107_412_992  # bytes of its safetensors in bfloat16


def test_seventy_billion_parameters_on_eight_gpus() -> None:
    """4 GPUs hold the weights and a whole context: 0.9 x memory less a quarter of the weights, the step and the graphs."""
    made = serving(LLAMA_70B, WEIGHTS_70B, H100, 8, "bfloat16")
    assert (made.tp, made.context) == (4, 131072)
    assert made.position == 2 * 80 * 2 * 128 * 2  # keys and values, layers, 2 of 8 heads, 128 each, 2 bytes
    pool = int(0.9 * H100.memory) - WEIGHTS_70B // 4 - step_bytes(LLAMA_70B, STEP_TOKENS, 256, 2) - GRAPHS
    assert (made.pool, made.sequences) == (pool, pool // (131072 * made.position))
    assert serving(LLAMA_70B, WEIGHTS_70B, H100, 2, "bfloat16").tp == 2  # with a shorter context
    assert serving(LLAMA_70B, WEIGHTS_70B, H100, 2, "bfloat16").context < 131072
    words = shlex.split(made.command("a folder"))
    assert words[:5] == ["vllm", "serve", "a folder", "--tensor-parallel-size", "4"]
    assert "--quantization" not in words
    why = dict(made.reasons(LLAMA_70B))
    assert "2 copies fit on the 8" in why["--tensor-parallel-size 4"]
    assert why["--max-model-len 131072"] == "all positions of the model"


def test_one_sequence_more_needs_its_bytes() -> None:
    """At the byte: a pool of exactly two contexts serves two; one byte less, one."""
    config = ModelConfig(vocab=1000, hidden=64, ffn=128, layers=2, heads=4, kv_heads=2, max_positions=1024, tied=True)
    context = 1024 * 2 * 2 * 2 * 16 * 2
    beside = step_bytes(config, STEP_TOKENS, 256, 2) + GRAPHS
    weights = int(0.9 * H100.memory) - beside - 2 * context
    assert serving(config, weights, H100, 1, "bfloat16").sequences == 2
    assert serving(config, weights + 1, H100, 1, "bfloat16").sequences == 1


def test_degrees_that_do_not_divide_are_passed_over_and_what_fits_nowhere_is_refused() -> None:
    odd = ModelConfig(vocab=1000, hidden=96, ffn=96, layers=2, heads=6, kv_heads=2, max_positions=1024, tied=True)
    weights = int(2.5 * 0.9 * H100.memory)  # three GPUs would hold it, and do not divide 2 key-value heads
    assert serving(odd, weights, H100, 8, "bfloat16").tp == 6
    with pytest.raises(BudgetNotMet, match=r"do not fit on 4 GPUs of NVIDIA H100"):
        serving(odd, weights, H100, 4, "bfloat16")
    with pytest.raises(UserError, match="are for GPUs"):
        serving(odd, 1, detect(), 1, "bfloat16")


def test_a_float_model_becomes_a_folder_a_script_and_a_page_and_may_be_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = chat_model(tmp_path / "fox"), tmp_path / "out"
    for _ in range(2):
        words = ["export", str(model), "--for", "vllm", "--to", str(out), "--chip", "h100-sxm", "--gpus", "2"]
        assert code_of(words) == 0
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "model", "serve.sh"]
    assert json.loads((out / "model" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert (out / "model" / "chat_template.jinja").exists()
    command = (out / "serve.sh").read_text().splitlines()[-1]
    assert command in (out / "README.md").read_text()
    assert command in capsys.readouterr().out
    assert f"--max-model-len {POSITIONS} --max-num-seqs 256" in command
    (tmp_path / "vllm").write_text('#!/bin/sh\necho "$PWD" "$@"\n')
    (tmp_path / "vllm").chmod(0o755)
    ran = subprocess.run([out / "serve.sh"], capture_output=True, text=True, env={"PATH": f"{tmp_path}:/bin:/usr/bin"})
    assert ran.stdout.startswith(f"{out} serve model --tensor-parallel-size 1 --dtype bfloat16")


def test_integers_stay_as_they_are(tmp_path: Path) -> None:
    made = awq.apply(awq.Config(method="rtn", group=32), decoder("llama"), Mesh())
    save_compressed(made, config_of("llama"), tmp_path / "small")
    words = ["export", str(tmp_path / "small"), "--for", "vllm", "--to", str(tmp_path / "out"), "--chip", "a100"]
    assert code_of(words) == 0
    name = "model.safetensors"
    assert (tmp_path / "out" / "model" / name).read_bytes() == (tmp_path / "small" / name).read_bytes()
    assert (tmp_path / "out" / "serve.sh").read_text().endswith("--quantization compressed-tensors\n")
    one, two = (load_folder(folder)[0].state_dict() for folder in (tmp_path / "small", tmp_path / "out" / "model"))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert code_of([*words, "--dtype", "bfloat16"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--for", "tgi"], "--for tgi: vllm works"),
        (["--for", "vllm", "--to", "out"], "say where it goes and on which GPU"),
        (["--for", "vllm", "--to", "out", "--chip", "h900"], "chip 'h900'"),
        (["--for", "vllm", "--to", "out", "--chip", "h100-sxm", "--gpus", "0"], "--gpus 0: 1 or more"),
        (["--for", "vllm", "--to", "out", "--chip", "h100-sxm", "--head", "int8"], "are options of ONNX"),
        (["--to", "out", "--gpus", "2"], "--chip and --gpus: are options of --for vllm"),
    ],
)
def test_wrong_options_write_nothing(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    chat_model(tmp_path / "fox")
    assert code_of(["export", "fox", *words]) == 2
    assert said in capsys.readouterr().err
    assert not Path("out").exists()
