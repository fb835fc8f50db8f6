"""Model folders to transformers and back, bit for bit."""

from __future__ import annotations

import json

import pytest
import torch
from llama_pair import BASE, SHAPES, batch, pair, their_logits
from transformers import AutoTokenizer, LlamaForCausalLM

from burnish.export.check import check_export
from burnish.export.safetensors import named_for_file, save_folder
from burnish.layout import INDEX, SINGLE
from burnish.load.model import load_folder

shapes = pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())


def same_weights(ours, theirs, config) -> None:
    wanted = theirs.state_dict()
    for name, tensor in named_for_file(ours, config).items():
        assert torch.equal(tensor, wanted[name]), name


@shapes
@pytest.mark.parametrize("write_tied", [False, True])
@pytest.mark.parametrize("shard_bytes", [2**30, 20_000])
def test_ours_load_in_transformers(config, write_tied, shard_bytes, tmp_path):
    ours, _ = pair(config)
    files = save_folder(ours, config, tmp_path / "m", write_tied=write_tied, shard_bytes=shard_bytes)
    assert (tmp_path / "m" / INDEX in files) == (shard_bytes < 2**30)
    theirs, info = LlamaForCausalLM.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(info.values()), info  # missing, unexpected, mismatched keys, errors
    same_weights(ours, theirs, config)
    ids, _ = batch(config)
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(ours(ids)), their_logits(theirs, ids), rtol=0, atol=1e-4)


@shapes
@pytest.mark.parametrize("shard", ["5GB", "20KB"])
def test_theirs_load_in_ours(config, shard, tmp_path):
    _, theirs = pair(config)
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / SINGLE).exists() == (shard == "5GB")
    ours, read = load_folder(tmp_path)
    assert read == config
    assert (ours.head.weight is ours.embed.weight) == config.tied
    same_weights(ours, theirs, config)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_files_hold_the_rounded_weights(dtype, tmp_path):
    ours, _ = pair(BASE)
    save_folder(ours, BASE, tmp_path / "m", dtype=dtype)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "m")
    assert theirs.dtype == getattr(torch, dtype)
    same_weights(ours.to(theirs.dtype), theirs, BASE)
    loaded, _ = load_folder(tmp_path / "m", dtype=torch.float32)
    assert loaded.norm.weight.dtype == torch.float32


@pytest.mark.parametrize("config", [BASE, SHAPES["grouped-untied"]], ids=["tied", "untied"])
def test_check_export_compares_weights_and_logits(config, tmp_path):
    ours, _ = pair(config)
    save_folder(ours, config, tmp_path / "m")
    found = check_export(ours, tmp_path / "m")
    assert found["weights_equal"] is found["tie_kept"] is found["config_equal"] is True
    assert (found["logits_max_abs_difference"], found["dtype"]) == (0.0, "float32")
    save_folder(ours, config, tmp_path / "m", dtype="bfloat16")
    rounded = check_export(ours, tmp_path / "m")
    assert rounded["weights_equal"] is True  # equal to the cast weights
    assert 0 < rounded["logits_max_abs_difference"] < 1


def test_check_export_notices_a_changed_weight(tmp_path):
    ours, _ = pair(BASE)
    save_folder(ours, BASE, tmp_path / "m")
    with torch.no_grad():
        ours.layers[1].mlp.up.weight[3, 4] += 1e-3
    found = check_export(ours, tmp_path / "m")
    assert found["weights_equal"] is False
    assert found["weights_different"] == ["layers.1.mlp.up.weight"]
    assert found["logits_max_abs_difference"] > 0


def test_the_tokenizer_loads_in_transformers(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=260, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["tea and toast, tea and toast"], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = BASE.model_copy(update={"vocab": 263, "bos": 0, "eos": 0})
    ours, _ = pair(config)
    save_folder(ours, config, tmp_path / "m", tokenizer=tmp_path / "tokenizer.json")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert (theirs.eos_token, theirs.eos_token_id, theirs.model_max_length) == ("<|end|>", 0, config.max_positions)
    assert theirs("tea and jam").input_ids == [0, *tokenizer.encode("tea and jam").ids]
    assert json.loads((tmp_path / "m" / "generation_config.json").read_text()) == {"bos_token_id": 0, "eos_token_id": 0}
