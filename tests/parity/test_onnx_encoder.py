"""Encoders as ONNX in onnxruntime: hidden states, vectors and scores are the model's, float and integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_pair import SHAPES, batch

import onnx_models as own
from burnish.export import onnx_encoder
from burnish.export.onnx_check import check_encoder, shaken
from burnish.export.onnx_encoder import encoder_graph
from burnish.export.onnx_linear import Form
from burnish.export.onnx_session import opened
from burnish.load.sentence_folder import CLS, MEAN, Pooling
from burnish.models.encoder import Encoder
from burnish.weight_format import IntWeights

FORMS = {"portable": own.PORTABLE, "fused": own.FLAT}


def encoder(name: str) -> Encoder:
    return own.random_model(Encoder(SHAPES[name], torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", SHAPES)
def test_states_and_scores_are_the_models(name: str, tmp_path: Path) -> None:
    model = encoder(name)
    for form in FORMS if name in ("odd sizes", "classes") else ["portable"]:
        found = check_encoder(own.written(encoder_graph(model, FORMS[form]), tmp_path), model)
        assert found.difference <= 1e-4, f"{form}: {found}"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mode", [MEAN, CLS])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_texts_vector(mode: str, normalise: bool, side: str, tmp_path: Path) -> None:
    """Rows of unequal length, padded on either side."""
    model = encoder("bare")
    ids, mask, types = batch(model.shape, side)
    path = own.written(encoder_graph(model, own.PORTABLE, Pooling(mode, normalise, 90)), tmp_path)
    given = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}
    found = opened(path).run(["sentence_embedding"], {name: tensor.numpy() for name, tensor in given.items()})[0]
    with torch.no_grad():
        hidden = model(ids, mask_BS=mask, types_BS=types)
    rows = [row[keep].mean(0) if mode == MEAN else row[keep][0] for row, keep in zip(hidden, mask, strict=True)]
    wanted = torch.stack(rows)
    wanted = torch.nn.functional.normalize(wanted, dim=-1) if normalise else wanted
    assert np.abs(found - wanted.numpy()).max() <= 1e-5


@pytest.mark.parametrize("inputs", ["tensor", "token"])
def test_eight_bits_are_the_models(inputs: str, tmp_path: Path) -> None:
    """With inputs as integers of both signs, as TensorRT has them, and around 128, which is faster on a CPU."""
    small = own.compressed(encoder("bare"), IntWeights(8, -1, True, "float32", inputs))
    least = shaken(small)
    for form in (own.PORTABLE, own.FLAT, Form(unsigned=True)):
        found = check_encoder(own.written(encoder_graph(small, form), tmp_path), small)
        assert found.rms <= max(1e-5, 3 * least.rms), f"{form}: {found}, {least}"


@pytest.mark.sabotage
def test_pads_in_the_mean_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_texts_vector(MEAN, True, "right", tmp_path)
    right = onnx_encoder.Graph.add

    def unmasked(graph: onnx_encoder.Graph, op: str, *inputs: str, **given: object) -> str:
        if op == "Mul" and any("Unsqueeze" in name for name in inputs):
            return inputs[0]
        return right(graph, op, *inputs, **given)

    monkeypatch.setattr(onnx_encoder.Graph, "add", unmasked)
    with pytest.raises(AssertionError):
        test_a_texts_vector(MEAN, True, "right", tmp_path)
