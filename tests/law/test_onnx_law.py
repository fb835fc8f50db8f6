"""The law for ONNX files: the initialisers, and the bytes of a file of weights beside the graph, are those predicted."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto

import onnx_models as own
from burnish.encoders.config import EncoderConfig
from burnish.export.onnx_decoder import decoder_graph
from burnish.export.onnx_encoder import encoder_graph
from burnish.export.onnx_file import data_file, writing
from burnish.export.onnx_matrix import array
from burnish.export.onnx_parts import vocabulary
from burnish.models.encoder import Encoder
from burnish.onnx_layout import Stored, beside_bytes, decoder_initialisers, encoder_initialisers, total_bytes
from burnish.weight_format import MATRICES, IntWeights

SCHEMES = {
    "float": None,
    "4 bits": IntWeights(4, 32, True, "float32"),
    "4 bits with zero points": IntWeights(4, 16, False, "float32"),
    "8 bits": IntWeights(8, -1, True, "float32", "tensor"),
    "8 bits a token": IntWeights(8, -1, True, "float32", "token"),
}
TYPES = {
    TensorProto.FLOAT: "float32",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "uint4",
}
schemes = pytest.mark.parametrize("scheme", SCHEMES)
forms = pytest.mark.parametrize("form", [own.PORTABLE, own.FUSED], ids=["portable", "fused"])


def found_in(path: Path) -> dict[str, Stored]:
    """What a file holds, read by onnx; and that each has as many bytes as its type and shape say."""
    found = {}
    for tensor in onnx.load(str(path), load_external_data=True).graph.initializer:
        found[tensor.name] = Stored(TYPES[tensor.data_type], tuple(tensor.dims))
        assert len(tensor.raw_data) == found[tensor.name].bytes, tensor.name
    return found


@schemes
@forms
@pytest.mark.parametrize(
    "changes",
    [{"family": "qwen3"}, {"family": "qwen2", "tied": False, "kv_heads": 1}, {"family": "gpt2", "kv_heads": 6}],
    ids=["qwen3", "qwen2", "gpt2"],
)
def test_a_decoders_file_holds_what_is_predicted(changes: dict, form: own.Form, scheme: str, tmp_path: Path) -> None:
    config, kind = own.config_of(**changes), SCHEMES[scheme]
    model = own.decoder(config)
    small = model if kind is None else own.compressed(model, kind)
    kinds = {f"layers.{i}.{name}": kind for i in range(config.layers) for name in MATRICES}
    predicted = decoder_initialisers(config, kinds, form.fused)
    path = own.file_of(small, form, tmp_path)
    assert found_in(path) == predicted
    graph = path.stat().st_size - total_bytes(predicted)
    assert 0 < graph < 80_000  # operators, names and small constants


def test_the_vocabularys_integers_are_predicted(tmp_path: Path) -> None:
    for tied in (True, False):
        config = own.config_of(tied=tied)
        model = own.decoder(config)
        words = vocabulary(array(model.head.weight), "int8")
        assert words is not None
        kinds = {"embed" if tied else "head": words.kind}
        path = own.file_of(model, own.FUSED, tmp_path, words)
        assert found_in(path) == decoder_initialisers(config, kinds, True)


@schemes
def test_an_encoders_file_holds_what_is_predicted(scheme: str, tmp_path: Path) -> None:
    config, kind = EncoderConfig(vocab=101, hidden=96, ffn=160, layers=2, heads=6, table=64), SCHEMES[scheme]
    model = own.random_model(Encoder(config, torch.Generator().manual_seed(0)))
    small = model if kind is None else own.compressed(model, kind)
    kinds = {f"layers.{i}.{name}": kind for i in range(config.layers) for name in MATRICES}
    path = own.written(encoder_graph(small, own.PORTABLE), tmp_path)
    assert found_in(path) == encoder_initialisers(config, kinds, False)


@schemes
def test_bytes_of_a_file_of_weights_beside_the_graph(scheme: str, tmp_path: Path) -> None:
    config, kind = own.config_of(vocab=331), SCHEMES[scheme]
    model = own.decoder(config)
    small = model if kind is None else own.compressed(model, kind)
    kinds = {f"layers.{i}.{name}": kind for i in range(config.layers) for name in MATRICES}
    with writing(decoder_graph(small, own.FUSED), tmp_path / "m.onnx", inside=0):
        pass
    predicted = decoder_initialisers(config, kinds, True)
    assert data_file(tmp_path / "m.onnx").stat().st_size == beside_bytes(predicted)
    assert found_in(tmp_path / "m.onnx") == predicted


@pytest.mark.sabotage
def test_forgotten_zero_points_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ({"family": "qwen3"}, own.FUSED, "4 bits with zero points", tmp_path)
    test_a_decoders_file_holds_what_is_predicted(*given)
    from burnish import onnx_layout

    right = onnx_layout.matrix
    monkeypatch.setattr(
        onnx_layout,
        "matrix",
        lambda *given: {name: s for name, s in right(*given).items() if not name.endswith("zero_point")},
    )
    with pytest.raises(AssertionError):
        test_a_decoders_file_holds_what_is_predicted(*given)
