"""ONNX files: whole or not at all, weights beside them, choices refused, what TensorRT wants, faults by their numbers."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import onnx_models as own
from burnish import finished
from burnish.encoders.config import EncoderConfig
from burnish.errors import BurnishError, MissingExtra, UserError
from burnish.export import onnx_check, onnx_convert
from burnish.export.onnx_choices import Choices
from burnish.export.onnx_convert import convert_onnx, export_onnx
from burnish.export.onnx_decoder import decoder_graph
from burnish.export.onnx_file import writing
from burnish.export.onnx_graph import FLOAT, Graph
from burnish.export.onnx_linear import Form, linear
from burnish.export.onnx_matrix import matrix_of, nibbles, packed
from burnish.export.onnx_session import OnnxDecoder, opened
from burnish.export.onnx_tensorrt import calibration_cache, read_cache, side_files
from burnish.export.safetensors import save_folder
from burnish.load.folder import open_folder
from burnish.models.decoder import Decoder
from burnish.models.encoder import Encoder
from burnish.models.layers import Linear
from burnish.weight_format import IntWeights

SMALL = own.config_of(layers=1, ffn=96)
STATIC = IntWeights(8, -1, True, "float32", "tensor")


@pytest.fixture(scope="module")
def model() -> Decoder:
    return own.decoder(SMALL)


@pytest.fixture(scope="module")
def folder(model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "m"
    save_folder(model, SMALL, place)
    return place


@given(st.lists(st.integers(0, 15), min_size=1, max_size=33))
def test_two_integers_a_byte_and_back(values: list[int]) -> None:
    array = np.array(values, dtype=np.uint8)
    assert nibbles(packed(array))[: len(values)].tolist() == values
    assert packed(array)[0] & 15 == values[0]


@pytest.mark.parametrize(
    "scheme", [STATIC, IntWeights(8, -1, True, "float32", "token"), IntWeights(4, 16, False, "float32")]
)
@pytest.mark.parametrize("form", [own.PORTABLE, own.FUSED, own.FLAT], ids=["portable", "fused", "flat"])
def test_one_product_is_the_modules(scheme: IntWeights, form: Form, tmp_path: Path) -> None:
    """Of the same inputs, to the last digits; integers beyond the largest input are clipped alike."""
    holder = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Linear(48, 33, bias=True)])})
    draw = torch.Generator().manual_seed(0)
    for parameter in holder.parameters():
        torch.nn.init.normal_(parameter, 0, 1, generator=draw)
    module = own.compressed(holder, scheme, largest=2.0)["layers"][0]
    shape = (3, 5, 48) if form == own.FUSED else (15, 48)
    x = torch.randn(shape, generator=draw)
    graph = Graph("one", 21)
    graph.input("x", FLOAT, shape)
    graph.input("input_ids", "int64", shape[:-1])
    graph.output(linear(graph, form, "one", matrix_of("one", module), "x"), "y", FLOAT, (*shape[:-1], 33))
    session = opened(own.written(graph, tmp_path))
    found = session.run(None, {"x": x.numpy(), "input_ids": np.zeros(shape[:-1], np.int64)})[0]
    assert np.abs(found - module(x).detach().numpy()).max() <= 3e-5


def test_flt_069_outputs_of_nearly_no_weight_keep_their_bias(tmp_path: Path) -> None:
    """Their scale is all but zero, and a bias rounded in steps of it would be beyond any integer; ours stays float."""
    holder = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Linear(32, 3, bias=True)])})
    draw = torch.Generator().manual_seed(0)
    for parameter in holder.parameters():
        torch.nn.init.normal_(parameter, 0, 1, generator=draw)
    linear_layer = holder["layers"][0]
    with torch.no_grad():
        linear_layer.weight[1] *= 1e-30
        linear_layer.weight[2] = 0
    module = own.compressed(holder, STATIC, largest=3.0)["layers"][0]
    x = torch.randn(7, 32, generator=draw)
    for form in (own.PORTABLE, own.FLAT):
        graph = Graph("one")
        graph.input("x", FLOAT, tuple(x.shape))
        graph.output(linear(graph, form, "one", matrix_of("one", module), "x"), "y", FLOAT, (7, 3))
        found = opened(own.written(graph, tmp_path)).run(None, {"x": x.numpy()})[0]
        with torch.no_grad():
            assert np.abs(found - module(x).numpy()).max() <= 1e-5
            assert np.abs(found[:, 1:] - linear_layer.bias[1:].numpy()).max() <= 1e-6


def test_a_failed_comparison_leaves_nothing(model: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = export_onnx(model, tmp_path / "m.onnx", Choices())
    assert before["scores"].endswith("allowed 0.0001 of these")
    kept = (tmp_path / "m.onnx").read_bytes()
    monkeypatch.setattr(onnx_convert, "FLOATS", 0.0)
    with pytest.raises(BurnishError, match=r"m.onnx: not written: onnxruntime's scores differ from the model's by"):
        export_onnx(model, tmp_path / "m.onnx", Choices())
    assert (tmp_path / "m.onnx").read_bytes() == kept
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.sabotage
def test_a_comparison_that_is_left_out_is_noticed(
    model: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_check.Agreement, "within", lambda agreed, allowed: True)
    with pytest.raises(pytest.fail.Exception):
        test_a_failed_comparison_leaves_nothing(model, tmp_path, monkeypatch)


def test_a_kill_in_the_middle_leaves_the_old_file(model: Decoder, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), writing(decoder_graph(model, own.PORTABLE), path):
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_large_weights_lie_beside_the_file_and_go_with_it(model: Decoder, tmp_path: Path) -> None:
    graph, path = decoder_graph(model, own.PORTABLE), tmp_path / "m.onnx"
    with writing(graph, path, inside=0):
        pass
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert path.stat().st_size < 60_000
    large = OnnxDecoder.of(path).read(np.array([[1, 2, 3]]))
    with writing(graph, path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert np.array_equal(OnnxDecoder.of(path).read(np.array([[1, 2, 3]])), large)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"format": "onxruntime"}, "--format onxruntime: did you mean 'onnxruntime'"),
        ({"head": "int5"}, "--head int5: did you mean"),
        ({"accuracy_level": 2}, "--accuracy-level 2: 1 keeps inputs in float32, 4 rounds them to 8 bits"),
        ({"head": "int8"}, "--head and --accuracy-level: only --format onnxruntime has these"),
    ],
)
def test_choices_that_are_none_are_refused(choices: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Choices(**choices).check()


def test_words_of_the_command_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="are options of --format onnx and onnxruntime"):
        finished.onnx_choices(tmp_path / "m", None, ("int8", 1, False))
    assert finished.onnx_choices(tmp_path / "m", None, ("float32", 1, False)) is None
    made = finished.onnx_choices(tmp_path / "m.ONNX", None, ("float32", 1, True))
    assert made == Choices("onnx", force=True)
    with pytest.raises(UserError, match=r"say where the file goes with --to FILE.onnx or --to FOLDER"):
        finished.export(folder, None, None, made)
    with pytest.raises(UserError, match="--dtype bfloat16: an ONNX file has float32"):
        finished.export(folder, tmp_path / "m.onnx", "bfloat16", made)


def test_a_folder_has_what_goes_with_the_file(folder: Path, tmp_path: Path) -> None:
    found = convert_onnx(open_folder(folder), tmp_path / "f", Choices("onnxruntime", "int8", 4))
    assert sorted(file.name for file in (tmp_path / "f").iterdir()) == ["config.json", "model.onnx"]
    assert found["matrices"] == "8 float32, vocabulary W8 g32"
    assert found["scores, 8-bit inputs"].endswith("of likeliest tokens the same")
    (tmp_path / "f" / "mine.txt").write_text("")
    with pytest.raises(UserError, match=r"holds 'mine.txt', which is no part of a model"):
        convert_onnx(open_folder(folder), tmp_path / "f", Choices())


def test_a_missing_extra_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    find = onnx_convert.need_onnx.__globals__["importlib"].util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxruntime" else find(name))
    with pytest.raises(MissingExtra, match=r"needs onnxruntime, which is not installed; .*burnish\[export\]"):
        convert_onnx(open_folder(folder), tmp_path / "m.onnx", Choices())


@pytest.mark.parametrize("ratio", [0.8, 1.3])
def test_products_that_are_slower_here_stay_float(
    ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = own.compressed(own.decoder(SMALL), STATIC)
    monkeypatch.setattr(onnx_convert, "times_faster", lambda one, other: ratio)
    found = export_onnx(small, tmp_path / "m.onnx", Choices("onnxruntime"))
    stays = ", so float32 was written; --force keeps them" if ratio < 1 else ""
    assert found["8-bit products"] == f"{ratio:.2f}x the speed of float32 here{stays}"
    assert ("W8A8" in found["matrices"]) == (ratio > 1)
    forced = export_onnx(small, tmp_path / "m.onnx", Choices("onnxruntime", force=True))
    assert "W8A8" in forced["matrices"]
    assert "8-bit products" not in forced


def test_what_tensorrt_wants_stands_beside_the_file(tmp_path: Path) -> None:
    small = own.compressed(own.decoder(SMALL), STATIC)
    found = export_onnx(small, tmp_path / "m.onnx", Choices())
    names = ["m.calibration.cache", "m.onnx", "m.trtexec.sh"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    line = found["trtexec.sh"]
    assert line.startswith("trtexec --onnx=m.onnx --saveEngine=m.engine --stronglyTyped --minShapes=input_ids:1x1,")
    assert "past_key_values.0.key:32x2x512x16" in line.split("--maxShapes=")[1]
    scales = read_cache((tmp_path / "m.calibration.cache").read_text(), "m")
    graph = onnx.load(str(tmp_path / "m.onnx")).graph
    quantized = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    assert scales.keys() == quantized
    assert set(scales.values()) == {float(np.float32(6 / 127))}
    points = [node.input[2] for node in graph.node if node.op_type == "QuantizeLinear"]
    held = {
        node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t)
        for node in graph.node
        if node.op_type == "Constant"
    }
    assert {(held[name].dtype.name, int(held[name])) for name in points} == {("int8", 0)}
    assert side_files(decoder_graph(own.decoder(SMALL), own.PORTABLE), "m.onnx") == {}


def test_the_published_line_of_a_calibration_cache() -> None:
    """Largest magnitude 4.5 is written 3d112245 by the tools of the TensorRT family."""
    text = calibration_cache({"conv": 4.5 / 127, "b: c": 1.0}, version="8601")
    assert text == "TRT-8601-EntropyCalibration2\nconv: 3d112245\nb: c: 3f800000\n"
    assert read_cache(text, "f") == {"conv": struct.unpack(">f", bytes.fromhex("3d112245"))[0], "b: c": 1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1 is ''"),
        ("TRT-8601-MinMax\na 3d", "line 2 is 'a 3d'; a line is NAME: the 32 bits"),
        ("1\na: 3g", "line 2"),
        ("TRT-1-x\na: 3d112245\nb: 1234567890", "line 3"),
    ],
)
def test_a_damaged_cache_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_cache(text, "f")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cache_has_positive_finite_scales(scale: float) -> None:
    with pytest.raises(UserError, match="a calibration cache holds positive, finite scales"):
        calibration_cache({"a": scale})


def test_flt_009_four_bits_stay_four_bits(tmp_path: Path) -> None:
    """A packed model is no larger as ONNX: a quarter of a 16-bit file, an eighth of float32, and scales."""
    config = own.config_of(vocab=16, layers=3)
    small = own.compressed(own.decoder(config), IntWeights(4, 32, True, "float32"))
    matrices = sum(module.weight_packed.numel() * 8 for module in small.modules() if hasattr(module, "weight_packed"))
    for form in (own.PORTABLE, own.FUSED):
        size = own.file_of(small, form, tmp_path).stat().st_size
        assert size < matrices * (0.5 + 4 / 32) + 90_000 < matrices * 4 / 2
    assert export_onnx(small, tmp_path / "s.onnx", Choices())["matrices"] == "21 W4 g32, 1 float32"


def test_a_layer_of_no_known_kind_is_refused() -> None:
    odd = SimpleNamespace(weight=torch.zeros(2, 2))
    with pytest.raises(UserError, match=r"layers.0: a SimpleNamespace has no form in ONNX"):
        matrix_of("layers.0", odd)  # type: ignore[arg-type]


def test_blocks_that_onnxruntime_does_not_have_are_refused(model: Decoder) -> None:
    small = own.compressed(model, IntWeights(4, 48, True, "float32"))
    with pytest.raises(UserError, match="groups of 48 inputs: onnxruntime has 16, 32, 64, 128, 256"):
        decoder_graph(small, own.FUSED)


def test_an_encoder_has_no_vocabulary_to_score(tmp_path: Path) -> None:
    config = EncoderConfig(vocab=31, hidden=32, ffn=48, layers=1, heads=2, table=32)
    encoder = own.random_model(Encoder(config, torch.Generator().manual_seed(0)))
    with pytest.raises(UserError, match="--head int8: an encoder scores no vocabulary"):
        export_onnx(encoder, tmp_path / "m.onnx", Choices("onnxruntime", "int8"))
    export_onnx(encoder, tmp_path / "m.onnx", Choices("onnxruntime"))
    with pytest.raises(UserError, match="has no past_key_values, so it is no decoder with a cache"):
        OnnxDecoder.of(tmp_path / "m.onnx")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x0anot a model")
    with pytest.raises(UserError, match=r"bad.onnx: onnxruntime .* does not load it"):
        OnnxDecoder.of(tmp_path / "bad.onnx")
