"""Looking into checkpoints: the figures are those of transformers' own models, nothing is read, and the text fits."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.errors import UserError
from burnish.load import inspect_model as inspect_model_
from burnish.load.checkpoint import Checkpoint, StoredTensor, TokenizerFiles
from burnish.load.folder import open_folder
from burnish.load.inspect_model import CHEAP, inspect_model
from burnish.load.inspect_text import described, tensors
from burnish.load.source import open_model
from burnish.load.wheels import model_named, place_of, whole

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24, "vocab_size": 40}
GROUPED = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
MODELS = {
    "llama": GROUPED | {"tie_word_embeddings": True},
    "qwen2": GROUPED | {"tie_word_embeddings": False},
    "mistral": GROUPED | {"sliding_window": 32},
    "qwen3_moe": GROUPED | EXPERTS | {"head_dim": 8},
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 40} | ENDS,
    "bert": SMALL | {"max_position_embeddings": 64},
}


@pytest.fixture(scope="module", params=MODELS)
def published(request, tmp_path_factory):
    """A small model of transformers, and the folder it wrote."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(request.param, **MODELS[request.param])
    kind = transformers.AutoModel if request.param == "bert" else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model = kind.from_config(config)
    folder = tmp_path_factory.mktemp("published") / request.param
    model.save_pretrained(folder)
    return model, folder


def test_the_figures_are_those_of_the_model(published):
    model, folder = published
    found = inspect_model(open_folder(folder))
    parameters, config = found["parameters"], model.config
    of = {name: tensor.numel() for name, tensor in model.named_parameters()}
    assert parameters["total"] == sum(of.values()) == model.num_parameters()
    assert sum(count for part, count in parameters.items() if part not in ("total", "active")) == parameters["total"]
    assert parameters["norms"] == sum(n for name, n in of.items() if "norm" in name.lower() or ".ln_" in name)
    attention = (n for name, n in of.items() if "att" in name and "norm" not in name.lower())
    assert parameters["attention"] == sum(attention)
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    assert parameters["embedding"] == sum(module.weight.numel() for module in embeddings)
    assert found["family"] == config.model_type
    assert found["architecture"] == type(model).__name__
    sizes = found["sizes"]
    assert (sizes["layers"], sizes["hidden"], sizes["heads"], sizes["vocab"]) == (3, 16, 4, 40)
    assert found["context"] == 64
    assert found["bytes"] == 4 * sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert found["formats"][0]["format"] == "float32"
    assert found["formats"][0]["bits"] == 32


def test_what_the_family_needs_is_there(published):
    model, folder = published
    found = inspect_model(open_folder(folder))
    assert found["known"]
    assert found["compared"] == {"missing": [], "unexpected": [], "misshapen": {}}
    assert found["memory"]["float32"]["weights"] == 4 * model.num_parameters()
    assert (found["memory"]["float32"]["cache"] is None) == (model.config.model_type == "bert")


def test_the_cache_is_what_the_model_keeps(published):
    """Keys and values that transformers holds after some tokens, scaled to the length that is printed."""
    model, folder = published
    if model.config.model_type == "bert":
        return  # an encoder keeps none
    kept = model(torch.ones(1, 10, dtype=torch.long), use_cache=True).past_key_values
    elements = sum(layer.keys.numel() + layer.values.numel() for layer in kept.layers)
    tokens = 32 if model.config.model_type == "mistral" else 1000  # its window
    assert inspect_model(open_folder(folder))["memory"]["float32"]["cache"] == 4 * elements * tokens // 10


def test_active_parameters_are_those_of_the_experts_that_are_asked(published):
    model, folder = published
    parameters = inspect_model(open_folder(folder))["parameters"]
    if model.config.model_type != "qwen3_moe":
        assert parameters["active"] is None
        return
    assert parameters["experts"] == 3 * 4 * 3 * 16 * 8  # layers, experts, matrices, sizes
    assert parameters["router"] == 3 * 4 * 16
    assert parameters["active"] == parameters["total"] - 3 * 2 * 3 * 16 * 8


