"""ONNX files of networks that are not ours beside torch, in float and in 8 bits, trained on blobs."""

import functools
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from blobs import blobs, dice_of, learn
from burnish.errors import UserError
from burnish.vision import onnx_fold, onnx_network, onnx_qdq
from burnish.vision.networks import build
from burnish.vision.onnx_fold import folded
from burnish.vision.onnx_int8 import Settings, quantize
from burnish.vision.onnx_network import export
from burnish.vision.onnx_providers import ON_CPU, has_integer_products, opened_on, providers
from burnish.vision.onnx_qdq import Form, weight_scales
from burnish.vision.onnx_race import Race
from burnish.vision.sections import Network
from offered_networks import OFFERED, network, sides

SETTINGS = {"in_channels": 1, "out_channels": 3, "channels": (8, 16, 32)}


@functools.cache
def trained() -> nn.Module:
    """A U-Net that knows blobs."""
    torch.manual_seed(0)
    model = build(Network.model_validate(SETTINGS))
    learn(model, 60)
    return model


@pytest.fixture(scope="module")
def float_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    export(trained(), (1, 1, 32, 32), path)
    return path


def samples(count: int = 4) -> list[np.ndarray]:
    return [blobs(8, seed=50 + one)[0].numpy() for one in range(count)]


def judge(path: Path) -> float:
    images, labels = blobs(24, seed=7)
    return dice_of(torch.from_numpy(opened_on(path, 1, ON_CPU).run(None, {"images": images.numpy()})[0]), labels)


@pytest.mark.parametrize("name", OFFERED)
def test_scores_are_torchs_at_batches_and_sizes_that_were_not_traced(name, tmp_path):
    model = network(name)
    made = export(model, (1, 1, *sides(name)), tmp_path / "net.onnx")
    assert made.exporter == "run"
    assert made.difference <= 1e-4
    session = opened_on(tmp_path / "net.onnx", 1, ON_CPU)
    images = torch.randn(5, 1, *(64, 48, 16)[: len(sides(name))])
    with torch.no_grad():
        wanted = model(images).numpy()
    assert np.abs(session.run(None, {"images": images.numpy()})[0] - wanted).max() <= 1e-4 * max(
        1, np.abs(wanted).max()
    )
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


def test_trained_weights_too(float_file):
    images, labels = blobs(3, 48, seed=3)
    with torch.no_grad():
        wanted = trained()(images)
    found = opened_on(float_file, 1, ON_CPU).run(None, {"images": images.numpy()})[0]
    assert np.abs(found - wanted.numpy()).max() <= 1e-4 * float(wanted.abs().max())
    assert dice_of(wanted, labels) > 0.6


