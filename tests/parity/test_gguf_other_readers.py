"""Our GGUF files in the programs they are for: transformers loads them, llama.cpp computes the same logits."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

import gguf_models
from burnish.export.gguf import save_gguf
from burnish.gguf_files.header import read_header
from burnish.load import gguf as load
from burnish.load.gguf import open_gguf

IDS = [1, 5, 9, 200, 44, 0, 17, 250, 99, 3, 8, 77, 100, 101, 102, 4] * 3
TEXT = "the cat <|user|> sat<think> on\n  the\tmat, 12345 don't naïve \u8a9e"

# What transformers' loader supports, with the sizes that it does not read from the file but takes for granted.
TRANSFORMERS = {
    "llama": {},
    "llama tied": {},
    "llama wide heads": {},
    "llama odd width": {},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"moe_intermediate_size": 768},
    "gpt2": {"n_positions": 1024},
}


@pytest.mark.parametrize(("kind", "sizes"), TRANSFORMERS.items(), ids=TRANSFORMERS.keys())
def test_transformers_loads_the_same_model(kind, sizes, tmp_path):
    model, checkpoint = gguf_models.model(kind, tmp_path / "m", **sizes)
    save_gguf(checkpoint, tmp_path / "m.gguf", "F32")
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    wanted = model.state_dict()
    assert theirs.state_dict().keys() == wanted.keys()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
    with torch.no_grad():
        torch.testing.assert_close(theirs(torch.tensor([IDS])).logits, model(torch.tensor([IDS])).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert tokenizer(TEXT)["input_ids"] == Tokenizer.from_str(checkpoint.tokenizer.tokenizer).encode(TEXT).ids
    assert tokenizer.chat_template == gguf_models.TEMPLATE


def llama_cpp_logits(file: Path) -> tuple[np.ndarray, list[int]]:
    """Scores after each of IDS in a cache of float32, and the ids of TEXT."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (pip install llama-cpp-python)")
    engine = llama_cpp.Llama(
        str(file), n_ctx=256, logits_all=True, verbose=False, type_k=0, type_v=0, flash_attn=False, n_threads=1
    )
    engine.eval(IDS)
    scores = np.array(engine.scores[: len(IDS)])
    return scores, engine.tokenize(TEXT.encode(), add_bos=False, special=True)


@pytest.mark.parametrize("kind", gguf_models.KINDS)
def test_llama_cpp_computes_the_same_logits(kind, tmp_path):
    model, checkpoint = gguf_models.model(kind, tmp_path)
    made = save_gguf(checkpoint, tmp_path / "m.gguf", "F32")
    found, ids = llama_cpp_logits(tmp_path / "m.gguf")
    with torch.no_grad():
        wanted = model(torch.tensor([IDS])).logits[0].numpy()
    error = float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))
    if kind == "mistral":  # its window is not applied there, and we say so
        assert "sliding window is not applied" in made.notes[0]
        within = checkpoint.config["sliding_window"]
        found, wanted = found[:within], wanted[:within]
        error = float(np.abs(found - wanted).max())
    assert error < (1e-3 if kind == "gpt2" else 1e-5)  # llama.cpp looks GPT-2's activation up in half precision
    assert ids == Tokenizer.from_str(checkpoint.tokenizer.tokenizer).encode(TEXT).ids


@pytest.mark.parametrize("form", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_llama_cpp_reads_each_format_as_we_do(form, tmp_path):
    """Against transformers with the weights that we read back. llama.cpp rounds activations for quantized products."""
    model, checkpoint = gguf_models.model("llama", tmp_path)
    save_gguf(checkpoint, tmp_path / "m.gguf", form)
    model.load_state_dict({name: t.read().float() for name, t in open_gguf(tmp_path / "m.gguf").tensors.items()})
    found, _ = llama_cpp_logits(tmp_path / "m.gguf")
    with torch.no_grad():
        wanted = model(torch.tensor([IDS])).logits[0].numpy()
    error = float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))
    assert error < {"F16": 2e-3, "BF16": 2e-2}.get(form, 5e-2)


def smollm2_loads_equal(file: Path) -> bool:
    """Whether our reader gives the weights that transformers' gives, bit for bit."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    ours, wanted = open_gguf(file), theirs.state_dict()
    assert wanted.keys() - ours.tensors.keys() == {"lm_head.weight"}
    return all(torch.equal(tensor.read(), wanted[name]) for name, tensor in ours.tensors.items())


def test_smollm2_is_read_as_transformers_reads_it(smollm2):
    assert smollm2_loads_equal(smollm2)
    config = open_gguf(smollm2).config
    theirs = transformers.AutoConfig.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        assert config[key] == getattr(theirs, key)
    assert config["rope_theta"] == theirs.rope_parameters["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == pytest.approx(theirs.rms_norm_eps, rel=1e-7)
    assert config["tie_word_embeddings"]


@pytest.mark.sabotage
def test_smollm2_with_turned_rows_is_noticed(smollm2, monkeypatch):
    monkeypatch.setattr(load, "unturned", lambda rows, heads: rows)
    assert not smollm2_loads_equal(smollm2)


def test_smollm2_written_again_is_the_same_blocks(smollm2, tmp_path):
    """Its 4-bit matrices and its embedding, dequantized and quantized again by us: not one byte changes."""
    save_gguf(open_gguf(smollm2), tmp_path / "m.gguf", "Q4_1")
    before, after = read_header(smollm2), read_header(tmp_path / "m.gguf")
    assert before.tensors.keys() == after.tensors.keys()
    old, new = np.memmap(smollm2, mode="r"), np.memmap(tmp_path / "m.gguf", mode="r")
    for name, tensor in before.tensors.items():
        other = after.tensors[name]
        assert (tensor.storage, tensor.shape) == (other.storage, other.shape)
        here, there = (data[t.offset : t.offset + t.bytes] for data, t in ((old, tensor), (new, other)))
        assert np.array_equal(here, there), name
    assert Counter(t.storage for t in after.tensors.values()) == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    for key in ("tokens", "token_type", "merges", "bos_token_id", "eos_token_id", "padding_token_id", "pre"):
        assert before.metadata[f"tokenizer.ggml.{key}"] == after.metadata[f"tokenizer.ggml.{key}"], key
    assert json.dumps(before.metadata["tokenizer.chat_template"]) == json.dumps(
        after.metadata["tokenizer.chat_template"]
    )