def test_every_line_fits_a_narrow_terminal(published):
    _, folder = published
    found = inspect_model(open_folder(folder))
    assert json.loads(json.dumps(found)) == found
    for line in [*described(found), *tensors(found)]:
        assert len(line) <= 80 or str(folder) in line
        assert line.isprintable()
    text = shown(found)
    assert f"{found['parameters']['total']:,}" in text


def shown(found: dict) -> str:
    """The lines as one, since where they are broken depends on names."""
    return " ".join(" ".join(described(found)).split())


def never() -> torch.Tensor:
    raise AssertionError("a weight was read")


def checkpoint(config: dict, tensors: dict[str, tuple[int, ...]], kind: str = "bfloat16") -> Checkpoint:
    stored = {
        n: StoredTensor(s, kind, 2 * torch.Size(s).numel(), Path("m/model.safetensors"), never)
        for n, s in tensors.items()
    }
    return Checkpoint("m", "safetensors", config, stored)


LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 32}
LLAMA |= {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED |= {"original_max_position_embeddings": 8192}
LARGE = {"model.embed_tokens.weight": (128256, 4096), "lm_head.weight": (128256, 4096), "model.norm.weight": (4096,)}


def test_a_large_model_is_not_read():
    found = inspect_model(checkpoint(LLAMA | {"rope_scaling": SCALED}, LARGE))
    assert found["tie"]["equal"] is None
    assert found["compared"]["missing"][0] == "model.layers.0.input_layernorm.weight"
    assert found["parameters"]["head"] == found["parameters"]["embedding"] == 128256 * 4096
    assert found["memory"]["bfloat16"]["cache"] == 2 * 2 * 8 * 128 * 1000
    text = shown(found)
    assert "was not compared" in text
    assert "stretched 8.0 times (llama3)" in text
    assert "and 4 more" in text
    assert "missing:" in text


def test_a_family_that_is_not_known_is_described_as_far_as_it_goes():
    config = {"model_type": "mamba9", "num_layers": 2, "d_model": 8, "auto_map": {"AutoModel": "x.py"}}
    found = inspect_model(checkpoint(config, {"a.mixer.weight": (8, 8), "b.embed.weight": (10, 8)}))
    assert (found["sizes"]["layers"], found["sizes"]["hidden"], found["sizes"]["heads"]) == (2, 8, None)
    assert found["parameters"] == {"total": 144, "active": None, "embedding": 80, "other": 64}
    text = shown(found)
    assert "mamba9" in text
    assert "never run" in text
    assert "not loadable" in text


ODD = {"model_type": 3, "architectures": "x", "hidden_size": "wide", "rope_parameters": 3, "num_hidden_layers": True}
ODD |= {"sliding_window": -1, "eos_token_id": {}, "tie_word_embeddings": "yes", "rope_theta": "x", "rope_scaling": 3}


@pytest.mark.parametrize("config", [{}, ODD, {"model_type": ["llama"]}, {"model_type": "llama", "hidden_size": "wide"}])
def test_settings_of_the_wrong_kind_are_described(config):
    found = inspect_model(checkpoint(config, {"x": (2,)}))
    assert found["refused"]
    assert list(described(found))


@pytest.mark.parametrize(("change", "equal"), [(0.0, True), (1.0, False)])
def test_whether_a_written_head_is_the_embedding(tmp_path, change, equal):
    table = torch.arange(12.0).reshape(4, 3)
    save_file({"model.embed_tokens.weight": table, "lm_head.weight": table + change}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "other", "tie_word_embeddings": false}')
    found = inspect_model(open_folder(tmp_path))
    assert found["tie"]["equal"] is equal
    assert ("equals the embedding" if equal else "differs from the embedding") in shown(found)
    assert table.numel() * 4 <= CHEAP


@pytest.mark.parametrize(
    ("content", "want"),
    [
        ({"model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}, "byte-level BPE, 1 tokens"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "byte_fallback": True}}, "BPE with byte fallback"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", 1.0]]}}, "Unigram, 2 tokens"),
        (
            {"model": {"type": "WordPiece", "vocab": {"a": 0}}, "added_tokens": [{"id": 7, "content": "<s>"}]},
            "8 tokens",
        ),
        ({"model": {}}, "cannot be read"),
        ({"model": 3}, "cannot be read"),
        ({}, "cannot be read"),
    ],
)
def test_tokenizers(content, want):
    files = TokenizerFiles(json.dumps(content), {"bos_token": {"content": "<s>"}, "eos_token": "a", "pad_token": None})
    found = inspect_model(replace(checkpoint(LLAMA, {"x": (2,)}), tokenizer=files))
    assert want in shown(found)
    if found["tokenizer"]["refused"] is None:
        assert found["tokenizer"]["special"].keys() == {"bos_token", "eos_token"}


