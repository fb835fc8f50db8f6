"""Folders with integer weights: opened by transformers and by us with the same weights, bit for bit, or refused in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from awq_models import IN_FILES, config_of, decoder, logits, samples
from burnish.errors import UserError
from burnish.export.compressed_tensors import save_compressed
from burnish.load.folder import open_folder
from burnish.load.inspect_model import inspect_model
from burnish.load.model import load_folder
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.ops.int4_linear import Int4Linear
from burnish.serve.generate import generate
from burnish.serve.sampling import Sampling
from burnish.techniques import awq
from burnish.tensors import links
from burnish.weight_format import module_of

DENSE = tuple(name for name in IN_FILES if "mix" not in name and "moe" not in name)


def written(name: str, folder: Path, **settings: object) -> Decoder:
    """A model whose other weights the file's format holds exactly, in integers and written."""
    model = decoder(name)
    for parameter in model.parameters():
        parameter.data = parameter.half().float()
    awq.apply(awq.Config.model_validate({"method": "rtn", "group": 32} | settings), model, Mesh())
    save_compressed(model, config_of(name), folder)
    return model


def same_as_theirs(model: Decoder, name: str, theirs: torch.nn.Module) -> bool:
    """Every matrix of theirs, once it has multiplied anything, beside what ours stands for."""
    theirs(torch.zeros(1, 2, dtype=torch.long))
    state, found = theirs.state_dict(), []
    for link in links(config_of(name)):
        if module := module_of(link):
            found.append(torch.equal(state[link.theirs[0]].float(), model.get_submodule(module).dequantized()))
    assert len(found) == 7 * config_of(name).layers
    return all(found)


@pytest.mark.parametrize("group", [32, -1])
@pytest.mark.parametrize("name", DENSE)
def test_transformers_has_our_symmetric_weights(name: str, group: int, tmp_path: Path) -> None:
    model = written(name, tmp_path / "m", group=group)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float16)
    assert same_as_theirs(model, name, theirs)


def test_transformers_runs_our_file_as_we_do(tmp_path: Path) -> None:
    model, own = written("llama", tmp_path / "m", dtype="float32"), samples("llama")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    with torch.no_grad():
        wanted = theirs(own.ids, attention_mask=own.mask.long()).logits[own.mask]
    assert (logits(model, own) - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_zero_points_need_dequantize_in_transformers(tmp_path: Path) -> None:
    """Its usual way packs no zero points of a model on the meta device, and then does not know those of the file."""
    model = written("llama", tmp_path / "m", symmetric=False)
    with pytest.raises((RuntimeError, ValueError)):
        AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float16)(torch.zeros(1, 2, dtype=torch.long))
    whole = CompressedTensorsConfig(dequantize=True)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float16, quantization_config=whole)
    assert same_as_theirs(model, "llama", theirs)


@pytest.mark.parametrize(
    "settings", [{}, {"symmetric": False, "dtype": "bfloat16"}, {"group": -1, "keep": ("up",)}], ids=str
)
@pytest.mark.parametrize("name", IN_FILES)
def test_we_open_what_we_wrote(name: str, settings: dict[str, object], tmp_path: Path) -> None:
    model, own = written(name, tmp_path / "m", **settings), samples(name)
    if settings.get("dtype"):  # the rest of the model is rounded by the file
        for parameter in model.parameters():
            parameter.data = parameter.bfloat16().float()
    back, config = load_folder(tmp_path / "m", dtype=torch.float32)
    assert config == config_of(name)
    one, two = model.state_dict(), back.state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert torch.equal(logits(model, own), logits(back, own))
    floats, _ = load_folder(tmp_path / "m", dtype=torch.float32, integers=False)
    assert not any(isinstance(module, Int4Linear) for module in floats.modules())
    assert torch.equal(logits(floats, own), logits(back, own))
    prompts = [[1, 2, 3], [4]]
    assert generate(back, prompts, Sampling(max_new_tokens=5)) == generate(floats, prompts, Sampling(max_new_tokens=5))


def test_inspect_counts_the_matrices_and_not_the_words(tmp_path: Path) -> None:
    written("qwen2", tmp_path / "m")
    found = inspect_model(open_folder(tmp_path / "m"))
    assert found["known"]
    assert found["compared"] == {"missing": [], "unexpected": [], "misshapen": {}}
    assert found["parameters"]["total"] == config_of("qwen2").parameters
    (row,) = (row for row in found["formats"] if row["format"] == "W4 g32")
    assert row["tensors"] == 14
    assert 4.5 < row["bits"] < 4.6  # and 16 bytes a matrix for its shape


def change_config(folder: Path, edit: object) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    edit(content["quantization_config"])
    file.write_text(json.dumps(content))


def weights(told: dict) -> dict:
    return told["config_groups"]["group_0"]["weights"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda told: told["config_groups"].clear(), "config_groups has no single group"),
        (
            lambda told: weights(told).update(num_bits=3),
            r"weights are int, 3, group, None in pack-quantized; 4 bits in gr",
        ),
        (lambda told: weights(told).update(actorder="group"), "weights are int, 4, group, group"),
        (
            lambda told: weights(told).update(group_size=16),
            r"weight_packed is int32 \(64, 12\), quantization_config says int32 \(64, 6\)",
        ),
        (lambda told: weights(told).update(symmetric=False), r"weight_zero_point is missing, though"),
        (
            lambda told: told["config_groups"]["group_0"].update(input_activations={"strategy": "group"}),
            "input_activations are",
        ),
    ],
)
def test_settings_that_are_not_read_are_named(edit: object, message: str, tmp_path: Path) -> None:
    written("llama", tmp_path / "m")
    change_config(tmp_path / "m", edit)
    with pytest.raises(UserError, match=message):
        load_folder(tmp_path / "m")


@pytest.mark.parametrize("ending", ["weight_packed", "weight_shape"])
def test_a_part_that_is_missing_is_named(ending: str, tmp_path: Path) -> None:
    written("llama", tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    del tensors[f"model.layers.1.mlp.up_proj.{ending}"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match=rf"model\.layers\.1\.mlp\.up_proj\.{ending} is missing"):
        load_folder(tmp_path / "m")


def test_a_shape_that_contradicts_the_integers_is_named(tmp_path: Path) -> None:
    written("llama", tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight_shape"][1] = 65
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"weight_shape of .* is \(96, 65\), its integers are of \(96, 64\)"):
        load_folder(tmp_path / "m")


def test_gpt2_has_no_such_file(tmp_path: Path) -> None:
    model = decoder("gpt2")
    awq.apply(awq.Config(method="rtn", group=32), model, Mesh())
    with pytest.raises(UserError, match=r"gpt2 keeps transformer\.h\.0\.attn\.c_attn\.weight turned or joined"):
        save_compressed(model, config_of("gpt2"), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_model_without_integers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no matrix of integers; compress it first"):
        save_compressed(decoder("llama"), config_of("llama"), tmp_path / "m")


@pytest.mark.sabotage
def test_a_scale_in_another_place_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_transformers_has_our_symmetric_weights("llama", 32, tmp_path / "one")
    right = Int4Linear._of_file

    def wrong(self: Int4Linear, own: object) -> dict[str, torch.Tensor]:
        found = right(self, own)
        return found | {"weight_scale": found["weight_scale"].flip(1)}

    monkeypatch.setattr(Int4Linear, "_of_file", wrong)
    with pytest.raises(AssertionError):
        test_transformers_has_our_symmetric_weights("llama", 32, tmp_path / "two")
