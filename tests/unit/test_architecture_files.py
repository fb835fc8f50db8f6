"""Configurations of many kinds of decoders read as architectures; what is no decoder is named."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish import hub_config
from burnish.architecture import Architecture
from burnish.architecture_files import decoder, read, table
from burnish.errors import UserError
from burnish.parameters import dense, parameters
from burnish.presets import architecture_of, preset

# The content of `config.json` as it lies beside the weights, cut to the keys that matter, by the preset it must agree with.
FILES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "decoder_configs.json").read_text(encoding="utf-8")
)
LLAMA_3_8B = FILES["llama-3-8b"]


def plain(model: Architecture) -> Architecture:
    """Without a name and the longest sequence, and without the width of dense layers where there are none."""
    ffn = model.ffn if dense(model) else 0
    return replace(model, name="", max_positions=0, dense_layers=dense(model), ffn=ffn)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_agrees_with_the_preset_of_its_model(name: str) -> None:
    found, wanted = decoder(FILES[name], "config.json"), preset(name)
    assert parameters(found) == parameters(wanted)
    assert plain(found) == plain(wanted)
    stated = FILES[name].get("max_position_embeddings")
    assert stated is None or found.max_positions == stated


def test_mpt_trains_without_biases_and_positions_where_its_file_says_so() -> None:
    file = {
        "model_type": "mpt",
        "vocab_size": 50432,
        "d_model": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "max_seq_len": 2048,
    }
    found = decoder({**file, "no_bias": True, "learned_pos_emb": True, "attn_config": {"alibi": True}}, "config.json")
    assert (found.positions, found.layer_norm, found.ffn, found.tied) == (0, 0, 16384, 1)
    plain = decoder({**file, "no_bias": False, "learned_pos_emb": True, "attn_config": {"alibi": False}}, "config.json")
    assert (plain.positions, plain.layer_norm) == (2048, 1)


def test_windows_are_counted_by_layer() -> None:
    file = {**FILES["qwen2.5-7b"], "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert (decoder(file, "x").window, decoder(file, "x").windowed_layers) == (4096, 8)
    gemma = decoder(FILES["gemma-3-27b"], "x")
    assert (gemma.window, gemma.windowed_layers, gemma.vocab, gemma.tied) == (1024, 52, 262208, 1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "bert", "hidden_size": 768}, "bert is an encoder of text"),
        ({"model_type": "t5", "d_model": 512}, "t5 is an encoder with a decoder"),
        ({"model_type": "vit"}, "vit is a model of pictures"),
        ({"model_type": "whisper"}, "whisper is a model of speech"),
        ({"model_type": "mamba2"}, "mamba2 is a model without attention"),
        ({"model_type": "qwen2_5_vl"}, "qwen2_5_vl is a decoder with a part for pictures"),
        ({"_class_name": "UNet2DConditionModel"}, "'UNet2DConditionModel' is a diffusion model's part"),
        ({"model_type": "new", "architectures": ["NewForMaskedLM"]}, "'NewForMaskedLM' is an encoder"),
        ({"model_type": "lama"}, "model_type 'lama' is not known; did you mean 'llama'"),
        ({"model_type": "_windowed"}, "is not known"),
        ({"hidden_size": 4}, "model_type is missing"),
        ({"model_type": ["llama"]}, "model_type is missing"),
        ({**LLAMA_3_8B, "num_hidden_layers": None}, "missing num_hidden_layers"),
        ({**LLAMA_3_8B, "num_hidden_layers": "32"}, "num_hidden_layers is '32'; a whole number"),
        ({**LLAMA_3_8B, "num_hidden_layers": float("nan")}, "num_hidden_layers is 'nan'"),
        ({**LLAMA_3_8B, "num_hidden_layers": -1}, "from 0"),
        ({**LLAMA_3_8B, "num_hidden_layers": 0}, "num_hidden_layers is 0; it must be at least 1"),
        ({**LLAMA_3_8B, "num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000; a number from 0 to 10,000"),
        ({**LLAMA_3_8B, "vocab_size": 10**12}, "a number from 0 to 100,000,000"),
        ({**LLAMA_3_8B, "vocab_size": 10**400}, "vocab_size is 1e400 or so"),
        ({**LLAMA_3_8B, "vocab_size": True}, "vocab_size is true; a whole number"),
        ({**LLAMA_3_8B, "num_attention_heads": True}, "num_attention_heads is true; a whole number"),
        ({**LLAMA_3_8B, "tie_word_embeddings": 7}, "tie_word_embeddings is 7; a number from 0 to 1"),
        ({**LLAMA_3_8B, "intermediate_size": 0}, "intermediate_size is 0; it must be at least 1"),
        ({**FILES["mixtral-8x7b"], "intermediate_size": 0}, "intermediate_size is 0"),
        (
            {**LLAMA_3_8B, "hidden_size": 10**6, "num_hidden_layers": 10**4, "intermediate_size": 10**8},
            "parameters; up to 1e+15",
        ),
        (
            {**LLAMA_3_8B, "num_attention_heads": 30, "head_dim": None},
            "hidden_size 4096 does not divide by num_attention_heads 30; 8, 16, 32, 64 heads would, or state head_dim",
        ),
        ({**LLAMA_3_8B, "num_attention_heads": 33, "head_dim": None}, "does not divide by num_attention_heads 33"),
        (
            {
                "model_type": "gpt2",
                **dict.fromkeys(("vocab_size", "n_embd", "n_layer", "n_positions"), 48),
                "n_head": 5,
            },
            "4, 6",
        ),
        ({"model_type": "foo"}, "model_type 'foo' is not known; 69 kinds are, such as llama"),
        ({**LLAMA_3_8B, "num_attention_heads": 0}, "num_attention_heads is 0"),
        ({**LLAMA_3_8B, "num_key_value_heads": 5}, "5 key-value heads do not divide 32 heads"),
        ({**FILES["mixtral-8x7b"], "num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"model_type": "gemma3", "text_config": 3}, "text_config is missing"),
        ({**FILES["nemotron-3-nano"], "hybrid_override_pattern": 7}, "a list or a text is needed"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match="config") as raised:
        decoder(values, "config.json")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_heads_of_a_stated_width_need_not_divide() -> None:
    found = decoder({**LLAMA_3_8B, "num_attention_heads": 33, "num_key_value_heads": 3, "head_dim": 128}, "x")
    assert (found.heads, found.head_dim) == (33, 128)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("./nope", "no such file"),
        ("", "no such file"),
        ("nope/config.json", "no such file"),
        ("/dev/null", "not a regular file"),
        ("folder/", "no config.json there"),
    ],
)
def test_what_can_only_be_a_path_is_said_to_be_no_file(
    given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=said) as raised:
        architecture_of(given)
    assert "hub" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json") as raised:
        read(tmp_path)
    assert "\n" not in str(raised.value)


KEYS = sorted({key for file in FILES.values() for key in file})
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**14),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.text(max_size=4), max_size=3),
    st.dictionaries(st.sampled_from(KEYS), st.integers(-3, 10**5), max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([*table()["decoder"], "bert", "x"]),
    st.sampled_from(sorted(FILES)),
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5),
)
def test_any_values_give_an_architecture_or_one_line(kind: str, name: str, changed: dict[str, Any]) -> None:
    said, found = "", None
    try:
        found = decoder({**FILES[name], "model_type": kind, **changed}, "config.json")
    except UserError as error:
        said = str(error)
    assert "\n" not in said
    assert said or (found and found.heads % found.kv_heads == 0 and found.hidden > 0 and found.layers > 0)


def test_a_hub_name_is_read_from_the_cache_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub_config, "_reachable", lambda endpoint: False)
    with pytest.raises(UserError, match=r"'someone/qwen3-9b'.*cannot be reached.*config\.json.*qwen3-8b") as raised:
        architecture_of("someone/qwen3-9b")
    assert "\n" not in str(raised.value)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B), encoding="utf-8")
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: str(tmp_path / file))
    assert architecture_of("someone/qwen3-9b").layers == 32


def test_without_the_hub_client_a_hub_name_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"huggingface_hub is not installed; give the path of its config\.json"):
        architecture_of("someone/model")
    assert architecture_of("meta-llama/Llama-3.1-8B").name == "llama-3.1-8b", "a preset needs no hub"