@pytest.mark.parametrize(("name", "total"), [("smollm2", 134_515_008), ("minilm", 22_713_216)])
def test_models_that_were_fetched(name, total):
    if not whole(model_named(name), place_of(model_named(name))):
        pytest.skip(f"not here; burnish fetch {name} brings it")
    found = inspect_model(open_model(name))
    assert found["parameters"]["total"] == total
    assert found["tokenizer"]["tokens"] == found["sizes"]["vocab"]


def model_folder(where: Path) -> Path:
    where.mkdir(parents=True)
    save_file({"x": torch.ones(2)}, where / "model.safetensors")
    (where / "config.json").write_text("{}")
    return where


def test_every_way_to_name_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_model(model_folder(tmp_path / "m")).where == str(tmp_path / "m")
    assert open_model("m").where == "m"
    model_folder(tmp_path / "run/model")
    (tmp_path / "run/recipe.lock.yaml").write_text("")
    assert open_model("run").where == "run/model"
    (tmp_path / "early").mkdir()
    (tmp_path / "early/recipe.lock.yaml").write_text("")
    for source, *said in (
        ("early", "has no exported model yet; write it with `burnish export early`"),
        ("m/config.json", "is no .gguf file"),
        ("smolm2", "a shipped name", "did you mean 'smollm2'?", "ORG/NAME"),
        ("none.gguf", "no such folder or file"),
        ("m/none", "no such folder or file"),
        ("./none", "no such folder or file"),
        ("~nobody-of-this-name/m", "cannot be read"),
        ("m" * 5000, "cannot be read"),
        ("m\0", "no such folder or file"),
    ):
        with pytest.raises(UserError) as caught:
            open_model(source)
        assert all(part in str(caught.value) for part in said)
    (tmp_path / "files").mkdir()
    for name in ("a.gguf", "b.GGUF"):
        (tmp_path / "files" / name).write_bytes(b"GGUF")
    with pytest.raises(UserError, match="holds 2"):
        open_model("files")
    (tmp_path / "files/b.GGUF").unlink()
    with pytest.raises(UserError, match=r"a\.gguf: .*GGUF"):
        open_model("files")


@pytest.mark.sabotage
def test_a_bias_that_is_taken_for_a_mask_is_noticed(published, monkeypatch):
    monkeypatch.setattr(inspect_model_, "DERIVED", re.compile(r"attn\.bias$"))
    if published[0].config.model_type == "gpt2":
        with pytest.raises(AssertionError):
            test_the_figures_are_those_of_the_model(published)


@pytest.mark.sabotage
def test_a_cache_of_all_heads_is_noticed(published, monkeypatch):
    sizes = inspect_model_._sizes
    monkeypatch.setattr(inspect_model_, "_sizes", lambda *given: (made := sizes(*given)) | {"kv_heads": made["heads"]})
    if published[0].config.model_type == "llama":
        with pytest.raises(AssertionError):
            test_the_cache_is_what_the_model_keeps(published)
