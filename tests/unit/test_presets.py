"""Presets: published decoders under any spelling, held against published parameter counts and FLOPs per token."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.describe import Shapes, describe
from burnish.errors import UserError
from burnish.parameters import active_parameters, causal_flops, parameters
from burnish.presets import architecture_of, plain, preset, presets
from burnish.stack import stacks

SHARED = Path(__file__).parents[3] / "shared" / "data"
ROWS = SHARED / "planner" / "rows_training.csv"
# Sources count active parameters in their own ways: with the embedding, which is looked up, or in round numbers.
LOOKED_UP = {
    "llama-4-scout",
    "llama-4-maverick",
    "qwen2-57b-a14b",
    "qwen3-30b-a3b",
    "deepseek-moe-16b",
    "deepseek-v2-lite",
}
LOOKED_UP |= {"moonlight-16b-a3b", "olmoe-1b-7b"}
NOT_MODELS = ('Llama4 16e torchtitan "default configs" (small MoE)',)  # its sizes are not published


def rows() -> Iterator[dict[str, str]]:
    if not ROWS.exists():
        pytest.skip("the published rows are not here")
    with ROWS.open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


@pytest.mark.parametrize("name", sorted(presets()))
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    row = presets()[name]
    model = replace(row.model, mtp=0)  # published counts leave further-token layers out
    if row.total is not None:
        assert parameters(model) == pytest.approx(row.total * 1e9, rel=0.03 if row.total < 5 else 0.02)
    if row.active is not None:
        looked_up = model.vocab * model.hidden if name in LOOKED_UP else 0
        assert active_parameters(model) + looked_up == pytest.approx(row.active * 1e9, rel=0.03)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2", 124_439_808),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("smollm2-135m", 134_515_008),
        ("mixtral-8x7b", 46_702_792_704),
        ("gpt-neox-20b", 20_554_567_680),
        ("deepseek-v3 (w/o mtp)", 671_026_404_352),
        ("llama-4-scout", 107_769_861_120),
    ],
)
def test_counts_are_those_of_the_weights_to_the_last_one(name: str, count: int) -> None:
    assert parameters(preset(name)) == count


def test_counts_follow_the_sequence_of_a_learned_position_table() -> None:
    """llm-foundry prints the parameters of each benchmark: MPT-7b at 512 positions."""
    assert parameters(replace(preset("MPT-7b"), positions=512)) == 6_652_567_552


@pytest.mark.parametrize(
    "name", ["llama-3-70b", "qwen3-30b-a3b", "kimi-k2", "gpt-oss-20b", "nemotron-3-nano", "deepseek-v2"]
)
def test_the_description_of_layers_has_as_many_parameters(name: str) -> None:
    model = preset(name)
    work = describe(model, Shapes(1, 1), stacks()["torch"])
    described = sum(float(copies) * math.prod(float(size) for size in shape) for copies, shape in work.shapes())
    assert described == pytest.approx(parameters(model), rel=1e-4)


def test_names_are_found_however_they_are_written() -> None:
    for written in (
        "Llama-3-70B",
        "llama3-70b",
        "LLAMA3-70B",
        "Llama 3 70B",
        "llama_3_70b",
        "meta-llama/Meta-Llama-3-70B",
    ):
        assert preset(written) == presets()["llama-3-70b"].model, written
    for written, name in (
        ("Llama-2-70B-chat-hf", "llama-2-70b"),
        ("Qwen3_30B_a3B (tokendrop)", "qwen3-30b-a3b"),
        ("Qwen3-30B-A3B-Thinking AWQ 4-bit", "qwen3-30b-a3b"),
        ("Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("DeepSeekV3 (dropless)", "deepseek-v3"),
        ("GPT-1008.0B", "gpt-1t"),
        ("Llama 2 7 B", "llama-2-7b"),
    ):
        assert preset(written).name == name


def test_a_point_between_digits_counts() -> None:
    with pytest.raises(UserError, match=r"GPT-17B.*near ones"):
        preset("GPT-17B")
    assert preset("gpt 1.7b").layers == 24


def test_no_two_presets_share_a_spelling() -> None:
    seen: dict[str, str] = {}
    for name, row in presets().items():
        for written in {plain(text) for text in (name, *row.also, *row.hub)}:
            assert seen.setdefault(written, name) == name
            assert preset(written).name == name


def test_further_token_layers_are_asked_for_in_brackets() -> None:
    assert [preset(name).mtp for name in ("DeepSeekV3", "DeepSeekV3 (w/o MTP)", "DeepSeekV3 (w/ MTP)")] == [1, 0, 1]
    assert preset("llama-3-8b (w/ MTP)").mtp == 1


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(UserError, match=r"'llama-3-7b'.*llama-3-70b|llama-3-8b") as raised:
        preset("llama-3-7b")
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="such as llama-3-8b"):
        preset("\N{SNOWMAN}")


def test_every_model_of_the_published_rows_has_a_preset() -> None:
    names = {row["model"] for row in rows()} - set(NOT_MODELS)
    unknown = []
    for name in sorted(names):
        try:
            preset(name.removesuffix(" single layer"))
        except UserError:
            unknown.append(name)
    assert unknown == []


def test_flops_a_token_are_those_that_published_rates_imply() -> None:
    """Megatron-Bridge prints TFLOPS and tokens per second; their quotient is what it counts for a token.

    Two of its counts differ from the work done. Before release 26.06 it reads GPT-OSS as whole attention and two
    matrices an expert. It takes the inner width of a mixer as twice the hidden one, which that of Nemotron 3 Nano is not.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows():
        if not row["id"].startswith("bridge") or row["workload"] != "pretrain" or not row["tokens_per_s_per_gpu"]:
            continue
        model, seq = preset(row["model"]), int(row["seq_len"])
        implied = float(row["tflops_per_gpu"]) * 1e12 / float(row["tokens_per_s_per_gpu"])
        if model.name == "gpt-oss-120b" and implied < 3.1e10:
            model = replace(model, gated=0, windowed_layers=0)
        if model.name == "nemotron-3-nano":
            model = replace(model, mixer_heads=2 * model.hidden // model.mixer_head_dim)
        errors[model.name].append(causal_flops(model, seq) / implied - 1)
    assert len(errors) == 10
    for name, found in errors.items():
        middle = sorted(found)[len(found) // 2]
        assert abs(middle) < 0.012, (name, middle)
        assert max(map(abs, found)) < 0.025, (name, found)


def test_a_model_is_a_path_then_a_preset_then_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert architecture_of("gpt2").hidden == 768
    (tmp_path / "gpt2").mkdir()
    assert architecture_of("gpt2").hidden == 768, "a folder without a config.json is no model"
    config = '{"model_type": "gpt2", "vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4}'
    (tmp_path / "gpt2" / "config.json").write_text(config, encoding="utf-8")
    assert architecture_of("gpt2").hidden == 64
    assert architecture_of("gpt2/config.json").name == "gpt2"


@pytest.mark.parametrize("text", ["", "nowhere/config.json", "no-such-model", "."])
def test_what_is_no_model_ends_in_one_line(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="model") as raised:
        architecture_of(text)
    assert "\n" not in str(raised.value)
