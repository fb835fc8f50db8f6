"""Decoders as ONNX in onnxruntime: scores and greedy tokens are the model's, float and integer, with the cache."""

from __future__ import annotations

from pathlib import Path

import families
import numpy as np
import pytest
import torch
from llama_pair import batch, real_prompts

import onnx_models as own
from burnish.errors import UserError
from burnish.export import onnx_attention, onnx_matrix
from burnish.export.onnx_check import check_decoder, shaken
from burnish.export.onnx_decoder import decoder_graph
from burnish.export.onnx_filed import as_filed
from burnish.export.onnx_linear import Form
from burnish.export.onnx_matrix import array
from burnish.export.onnx_parts import vocabulary
from burnish.export.onnx_session import OnnxDecoder
from burnish.serve.generate import generate
from burnish.serve.sampling import Sampling
from burnish.weight_format import IntWeights

DENSE = [name for name, settings in families.FAMILIES.items() if "experts" not in settings]
FORMS = {"portable": own.PORTABLE, "fused": own.FUSED}
WIDE = ("qwen3", "mistral", "gpt2", "llama yarn")  # in the fused form: heads of 16 elements
forms = pytest.mark.parametrize("form", FORMS)


def model_of(family: str, form: str) -> families.Decoder:
    config = families.config_of(family)
    if form == "fused" and not config.traits.learned_positions:
        config = config.model_copy(update={"head_dim": 16})
    return families.random_decoder(config)


@pytest.mark.parametrize("family", DENSE)
def test_scores_are_the_models(family: str, tmp_path: Path) -> None:
    for form in FORMS if family in WIDE else ["portable"]:
        model = model_of(family, form)
        found = check_decoder(own.file_of(model, FORMS[form], tmp_path), model)
        assert found.difference <= 1e-4, f"{form}: {found}"
        assert found.largest > 1
        assert found.same == 1


@forms
@pytest.mark.parametrize("family", ["qwen2 window", "llama 3", "gpt2 untied"])
def test_greedy_text_is_ours_for_64_tokens(family: str, form: str, tmp_path: Path) -> None:
    """Prompts of unequal length, read at once."""
    model = model_of(family, form)
    ids, mask = batch(model.shape, "right")
    wanted = generate(model, real_prompts(ids, mask), Sampling(max_new_tokens=64))
    file = OnnxDecoder.of(own.file_of(model, FORMS[form], tmp_path))
    assert file.greedy(ids.numpy(), mask.long().numpy(), 64).tolist() == wanted


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_may_be_padded_on_either_side_in_the_portable_form(side: str, tmp_path: Path) -> None:
    model = model_of("mistral", "portable")
    ids, mask = batch(model.shape, side)
    file = OnnxDecoder.of(own.file_of(model, own.PORTABLE, tmp_path))
    with torch.no_grad():
        wanted = model.logits(model(ids, mask_BS=mask))[mask].numpy()
    assert np.abs(file.read(ids.numpy(), mask.long().numpy())[mask.numpy()] - wanted).max() <= 1e-4


def test_a_text_read_in_pieces_has_the_scores_of_one_read_at_once(tmp_path: Path) -> None:
    model = model_of("qwen3 window", "portable")
    ids = batch(model.shape)[0][:1].numpy()
    path = own.file_of(model, own.PORTABLE, tmp_path)
    whole, pieces = OnnxDecoder.of(path), OnnxDecoder.of(path)
    apart = np.concatenate([pieces.read(ids[:, at : at + 4]) for at in range(0, ids.shape[1], 4)], 1)
    assert np.abs(whole.read(ids) - apart).max() <= 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [16, 32])
def test_four_bits_are_the_models(family: str, symmetric: bool, group: int, tmp_path: Path) -> None:
    changes = {"kv_heads": 6} if family == "gpt2" else {}
    model = own.decoder(own.config_of(family=family, **changes))
    small = own.compressed(model, IntWeights(4, group, symmetric, "float32"))
    for form in FORMS.values():
        found = check_decoder(own.file_of(small, form, tmp_path), small)
        assert found.difference <= 1e-3, f"{form}: {found}"
    assert check_decoder(tmp_path / "m.onnx", model).difference > 0.05  # the float model is another one


