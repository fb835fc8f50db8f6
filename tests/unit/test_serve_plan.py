"""Serving, planned: bytes by hand and as the engine counts them, fit at the byte, all-reduces, and what may never be faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.architecture import Architecture, architecture
from burnish.cluster import cluster
from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.pool_size import position_bytes, step_bytes
from burnish.presets import preset
from burnish.serve_plan import Asked, Serving, decode_seconds, plan, prefill_seconds, total_seconds
from burnish.serve_plan import passes as served_passes
from burnish.serve_plan.passes import constants, reduce_seconds
from burnish.serve_plan.plan import beside_bytes, largest_batch, sequence_bytes
from burnish.serve_plan.sizes import kv_bytes, read_bytes, weight_bytes, workspace_bytes

GROUPED = Architecture("grouped", 1000, 64, 3, 8, 2, 8, 96)
H100 = cluster("h100-sxm:1x8")
ASKED = Asked(preset("llama-3.1-8b"), H100, 1000, 200, 3, tp=1)


def test_bytes_of_keys_and_values_by_hand() -> None:
    assert kv_bytes(GROUPED, 5, 2) == 2 * 3 * 2 * 8 * 2 * 5
    assert kv_bytes(GROUPED, 5, 1, tp=2) == 2 * 3 * 1 * 8 * 5
    assert kv_bytes(GROUPED, 5, 2, tp=4) == kv_bytes(GROUPED, 5, 2, tp=2), "one head of two is held by two chips each"


def test_latent_attention_keeps_one_vector_a_layer_on_every_chip() -> None:
    latent = replace(GROUPED, kv_rank=32, rope_dim=4)
    assert kv_bytes(latent, 5, 2) == kv_bytes(latent, 5, 2, tp=4) == 5 * 3 * 36 * 2


def test_bytes_of_weights_by_hand() -> None:
    layer = 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 96 + 2 * 64
    body, outer = 3 * layer + 64, 2 * 1000 * 64
    assert weight_bytes(GROUPED, "bf16") == 2 * (body + outer)
    assert weight_bytes(GROUPED, "fp8") == body + 2 * outer
    assert weight_bytes(GROUPED, "q4", tp=2) == -(-(body * 9 // 16 + 2 * outer) // 2)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_the_engine_counts_the_same_bytes(family: str) -> None:
    config = ModelConfig(
        family=family, vocab=500, hidden=48, layers=3, heads=6, kv_heads=2, head_dim=8, ffn=80, max_positions=64
    )
    model = architecture(config)
    assert kv_bytes(model, 7, 4) == 7 * position_bytes(config, 4)
    assert workspace_bytes(model, 9, 3) == step_bytes(config, 9, 3, 2)


def test_few_tokens_read_few_experts() -> None:
    routed = replace(GROUPED, ffn=0, experts=8, topk=2, expert_ffn=96, expert_layers=3)
    one, most = read_bytes(routed, "bf16", 1), read_bytes(routed, "bf16", 10**6)
    assert most - one == pytest.approx(3 * 6 * 3 * 64 * 96 * 2)


def test_the_largest_batch_fits_at_the_byte() -> None:
    fixed = weight_bytes(ASKED.model, "bf16")
    just = fixed + 3 * sequence_bytes(ASKED, 1) + beside_bytes(ASKED, 3, 1)
    assert largest_batch(replace(ASKED, memory=just), "bf16", 1) == 3
    assert largest_batch(replace(ASKED, memory=just - 1), "bf16", 1) == 2
    assert plan(replace(ASKED, memory=just)).fits
    assert not plan(replace(ASKED, memory=just - 1)).fits


def check_reduces() -> None:
    """Two all-reduces a layer, each of its own time where the link takes none."""
    served = Serving(GROUPED, replace(H100, link=replace(H100.link, bandwidth=1e30)), tp=2)
    assert reduce_seconds(served, 1, {"reduce": 1.0}) == pytest.approx(6.0)
    assert reduce_seconds(replace(served, tp=1), 1, {"reduce": 1.0}) == 0


def test_two_reduces_a_layer() -> None:
    check_reduces()


@pytest.mark.sabotage
def test_a_forgotten_reduce_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_passes, "REDUCES", 1)
    with pytest.raises(AssertionError):
        check_reduces()


def test_decoding_one_sequence_takes_its_traffic_and_its_layers() -> None:
    served, c = Serving(preset("llama-3.1-8b"), H100, engine="fused-2022"), constants("fused-2022")
    read = read_bytes(served.model, "bf16", 1) / (H100.chip.bandwidth * c["memory"])
    cache = kv_bytes(served.model, 100, 2) / (H100.chip.bandwidth * c["cache"])
    assert decode_seconds(served, 1, 100) == pytest.approx(
        read + cache + 32 * c["layer"] + c["step"] + c["row"], rel=0.01
    )


def test_the_first_token_comes_out_of_the_prompt() -> None:
    served = Serving(GROUPED, H100)
    assert total_seconds(served, 2, 30, 1) == prefill_seconds(served, 2, 30)


@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 300), prompt=st.integers(2, 3000), tp=st.sampled_from([1, 2, 4]), layers=st.integers(1, 60))
def test_more_never_takes_less(batch: int, prompt: int, tp: int, layers: int) -> None:
    served = Serving(replace(GROUPED, layers=layers), H100, tp=tp)
    larger = replace(served, model=replace(served.model, layers=layers + 1))
    for seconds in (prefill_seconds, decode_seconds):
        least = seconds(served, batch, prompt)
        assert least <= seconds(served, batch + 1, prompt)
        assert least <= seconds(served, batch, prompt + 1)
        assert least <= seconds(larger, batch, prompt)
    assert (
        batch / decode_seconds(served, batch, prompt) <= (batch + 1) / decode_seconds(served, batch + 1, prompt) * 1.001
    )


def test_a_plan_names_what_would_fit() -> None:
    made = plan(Asked(preset("llama-3.1-70b"), cluster("h100-sxm:1x1"), 1024, 256))
    assert not made.fits
    assert made.fastest is None
    assert "--weights int8" in made.remedies
    assert plan(replace(made.asked, weights=("int8",))).fits
    assert len(made.why_not) == len(made.ways) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prompt": 0}, "--prompt 0"),
        ({"batch": -1}, "--batch -1"),
        ({"weights": ("bf61",)}, "bf16"),
        ({"kv": "int3"}, "fp8"),
        ({"engine": "none"}, "fused-2023"),
        ({"tp": 3}, "1, 2, 4, 8"),
        ({"memory": 2**50}, "GiB"),
    ],
)
def test_what_cannot_be_asked(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(replace(ASKED, **wrong))  # type: ignore[arg-type]
