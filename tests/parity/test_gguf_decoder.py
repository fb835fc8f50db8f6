"""GGUF files in our own decoder: the logits that transformers computes from the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_gguf_other_readers import IDS, llama_cpp_logits

import gguf_models
from burnish.export.gguf import save_gguf
from burnish.load.gguf import open_gguf
from burnish.load.model import load_model

KINDS = [kind for kind in gguf_models.KINDS if kind != "llama with biases"]  # which no published model of ours has


def difference(kind, folder, form: str = "F32") -> float:
    """Largest difference of logits between our decoder of the file and transformers' model."""
    model, checkpoint = gguf_models.model(kind, folder)
    save_gguf(checkpoint, folder / "m.gguf", form)
    ours, _ = load_model(open_gguf(folder / "m.gguf"), dtype=torch.float32)
    with torch.no_grad():
        return (ours.logits(ours(torch.tensor([IDS]))) - model(torch.tensor([IDS])).logits).abs().max().item()


@pytest.mark.parametrize("kind", KINDS)
def test_our_decoder_computes_the_same_logits(kind, tmp_path):
    assert difference(kind, tmp_path) < 1e-4


@pytest.mark.sabotage
@pytest.mark.parametrize("kind", ["llama3 rope", "linear rope", "yarn rope"])
def test_a_rope_scaling_that_is_left_out_is_noticed(kind, tmp_path, monkeypatch):
    from burnish.gguf_files import rope

    monkeypatch.setattr(rope, "of_settings", lambda settings, positions: None)
    monkeypatch.setattr(rope, "of_factors", lambda given, theta, head_dim, original: {"rope_type": "default"})
    assert difference(kind, tmp_path) > 1e-2


@pytest.mark.slow
def test_smollm2_says_the_same_in_llama_cpp(smollm2, tmp_path):
    """Written in half precision: the same best token at every place, and nearly the same scores."""
    save_gguf(open_gguf(smollm2), tmp_path / "m.gguf", "F16")
    ours, _ = load_model(open_gguf(smollm2))
    found, _ = llama_cpp_logits(tmp_path / "m.gguf")
    with torch.no_grad():
        wanted = ours.logits(ours(torch.tensor([IDS])))[0].numpy()
    assert np.array_equal(found.argmax(-1), wanted.argmax(-1))
    assert np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()) < 5e-3
