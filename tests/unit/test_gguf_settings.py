"""Settings of GGUF files: rope scaling from factors, both spellings of config.json, sizes without torch."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from burnish.errors import UserError
from burnish.gguf_files import rope
from burnish.gguf_files.written import contents, gguf_bytes
from burnish.tables.gguf import STORAGES, WRITTEN

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_the_tables_are_the_packages():
    sizes = {kind.name: (int(kind), *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    for name, storage in STORAGES.items():
        assert sizes[name] == (storage.number, storage.block, storage.bytes)
    for name, form in WRITTEN.items():
        assert getattr(LlamaFileType, "ALL_F32" if name == "F32" else f"MOSTLY_{name}") == form.file_type


@pytest.mark.parametrize(("factor", "theta", "head_dim"), [(8.0, 5e5, 128), (32.0, 5e5, 64), (8.0, 1e4, 32)])
def test_factors_are_those_of_transformers(factor, theta, head_dim):
    scaling = LLAMA3 | {"factor": factor}
    config = LlamaConfig(
        head_dim=head_dim, rope_parameters={"rope_theta": theta} | scaling, max_position_embeddings=131072
    )
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    found = rope.factors(scaling, theta, head_dim, "m")
    np.testing.assert_allclose(plain / theirs.double().numpy(), found, rtol=1e-5)
    assert rope.of_factors(found, theta, head_dim, None) == scaling


numbers = st.tuples(st.floats(1.5, 64), st.floats(0.25, 4), st.floats(1.1, 16), st.integers(256, 32768))


@given(numbers, st.floats(1000, 1e6), st.sampled_from([32, 64, 128, 256]), st.booleans())
def test_a_scaling_told_from_factors_gives_those_factors(asked, theta, head_dim, told):
    factor, low, wider, original = asked
    scaling = LLAMA3 | {"factor": factor, "low_freq_factor": low, "high_freq_factor": low * wider}
    scaling["original_max_position_embeddings"] = original
    given_factors = rope.factors(scaling, theta, head_dim, "m")
    found = rope.of_factors(given_factors, theta, head_dim, original if told else None)
    between = np.count_nonzero((given_factors > 1.0001) & (given_factors < factor * 0.9999))
    if found is None:
        assert between < 2
        return
    np.testing.assert_allclose(rope.factors(found, theta, head_dim, "m"), given_factors, rtol=1e-4)
    if told and between > 1:
        assert found["original_max_position_embeddings"] == original


@pytest.mark.parametrize(
    "factors", [[0.5] * 8, [2.0] * 8, [1, 2, 1, 2, 1, 2, 1, 2], [8, 4, 2, 1, 1, 1, 1, 1], [math.inf] * 8, [0] * 8]
)
def test_factors_of_another_kind_are_none(factors):
    assert rope.of_factors(np.array(factors, np.float32), 1e4, 16, None) is None


@pytest.mark.sabotage
def test_an_original_length_that_is_left_out_is_noticed(monkeypatch):
    scaling = LLAMA3 | {"original_max_position_embeddings": 4096}
    right = rope.factors(scaling, 5e5, 128, "m")
    assert np.allclose(right, rope.factors(rope.of_factors(right, 5e5, 128, 4096), 5e5, 128, "m"), rtol=1e-4)
    monkeypatch.setattr(rope, "_PUBLISHED", (1.0, 4.0, 8192))
    assert not np.allclose(right, rope.factors(LLAMA3, 5e5, 128, "m"), rtol=1e-4)


def test_both_spellings_of_rope_say_the_same():
    new = {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}}
    old = {"rope_theta": 5e5, "rope_scaling": LLAMA3}
    oldest = {
        "rope_theta": 5e5,
        "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_type"} | {"type": "llama3"},
    }
    assert rope.of_config(new) == rope.of_config(old) == rope.of_config(oldest) == (5e5, LLAMA3)
    assert rope.of_config({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}) == (1e4, None)
    assert rope.of_config({"rope_theta": 1e4, "rope_scaling": None}) == (1e4, None)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 77},
        ),
    ],
)
def test_scaling_from_keys(settings, wanted):
    assert rope.of_settings(settings, 77) == wanted


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16}, r"rope_scaling\.beta_fast is 16"),
        ({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}, r"rope_scaling\.attention_factor is 1\.5"),
        ({"rope_type": "yarn", "factor": 4.0, "truncate": False}, r"rope_scaling\.truncate is False"),
        ({"rope_type": "linear", "factor": "x"}, r"rope_scaling: factor is x"),
        ({"rope_type": "longrope", "factor": 4.0}, "'longrope'"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "less than high_freq_factor"),
    ],
)
def test_scaling_without_a_key_is_refused(scaling, said):
    with pytest.raises(UserError, match=said):
        contents(LLAMA | {"rope_scaling": scaling}, "Q8_0", None, "m")
    with pytest.raises(UserError, match="Q8_0"):
        contents(LLAMA, "Q3_0", None, "m")


# llama.cpp's own sizes of Llama 3.1 8B, 8,030,261,248 parameters: 16 bits of each matrix; 8.5 bits in Q8_0.
def test_sizes_of_a_published_model():
    matrices = 8_030_261_248 - 65 * 4096
    small = 65 * 4096 * 4 + 64 * 4  # norms and the factors of rope in float32
    config = LLAMA | {"rope_scaling": LLAMA3}
    for form, bits in (("F16", 16), ("Q8_0", 8.5)):
        weights = matrices * bits / 8 + small
        assert 0 < gguf_bytes(config, form) - weights < 50_000  # the header and paddings
    four = gguf_bytes(config, "Q4_0") - small
    assert four == pytest.approx(matrices * 4.5 / 8 + 128256 * 4096 * 4 / 8, rel=1e-5)  # the output in 8.5 bits


def test_the_size_is_known_without_torch_and_without_gguf():
    code = (
        "import sys; from burnish.gguf_files.written import gguf_bytes;"
        f"print(gguf_bytes({LLAMA!r}, 'Q4_0'), [m for m in ('torch', 'gguf') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(gguf_bytes(LLAMA, "Q4_0")), "[]"]