class Baked(nn.Module):
    """Its number of images is a number of Python, which an exporter that follows a run cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        windows = x.view(int(x.shape[0]) * 2, 2, x.shape[2], x.shape[3]) * 2
        return windows.reshape(int(x.shape[0]), 4, x.shape[2], x.shape[3])


def test_flt_006_and_008_a_batch_that_is_baked_in_is_no_file_of_any_batch(tmp_path, monkeypatch):
    """An exporter whose file fails at another batch is passed over; with no other there is no file."""
    right = onnx_network._write

    def fixed(model, images, path, **settings):
        right(model, images, path, dynamo=False)  # nothing is said to be free

    monkeypatch.setattr(onnx_network, "_write", fixed)
    with pytest.raises(UserError, match=r"no exporter writes Baked as ONNX \(run: scores differ by inf"):
        export(Baked(), (1, 1, 8, 8), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_flt_008_the_other_exporter_follows_what_the_first_cannot(tmp_path):
    made = export(Baked(), (1, 1, 8, 8), tmp_path / "net.onnx")
    found = opened_on(tmp_path / "net.onnx", 1, ON_CPU).run(None, {"images": np.zeros((5, 1, 8, 8), np.float32)})[0]
    assert found.shape == (5, 4, 8, 8)
    assert made.difference <= 1e-4


def test_a_norm_folds_into_the_convolution_before_it(float_file):
    before = onnx.load(str(float_file))
    after = folded(before)
    kinds = [[node.op_type for node in one.graph.node] for one in (before, after)]
    assert "BatchNormalization" in kinds[0]
    assert "BatchNormalization" not in kinds[1]
    images = {"images": samples(1)[0]}
    one, two = (opened_on(m.SerializeToString(), 1, ON_CPU).run(None, images)[0] for m in (before, after))
    assert np.abs(one - two).max() < 1e-4 * np.abs(one).max()


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile", "mse"])
def test_8_bits_keep_the_dice_and_a_third_of_the_bytes(method, float_file, tmp_path):
    """FLT-070: every method has seen every value that becomes integers."""
    made = quantize(float_file, tmp_path / "int8.onnx", samples(), Settings(method=method, max_drop=0.01), judge)
    assert made.float_score - made.score <= 0.01
    assert made.path == tmp_path / "int8.onnx"
    assert made.chosen == (made.path if made.race.ratio >= 1 else float_file)
    ops = {node.op_type for node in onnx.load(str(made.path)).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Conv"} <= ops


def test_one_scale_a_channel_and_7_bits_where_the_processor_needs_them(float_file, tmp_path):
    settings = Settings(reduce_range=True, symmetric=True, max_drop=0.05)
    quantize(float_file, tmp_path / "int8.onnx", samples(), settings, judge)
    held = {
        one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(str(tmp_path / "int8.onnx")).graph.initializer
    }
    integers = {name: one for name, one in held.items() if one.dtype == np.int8 and one.ndim == 4}
    assert len(integers) == 5
    assert max(np.abs(one).max() for one in integers.values()) == 63
    for name, one in integers.items():
        assert held[f"{name}.scale"].shape in ((one.shape[0],), (one.shape[1],))
    assert all(not zero.any() for name, zero in held.items() if name.endswith(".zero"))


@pytest.mark.parametrize(
    ("flags", "has"),
    [("flags : fpu avx2 fma", False), ("flags : avx2 avx512_vnni", True), ("flags : avx_vnni", True), ("", False)],
)
def test_the_processor_says_whether_it_adds_integer_products(flags, has):
    assert has_integer_products(flags) == has


def test_flt_068_and_072_what_suffers_stays_in_float_until_the_score_is_kept(float_file, tmp_path, monkeypatch):
    """A convolution whose integers are nonsense is found by its own harm."""
    right = onnx_qdq._integers
    model = folded(onnx.load(str(float_file)))
    victim = onnx_qdq.layers(model)[1]

    def broken(node, weights, read, form):
        nodes = right(node, weights, read, form)
        if node.output[0] == victim:
            weights[f"{victim}.weight"] = -weights[f"{victim}.weight"]
        return nodes

    monkeypatch.setattr(onnx_qdq, "_integers", broken)
    made = quantize(float_file, tmp_path / "int8.onnx", samples(), Settings(max_drop=0.02), judge)
    assert made.kept == (victim,)
    assert max(made.harm, key=made.harm.__getitem__) == victim
    assert made.float_score - made.score <= 0.02


def test_flt_068_where_nothing_helps_float_is_kept_and_nothing_written(float_file, tmp_path):
    score = iter([1.0, *[0.2] * 20])
    made = quantize(float_file, tmp_path / "int8.onnx", samples(2), Settings(), lambda path: next(score))
    assert (made.path, made.chosen) == (None, float_file)
    assert made.verdict.startswith("float kept: with 2 convolutions in float 8 bits still cost 0.8")
    assert not list(tmp_path.iterdir())


def test_without_a_judge_pixels_are_compared_with_float(float_file, tmp_path):
    made = quantize(float_file, tmp_path / "int8.onnx", samples(2), Settings(max_drop=0.05))
    assert made.float_score == 1.0
    assert 0.95 <= made.score < 1.0


def test_flt_069_a_channel_of_weights_near_nothing_keeps_its_bias(tmp_path):
    """A channelwise convolution as in MobileNet: of one channel the bias is all there is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    with torch.no_grad():
        model[2].weight[:4] *= 1e-12
        model[2].bias[:4] = 0.7
    export(model.eval(), (1, 1, 32, 32), tmp_path / "net.onnx")
    made = quantize(tmp_path / "net.onnx", tmp_path / "int8.onnx", samples(2), Settings(max_drop=1.0))
    images = samples(1)[0]
    with torch.no_grad():
        wanted = model(torch.from_numpy(images)).numpy()
    found = opened_on(made.path, 1, ON_CPU).run(None, {"images": images})[0]
    assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()


def test_a_bias_never_leaves_32_bits():
    weight, bias = np.zeros((2, 1, 3, 3), np.float32), np.array([5.0, 0.0], np.float32)
    weight[1] = 1.0
    scale = weight_scales(weight, 0, bias, 1e-6, Form())
    assert abs(bias[0] / (scale[0] * 1e-6)) < 2**31
    assert scale[1] == np.float32(1 / 127)


def test_samples_that_are_none_or_not_finite(float_file, tmp_path):
    with pytest.raises(UserError, match="no calibration images; give one batch"):
        quantize(float_file, tmp_path / "int8.onnx", [], Settings())
    bad = samples(1)
    bad[0][0, 0, 3, 3] = np.nan
    with pytest.raises(UserError, match="not finite"):
        quantize(float_file, tmp_path / "int8.onnx", bad, Settings())


def test_the_verdict_says_which_is_faster():
    slow = Race((1.0, 0.9), (2.0, 1.9), 0.5, "CPU")
    assert slow.verdict == "8 bits are slower than float here, 2.00 times the time (CPU): float kept"
    assert "1.50 times as fast" in Race((1.5, 1.4), (1.0, 0.9), 1.5, "CPU").verdict


def test_a_provider_that_is_not_there_is_named(float_file):
    assert providers()[-1] == "CPUExecutionProvider"
    if "TensorrtExecutionProvider" not in providers():
        with pytest.raises(UserError, match="TensorrtExecutionProvider is not in this onnxruntime; it has"):
            opened_on(float_file, 1, ("TensorrtExecutionProvider",))


@pytest.mark.sabotage
def test_a_norm_folded_with_the_wrong_sign_is_noticed(float_file, monkeypatch):
    right = np.sqrt
    test_a_norm_folds_into_the_convolution_before_it(float_file)
    monkeypatch.setattr(onnx_fold.np, "sqrt", lambda value: -right(value))
    with pytest.raises(AssertionError):
        test_a_norm_folds_into_the_convolution_before_it(float_file)


@pytest.mark.sabotage
def test_scales_that_forget_the_bias_are_noticed(monkeypatch):
    right = onnx_qdq.weight_scales
    monkeypatch.setattr(onnx_qdq, "weight_scales", lambda w, a, b, r, f: right(w, a, None, r, f))
    with pytest.raises(AssertionError):
        assert abs(5.0 / (onnx_qdq.weight_scales(np.zeros((1, 1)), 0, np.ones(1) * 5, 1e-6, Form())[0] * 1e-6)) < 2**31
