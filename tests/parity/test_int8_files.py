"""Folders of 8-bit integers, opened by transformers: the same matrices bit for bit, and the same scores."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.export.compressed_tensors import save_compressed
from burnish.mesh import Mesh
from burnish.techniques import int8
from burnish.techniques.int8 import Config
from burnish.tensors import links
from burnish.weight_format import module_of
from int8_models import decoder, samples


@pytest.mark.parametrize(("family", "activations"), [("qwen3", "static"), ("llama", "dynamic")])
def test_transformers_runs_our_file_as_we_do(family: str, activations: str, tmp_path: Path) -> None:
    model, sizes = decoder(family)
    made = copy.deepcopy(model)
    config = Config(activations=activations, calibrator="mse")  # type: ignore[arg-type]
    int8.apply(config, made, Mesh(), int8.search(config, made, samples()))
    save_compressed(made, sizes, tmp_path / "m")
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    given = samples()
    with torch.no_grad():
        wanted = theirs(given.ids, attention_mask=given.mask.long()).logits[given.mask]
        ours = made.logits(made(given.ids, mask_BS=given.mask))[given.mask]
        plain = model.logits(model(given.ids, mask_BS=given.mask))[given.mask]
    state, count = theirs.state_dict(), 0
    for link in links(sizes):
        if module := module_of(link):
            own: Any = made.get_submodule(module)
            assert torch.equal(
                state[link.theirs[0]].float(), own.dequantized()
            )  # theirs are, once they have multiplied
            count += 1
    assert count == 7 * sizes.layers
    apart = float((ours - wanted).abs().max() / wanted.abs().max())
    # Of a token theirs has the step max |x| / 127.5 where ours is max |x| / 127: both round, each in its own way.
    assert apart <= (1e-5 if activations == "static" else float((ours - plain).abs().max() / plain.abs().max()))
