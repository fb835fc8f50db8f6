"""What users of other 8-bit calibrators met: counts that overflow, tensors that were never seen, models left near random."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from burnish.compress import int8_model
from burnish.compress.calibrators import CALIBRATORS, entropy, percentile
from burnish.compress.divergence import VectorProbe
from burnish.compress.histogram import Histogram
from burnish.compress.int8_choice import states
from burnish.compress.judging import of_probe
from burnish.compress.ranges import inputs_of
from burnish.compress.samples import Samples
from burnish.compress.sensitivity import parts_of
from burnish.compress.verify import Judge, keep_fewest, suffering
from burnish.data.encoder_texts import EncoderText
from burnish.errors import UserError
from burnish.load.sentence_folder import Pooling
from burnish.mesh import Mesh
from burnish.models.encoder import Encoder
from burnish.serve.embed import Embedder
from burnish.techniques import int8
from int8_models import decoder, encoder, samples

KINDS = {"decoder": decoder, "encoder": encoder}


def test_064_counts_beyond_32_bits_are_exact() -> None:
    """Integers up to 2047 once each, then 2^40 values below 1: the percentile lies below 1, and no rule trips over the counts."""
    found = Histogram()
    found.add(torch.arange(2048.0)[:, None])
    small = Histogram()
    small.add(torch.rand(1 << 16, 1, generator=torch.Generator().manual_seed(0)))
    many = 1 << 24  # times as many of each of the small values
    steps = found.exponent - small.exponent
    for size, counts in small.sized.items():
        merged = counts.reshape(-1, 1 << steps).sum(1) * many
        own = np.pad(merged, (0, len(counts) - len(merged)))
        found.sized[size] = found.sized.get(size, np.zeros_like(own)) + own
    assert found.seen == 2048 + (1 << 40)
    assert 0.9 < percentile(found, 99.99) < 1 + found.width
    assert 0 < entropy(found) <= 2048
    for rule in CALIBRATORS.values():
        assert 0 < rule(found, 99.99) <= 2047


def test_064_a_counter_passes_what_float32_counts_to() -> None:
    found, batch = Histogram(), torch.full((1 << 20, 1), 0.5)
    for _ in range(17):
        found.add(batch)
    found.add(torch.full((3, 1), 0.5))
    assert found.counts.max() == found.seen == 17 * (1 << 20) + 3 > 1 << 24


@pytest.mark.parametrize("kind", KINDS)
def test_067_a_tensor_that_no_sample_reached_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No range that was never widened becomes a scale."""
    model: Any = KINDS[kind]()[0]
    monkeypatch.setattr(model.layers[1].mlp, "forward", lambda x: x)
    first = "gate" if kind == "decoder" else "up"
    with pytest.raises(UserError, match=rf"layers\.1\.mlp\.{first} and 1 more tensors: no sample reached") as caught:
        int8.search(int8.Config(smooth="off"), model, samples())
    assert "activations=dynamic" in str(caught.value)
    dynamic = int8.Config(activations="dynamic", smooth="off")
    assert int8.apply(dynamic, model, Mesh()).layers[1].mlp.down.input_scale is None
    for rule in CALIBRATORS.values():
        assert rule(Histogram(), 99.99) == 0.0


def test_067_a_table_without_a_row_makes_no_scale_of_its_own() -> None:
    model, _ = encoder()
    config = int8.Config(calibrator="max", smooth="off")
    table = int8.search(config, model, samples())
    assert table is not None
    short = table.model_copy(update={"inputs": table.inputs[:-1]})
    with pytest.raises(UserError, match=r"layers\.1\.mlp\.down: the table of scales has no range"):
        int8.apply(config, model, Mesh(), short)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_070_every_calibrator_sees_every_tensor_that_is_rounded(kind: str, calibrator: str) -> None:
    model: Any = KINDS[kind]()[0]
    config = int8.Config(calibrator=calibrator, smooth="off")
    table = int8.search(config, model, samples())
    assert table is not None
    assert {row.name: row.matrices for row in table.inputs} == inputs_of(model)
    assert all(0 < row.threshold <= max(-row.low, row.high) * (1 + 1e-6) for row in table.inputs)
    made: Any = int8.apply(config, copy.deepcopy(model), Mesh(), table)
    for row in table.inputs:
        for name in row.matrices:
            assert float(made.get_submodule(name).input_scale) == pytest.approx(row.threshold / 127)


class Letters:
    """A tokenizer of letters."""

    def encode(self, texts: list[str]) -> list[EncoderText]:
        return [EncoderText([1 + ord(c) % 96 for c in text], [0] * len(text)) for text in texts]


def judged(model: Any, max_drop: float) -> Judge:
    embedder = Embedder(model, encoder()[1], Letters(), Pooling("mean", True, 64))  # type: ignore[arg-type]
    probe = VectorProbe(embedder, ["one", "another text", "and a third that is longer than these", "x"])
    return Judge.of(model, of_probe("cosine", probe, model), probe, max_drop)


def eight_bits(model: Encoder, config: int8.Config, given: Samples) -> Any:
    made = copy.deepcopy(model)
    return int8.apply(config, made, Mesh(), int8.search(config, made, given))


def test_068_a_model_left_near_random_is_over_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Static ranges a hundredth of what they should be: the vectors are others, and the verdict says so."""
    model, _ = encoder()
    config = int8.Config(calibrator="max", smooth="off")
    verdict = judged(model, 2.0)
    sound, _ = verdict.look(eight_bits(model, config, samples()))
    assert sound.within
    monkeypatch.setitem(CALIBRATORS, "max", lambda found, percent: found.largest / 100)
    broken, seen = verdict.look(eight_bits(model, config, samples()))
    assert not broken.within
    assert seen.agreement["cosine"] < 0.9


def test_072_the_layer_that_dynamic_scales_break_is_found_and_kept() -> None:
    """One input that is thousands of times as large as the others leaves them one step of its token's scale."""
    model, _ = encoder()
    with torch.no_grad():
        model.layers[1].mlp.up.weight[5] *= 3e4
        model.layers[1].mlp.down.weight[:, 5] /= 3e4
    made = eight_bits(model, int8.Config(activations="dynamic", smooth="off"), samples())
    verdict = judged(model, 0.5)
    before, _ = verdict.look(made)
    assert not before.within
    found = suffering(model, made, parts_of(model, made), verdict.probe)
    worst = max(zip(found.harm, (part.name for part in found.parts), strict=True))
    assert worst[1] == "layers.1.mlp"
    repaired = keep_fewest(verdict, model, made, found)
    assert repaired is not None
    assert [part.name for part in repaired[1]] == ["layers.1.mlp"]
    assert verdict.meets(repaired[0])


@pytest.mark.sabotage
def test_sabotage_a_tensor_without_a_range_that_passes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_model, "check_reached", lambda wanted, seen: None)
    with pytest.raises(BaseException, match=r"DID NOT RAISE|KeyError|'layers"):
        test_067_a_tensor_that_no_sample_reached_is_named("encoder", monkeypatch)


def test_states_are_those_of_real_tokens_alone() -> None:
    """What calibrators are chosen by has no padding in it."""
    model, _ = encoder()
    given = samples()
    assert sum(len(own) for own in states(model, given)) == given.tokens