def test_four_bits_greedy_text_is_ours_for_64_tokens(tmp_path: Path) -> None:
    small = own.compressed(own.decoder(own.config_of()), IntWeights(4, 32, False, "float32"))
    ids, mask = batch(small.shape, "right")
    wanted = generate(small, real_prompts(ids, mask), Sampling(max_new_tokens=64))
    file = OnnxDecoder.of(own.file_of(small, own.FUSED, tmp_path))
    assert file.greedy(ids.numpy(), mask.long().numpy(), 64).tolist() == wanted


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", ["int8", "int4"])
def test_a_vocabulary_of_integers(head: str, tied: bool, tmp_path: Path) -> None:
    """A tied embedding reads the same integers; an untied one stays as it is."""
    model = own.decoder(own.config_of(tied=tied))
    words = vocabulary(array(model.head.weight), head)
    filed = as_filed(model, words)
    found = check_decoder(own.file_of(model, own.FUSED, tmp_path, words), filed)
    assert found.difference <= 1e-3, found
    embed, head_weight = filed.embed.weight, filed.head.weight
    assert (embed is head_weight) == tied
    assert not torch.equal(head_weight, model.head.weight)
    assert torch.equal(model.head.weight, model.embed.weight) == tied  # the model is as it was


def test_inputs_rounded_to_eight_bits_cost_little(tmp_path: Path) -> None:
    small = own.compressed(own.decoder(own.config_of()), IntWeights(4, 32, True, "float32"))
    exact = check_decoder(own.file_of(small, own.FUSED, tmp_path), small)
    rounded = check_decoder(own.file_of(small, Form(fused=True, accuracy=4), tmp_path), small)
    assert exact.rms < 1e-5 < rounded.rms < 0.05 * rounded.largest


@pytest.mark.parametrize("inputs", ["tensor", "token", ""])
@pytest.mark.parametrize("form", ["portable", "fused"])
def test_eight_bits_are_the_models(inputs: str, form: str, tmp_path: Path) -> None:
    """One layer: few inputs come near enough to a half to fall the other way, and no more than in the model itself."""
    model = own.decoder(own.config_of(layers=1))
    small = own.compressed(model, IntWeights(8, -1, True, "float32", inputs or "token"))
    if not inputs:
        small = weights_alone(small)
    unsigned = Form(fused=form == "fused", unsigned=form == "fused")
    found = check_decoder(own.file_of(small, unsigned, tmp_path), small)
    least = shaken(small)
    assert found.rms <= max(1e-5, 3 * least.rms), (found, least)
    assert found.rms < 0.1 * check_decoder(tmp_path / "m.onnx", model).rms


def weights_alone(model: families.Decoder) -> families.Decoder:
    """Matrices of 8 bits whose inputs are float."""
    for module in model.modules():
        if hasattr(module, "scheme"):
            module.scheme = IntWeights(8, -1, True, "float32", "")
            module.forward = lambda x, module=module: torch.nn.functional.linear(x, module.dequantized(), module.bias)
    return model


def test_experts_are_refused_by_name() -> None:
    model = families.random_decoder(families.config_of("mixtral"))
    with pytest.raises(UserError, match="a decoder of 5 experts a layer is not written as ONNX"):
        decoder_graph(model, own.PORTABLE)


def test_heads_that_onnxruntime_does_not_rotate_are_refused() -> None:
    model = families.random_decoder(families.config_of("llama 2"))
    with pytest.raises(
        UserError, match="heads of 8 elements: onnxruntime rotates multiples of 16; use the portable form"
    ):
        decoder_graph(model, own.FUSED)


def test_flt_006_008_a_file_takes_any_batch(tmp_path: Path) -> None:
    """Batch and length are free in a file, whatever it was compared with."""
    model = model_of("llama 3", "portable")
    path = own.file_of(model, own.PORTABLE, tmp_path)
    for rows, length in ((1, 5), (2, 1), (5, 9)):
        ids = torch.randint(101, (rows, length), generator=torch.Generator().manual_seed(rows))
        with torch.no_grad():
            wanted = model.logits(model(ids)).numpy()
        assert np.abs(OnnxDecoder.of(path).read(ids.numpy()) - wanted).max() <= 1e-4


def notices(family: str, folder: Path) -> bool:
    try:
        test_scores_are_the_models(family, folder)
    except AssertionError:
        return True
    return False


@pytest.mark.sabotage
def test_a_window_one_too_wide_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not notices("mistral", tmp_path)
    right = onnx_attention.Graph.constant

    def wider(graph: onnx_attention.Graph, values: float, kind: str) -> str:
        return right(graph, 6 if values == 5 and kind == "int64" else values, kind)

    monkeypatch.setattr(onnx_attention.Graph, "constant", wider)
    assert notices("mistral", tmp_path)


@pytest.mark.sabotage
def test_the_high_half_of_a_byte_first_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.export import onnx_linear

    test_four_bits_are_the_models("llama", True, 32, tmp_path)
    monkeypatch.setattr(onnx_linear, "packed", lambda values: onnx_matrix.packed(values[..., ::-1])[..., ::-1])
    with pytest.raises(AssertionError):
        test_four_bits_are_the_models("llama", True, 32, tmp_path)
