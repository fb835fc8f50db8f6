"""Encoder folders to transformers and back, bit for bit."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from encoder_pair import BASE, CLASSES, SHAPES, pair
from safetensors.torch import load_file, save_file

from burnish.encoders.config import EncoderConfig
from burnish.encoders.tensors import encoder_shapes
from burnish.errors import UserError
from burnish.export.encoder import encoder_for_file, save_encoder
from burnish.load.encoder import load_encoder
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from burnish.models.encoder import Encoder
from burnish.tables.encoders import ENCODERS

shapes = pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())


def loaded(folder) -> tuple[Encoder, EncoderConfig]:
    return load_encoder(open_folder(folder))


@shapes
@pytest.mark.parametrize("shard_bytes", [2**30, 20_000])
def test_ours_load_in_transformers(config, shard_bytes, tmp_path):
    ours, _ = pair(config)
    save_encoder(ours, config, tmp_path / "m", shard_bytes=shard_bytes)
    kind = getattr(transformers, ENCODERS[config.family].heads[config.head].architecture)
    extra = {} if config.head != "none" else {"add_pooling_layer": config.pooler}
    theirs, info = kind.from_pretrained(tmp_path / "m", output_loading_info=True, **extra)
    assert not any(info.values()), info  # missing, unexpected, mismatched keys, errors
    wanted = theirs.state_dict()
    assert {name for name in wanted if "position_ids" not in name} == encoder_for_file(ours, config).keys()
    for name, tensor in encoder_for_file(ours, config).items():
        assert torch.equal(tensor, wanted[name]), name
    if config.labels:
        assert tuple(theirs.config.id2label.values()) == config.labels
        assert theirs.config.num_labels == len(config.labels)


@shapes
def test_theirs_load_in_ours(config, tmp_path):
    ours, theirs = pair(config)
    theirs.save_pretrained(tmp_path)
    again, read = loaded(tmp_path)
    assert read == config
    for (name, found), wanted in zip(again.state_dict().items(), ours.state_dict().values(), strict=True):
        assert torch.equal(found, wanted), name


@shapes
def test_ours_come_back(config, tmp_path):
    ours, _ = pair(config)
    save_encoder(ours, config, tmp_path / "m")
    again, read = loaded(tmp_path / "m")
    assert read == config
    assert all(torch.equal(p, dict(again.named_parameters())[name]) for name, p in ours.named_parameters())


@shapes
def test_the_config_counts_the_tensors(config):
    ours = Encoder(config)
    assert config.parameters == sum(p.numel() for p in ours.parameters())
    assert encoder_shapes(config) == {name: tuple(t.shape) for name, t in ours.state_dict().items()}


def test_sixteen_bit_files_hold_the_rounded_weights(tmp_path):
    ours, _ = pair(BASE)
    save_encoder(ours, BASE, tmp_path / "m", dtype="bfloat16")
    again, _ = loaded(tmp_path / "m")
    assert again.embed.weight.dtype == torch.bfloat16
    assert torch.equal(again.layers[1].mlp.up.weight, ours.layers[1].mlp.up.weight.bfloat16())


def rewritten(folder, change) -> None:
    """The tensors of a folder under other names."""
    tensors = load_file(folder / "model.safetensors")
    save_file({change(name): t for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def settings(folder, **changes) -> None:
    content = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(content))


def test_a_body_is_read_out_of_a_model_for_pre_training(tmp_path):
    torch.manual_seed(0)
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**BASE.to_hf()))
    theirs.save_pretrained(tmp_path)
    rewritten(
        tmp_path, lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma")
    )  # as the first ones were saved
    ours, read = loaded(tmp_path)
    assert (read.head, read.pooler) == ("none", False)
    assert torch.equal(ours.layers[2].mlp.down.weight, theirs.bert.encoder.layer[2].output.dense.weight)


def test_derived_positions_are_left_out(tmp_path):
    ours, _ = pair(BASE)
    save_encoder(ours, BASE, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    tensors["embeddings.position_ids"] = torch.arange(BASE.table)[None]
    save_file(tensors, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    again, _ = loaded(tmp_path / "m")
    assert torch.equal(again.positions.weight, ours.positions.weight)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True; this encoder supports False"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is not known; known: gelu, gelu_new"),
        ({"model_type": "deberta"}, "model_type 'deberta' is no encoder known here; known: bert, roberta"),
        ({"architectures": ["BertForQuestionAnswering"]}, "architectures .* is not supported; known: BertForMaskedLM"),
        ({"num_attention_heads": 7}, "num_attention_heads 7 does not divide hidden 48; 6 does"),
        ({"hidden_size": None}, "missing hidden_size"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide': Input should be a valid integer"),
        ({"problem_type": "regression"}, "problem_type is 'regression'"),
        ({"id2label": {"0": "no", "2": "yes"}}, "id2label is"),
        ({"id2label": {"0": "no", "1": "no", "2": "yes"}}, "labels"),
        ({"num_hidden_layers": 4}, "encoder.layer.3.attention.self.query.weight is missing"),
        ({"vocab_size": 100}, r"word_embeddings.weight has shape \(101, 48\), config.json says \(100, 48\)"),
        ({"num_hidden_layers": 2}, "unexpected bert.encoder.layer.2.attention.output.LayerNorm.bias"),
    ],
)
def test_what_is_not_ours_is_refused_by_name(change, said, tmp_path):
    config = SHAPES["classes"]
    save_encoder(pair(config)[0], config, tmp_path / "m")
    settings(tmp_path / "m", **change)
    with pytest.raises(UserError, match=said) as error:
        loaded(tmp_path / "m")
    assert str(tmp_path / "m") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_decoder_is_not_made_of_an_encoder(tmp_path):
    save_encoder(pair(BASE)[0], BASE, tmp_path / "m")
    with pytest.raises(UserError, match="model_type 'bert' is an encoder; a decoder is needed here"):
        load_model(open_folder(tmp_path / "m"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head": "sequence"}, "labels"),
        ({"labels": CLASSES}, "labels"),
        ({"head": "tokens", "labels": CLASSES}, "pooler"),
        ({"head": "sequence", "labels": CLASSES, "pooler": False}, "pooler"),
        ({"family": "roberta", "table": 8, "pad": 7}, "counted from row 8"),
        ({"pad": 101}, "outside the vocabulary"),
        ({"family": "albert"}, "family 'albert'"),
    ],
)
def test_configs_that_contradict_themselves_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        EncoderConfig(**BASE.model_dump() | change)


@pytest.mark.parametrize(
    ("change", "said"), [({"layers": 4}, "layers.3.attention.k.bias is missing"), ({"ffn": 79}, "has shape")]
)
def test_a_model_of_another_config_is_not_written(change, said, tmp_path):
    with pytest.raises(UserError, match=said):
        save_encoder(pair(BASE)[0], BASE.model_copy(update=change), tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.sabotage
def test_swapped_names_are_noticed(tmp_path):
    ours, _ = pair(BASE)
    save_encoder(ours, BASE, tmp_path / "m")
    swap = {"self.query": "self.key", "self.key": "self.query"}
    rewritten(tmp_path / "m", lambda name: next((name.replace(a, b) for a, b in swap.items() if a in name), name))
    again, _ = loaded(tmp_path / "m")
    assert not torch.equal(again.layers[0].attention.q.weight, ours.layers[0].attention.q.weight)
