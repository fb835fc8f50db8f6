"""Model folders: what is written, ties, sharing, whole-or-nothing writing, and building without a copy."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors import safe_open

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.export import folder as folder_module
from burnish.export import safetensors as files
from burnish.export.safetensors import save_folder
from burnish.layout import SINGLE
from burnish.load.model import load_folder, materialise
from burnish.models.decoder import Decoder

TIED = ModelConfig(vocab=37, hidden=24, ffn=40, layers=2, heads=3, kv_heads=1, max_positions=32, bos=0, eos=0)
UNTIED = TIED.model_copy(update={"tied": False})


def make(config: ModelConfig = TIED, seed: int = 0) -> Decoder:
    return Decoder(config, torch.Generator().manual_seed(seed))


def content(path) -> tuple[set[str], dict[str, str]]:
    with safe_open(path, framework="pt") as opened:
        return set(opened.keys()), opened.metadata()


def equal(one: Decoder, two: Decoder) -> bool:
    theirs = two.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())


def test_flt_003_a_declared_tie_is_left_out_and_recorded(tmp_path):
    save_folder(make(), TIED, tmp_path / "m")
    names, metadata = content(tmp_path / "m" / SINGLE)
    assert "lm_head.weight" not in names
    assert metadata["tied"] == "lm_head.weight=model.embed_tokens.weight"
    assert json.loads((tmp_path / "m" / "config.json").read_text())["tie_word_embeddings"] is True


def test_flt_003_a_tie_can_be_written_in_full(tmp_path):
    save_folder(make(), TIED, tmp_path / "m", write_tied=True)
    names, metadata = content(tmp_path / "m" / SINGLE)
    assert "lm_head.weight" in names
    assert metadata["tied_written"] == "true"
    loaded, _ = load_folder(tmp_path / "m")
    assert loaded.head.weight is loaded.embed.weight
    assert equal(loaded, make())


def test_an_untied_head_is_written(tmp_path):
    save_folder(make(UNTIED), UNTIED, tmp_path / "m")
    names, metadata = content(tmp_path / "m" / SINGLE)
    assert "lm_head.weight" in names
    assert metadata["tied"] == "none"
    assert equal(load_folder(tmp_path / "m")[0], make(UNTIED))


def test_flt_002_accidental_sharing_is_refused_and_both_are_named(tmp_path):
    model = make()
    model.layers[1].mlp.up.weight = model.layers[0].mlp.gate.weight
    with pytest.raises(UserError, match=r"layers\.0\.mlp\.gate\.weight and layers\.1\.mlp\.up\.weight share memory"):
        save_folder(model, TIED, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_flt_002_a_tie_the_config_does_not_declare_is_refused(tmp_path):
    model = make(UNTIED)
    model.head.weight = model.embed.weight
    with pytest.raises(UserError, match=r"embed\.weight and head\.weight share memory"):
        save_folder(model, UNTIED, tmp_path / "m")


def test_flt_002_views_of_one_buffer_are_written_in_full(tmp_path):
    """Flat buffers, as sharded training keeps them: neighbours share storage but no byte."""
    model = make()
    parameters = list(model.named_parameters())
    flat, start = torch.cat([p.detach().flatten() for _, p in parameters]), 0
    for _, parameter in parameters:
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    save_folder(model, TIED, tmp_path / "m")
    assert equal(load_folder(tmp_path / "m")[0], make())
    model.norm.weight.data = flat[start - 30 : start - 6]  # now half of it lies in another tensor
    with pytest.raises(UserError, match=r"share memory"):
        save_folder(model, TIED, tmp_path / "m")


def test_a_tied_head_that_drifted_is_refused(tmp_path):
    model = make()
    model.head.weight = torch.nn.Parameter(model.embed.weight.detach() + 1)
    with pytest.raises(UserError, match=r"head\.weight and embed\.weight differ"):
        save_folder(model, TIED, tmp_path / "m")


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_flt_016_a_model_built_on_the_meta_device_keeps_its_tie(config):
    with torch.device("meta"):
        model = Decoder(config)
    source = make(config)
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    if config.tied:
        del state["head.weight"]
    materialise(model, state)
    assert (model.head.weight is model.embed.weight) == config.tied
    assert model.embed.weight.data_ptr() == state["embed.weight"].data_ptr()  # taken, not copied
    assert len(list(model.parameters())) == len(list(source.parameters()))
    model.logits(model(torch.tensor([[1, 2, 3], [4, 5, 6]]))).square().sum().backward()
    source.logits(source(torch.tensor([[1, 2, 3], [4, 5, 6]]))).square().sum().backward()
    assert torch.equal(model.embed.weight.grad, source.embed.weight.grad)  # the tie holds for gradients too


@pytest.mark.sabotage
def test_flt_016_a_plain_assignment_unties():
    with torch.device("meta"):
        model = Decoder(TIED)
    model.load_state_dict(make().state_dict(), assign=True)
    assert model.head.weight is not model.embed.weight  # what materialise has to mend


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("norm.weight"), "norm.weight is missing"),
        (lambda s: s.update(extra=torch.ones(1)), "extra is unknown"),
        (lambda s: s.update({"norm.weight": torch.ones(23)}), r"norm.weight has shape \(23,\)"),
    ],
)
def test_materialise_names_the_key(change, message):
    state = dict(make().state_dict())
    change(state)
    with torch.device("meta"):
        model = Decoder(TIED)
    with pytest.raises(UserError, match=message):
        materialise(model, state)


def test_a_model_without_values_is_not_saved(tmp_path):
    with torch.device("meta"):
        model = Decoder(TIED)
    with pytest.raises(UserError, match="meta device"):
        save_folder(model, TIED, tmp_path / "m")


def test_a_model_of_another_config_is_not_saved(tmp_path):
    with pytest.raises(UserError, match=r"layers\.2\.attention\.k\.weight is missing"):
        save_folder(make(), TIED.model_copy(update={"layers": 3}), tmp_path / "m")
    with pytest.raises(UserError, match=r"embed\.weight has shape \(37, 24\), the config \(38, 24\)"):
        save_folder(make(), TIED.model_copy(update={"vocab": 38}), tmp_path / "m")


def test_an_export_replaces_an_earlier_one_whole(tmp_path):
    save_folder(make(), TIED, tmp_path / "m", shard_bytes=5000)
    assert len(list((tmp_path / "m").glob("model-*.safetensors"))) > 2
    save_folder(make(seed=1), TIED, tmp_path / "m")
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["config.json", "generation_config.json", SINGLE]
    assert equal(load_folder(tmp_path / "m")[0], make(seed=1))
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("stage", ["weights", "swap"])
def test_a_failure_leaves_what_was_there(earlier, stage, tmp_path, monkeypatch):
    if earlier:
        save_folder(make(), TIED, tmp_path / "m")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if stage == "weights":
            patch.setattr(files, "save_file", full)
        else:
            patch.setattr(folder_module, "_flush", full)
        with pytest.raises(UserError, match="No space left"):
            save_folder(make(seed=1), TIED, tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == (["m"] if earlier else [])
    if earlier:
        assert equal(load_folder(tmp_path / "m")[0], make())


def test_a_kill_in_the_middle_leaves_what_was_there(tmp_path):
    """The child dies with half of the new files written; then the next save cleans up after it."""
    save_folder(make(), TIED, tmp_path / "m")
    other = make(seed=1)
    child = os.fork()
    if child == 0:
        files.save_file = lambda *_, **__: os._exit(9)
        save_folder(other, TIED, tmp_path / "m")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert equal(load_folder(tmp_path / "m")[0], make())
    save_folder(make(seed=1), TIED, tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_kill_between_the_two_renames_is_mended(tmp_path, monkeypatch):
    save_folder(make(), TIED, tmp_path / "m")
    os.replace(tmp_path / "m", tmp_path / ".m.replaced")

    def fail(*_, **__):
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(files, "save_file", fail)
        with pytest.raises(RuntimeError):
            save_folder(make(seed=1), TIED, tmp_path / "m")
    assert equal(load_folder(tmp_path / "m")[0], make())


def test_a_loaded_model_does_not_hang_on_its_file(tmp_path):
    save_folder(make(), TIED, tmp_path / "m")
    loaded, _ = load_folder(tmp_path / "m")
    with open(tmp_path / "m" / SINGLE, "r+b") as file:
        file.truncate(8)
    assert equal(loaded, make())
    assert len({p.untyped_storage().data_ptr() for p in loaded.parameters()}) == len(list(loaded.parameters()))


def test_files_of_several_dtypes_load_in_the_widest(tmp_path):
    save_folder(make().bfloat16(), TIED, tmp_path / "m", dtype="bfloat16")
    with safe_open(tmp_path / "m" / SINGLE, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
    files.save_file(tensors, tmp_path / "m" / SINGLE)
    loaded, _ = load_folder(tmp_path / "m")
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}


def test_weights_are_as_readable_as_the_config(tmp_path) -> None:
    config = ModelConfig(vocab=50, hidden=8, ffn=8, layers=1, heads=2)
    save_folder(Decoder(config), config, tmp_path / "m")
    modes = {file.stat().st_mode for file in (tmp_path / "m").iterdir()}
    assert len(modes) == 1


def test_equal_weights_are_equal_files(tmp_path):
    config = ModelConfig(vocab=50, hidden=8, ffn=8, layers=1, heads=2)
    model = Decoder(config)
    written = set()
    for number in range(12):  # the library's own order of two metadata keys is random
        save_folder(model, config, tmp_path / str(number), write_tied=True)
        written.add((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert len(written) == 1
