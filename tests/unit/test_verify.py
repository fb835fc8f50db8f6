"""Verify: divergence and perplexity against float64, the drop and its noise, guilty parts found and kept."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.compress.divergence import TokenProbe, VectorProbe
from burnish.compress.metrics import Measured, Metric, judge, perplexity
from burnish.compress.samples import Samples
from burnish.compress.sensitivity import Exchange, fewest, mixed, parts_of
from burnish.compress.verify import Judge, keep_fewest, suffering
from burnish.errors import UserError
from compressing import rounded, rows, subject

BAD = "layers.2.mlp"


def reference(own, other, samples: Samples) -> tuple[float, float, float]:
    """KL in nats, share of the same likeliest token and mean nats of `other`, in float64, row by row without a mask."""
    kl, same, nats, tokens = 0.0, 0, 0.0, 0
    own, other = (copy_double(model) for model in (own, other))
    for ids, mask in zip(samples.ids, samples.mask, strict=True):
        real = ids[mask][None]
        with torch.no_grad():
            p, q = (m.logits(m(real))[0, :-1].log_softmax(-1) for m in (own, other))
        kl += float((p.exp() * (p - q)).sum())
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
        nats -= float(q.gather(1, real[0, 1:, None]).sum())
        tokens += len(real[0]) - 1
    return kl / tokens, same / tokens, nats / tokens


def copy_double(model):
    import copy

    made = copy.deepcopy(model).double()
    made.tie()
    return made


def ragged() -> Samples:
    """Rows of unequal length, one padded on the left."""
    whole = rows(5)
    mask = whole.mask.clone()
    mask[1, 40:] = mask[2, 17:] = mask[3, :9] = False
    ids = torch.where(mask, whole.ids, 3)
    return Samples(ids, mask)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_divergence_and_nats_are_those_of_float64(batch):
    own, other = subject().model, rounded(subject().model)
    probe = TokenProbe(own, ragged(), batch)
    seen = probe.seen(other)
    kl, same, nats = reference(own, other, ragged())
    assert kl > 0.01
    assert seen.divergence == pytest.approx(kl, rel=1e-4)
    assert seen.agreement["top1"] == pytest.approx(same, abs=1e-9)
    assert seen.above.sum() / seen.below.sum() == pytest.approx(nats, rel=1e-5)
    assert probe.itself.divergence == pytest.approx(0, abs=1e-9)
    assert probe.itself.agreement["top1"] == 1.0


def test_scores_that_are_no_numbers_are_refused():
    broken = rounded(subject().model)
    with torch.no_grad():
        broken.layers[1].mlp.up.weight[0, 0] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        TokenProbe(subject().model, rows(2)).seen(broken)


POINT = Metric("share", False, "points", lambda model: Measured(np.ones(1), np.ones(1)))
PERCENT = Metric("figure", True, "percent", lambda model: Measured(np.ones(1), np.ones(1)))


def test_a_drop_is_counted_as_the_metric_says():
    one, other = Measured(np.array([0.9]), np.ones(1)), Measured(np.array([0.8]), np.ones(1))
    assert judge(POINT, one, other, 5).drop == pytest.approx(10)
    assert not judge(POINT, one, other, 5).within
    assert judge(PERCENT, other, one, 13).drop == pytest.approx(12.5)
    assert judge(PERCENT, other, one, 13).within
    assert judge(PERCENT, one, other, 0).drop < 0, "what got better has not dropped"
    assert judge(POINT, one, other, None).within
    assert judge(POINT, one, other, None).noise is None
    zero = Measured(np.zeros(1), np.ones(1))
    with pytest.raises(UserError, match="percent means nothing"):
        judge(PERCENT, zero, one, 1)
    with pytest.raises(UserError, match="finite"):
        judge(PERCENT, one, Measured(np.array([math.nan]), np.ones(1)), 1)


def test_the_noise_of_a_paired_drop_is_that_of_the_normal_limit():
    """Of many pieces with independent differences: 1.96 standard errors of the mean difference."""
    draw = np.random.default_rng(3)
    count = 4000
    before = draw.normal(5, 2, count)
    difference = draw.normal(0.1, 0.5, count)
    one, other = Measured(before, np.ones(count)), Measured(before + difference, np.ones(count))
    points = dataclasses.replace(POINT, lower_is_better=True)
    found = judge(points, one, other, None)
    assert found.noise == pytest.approx(100 * 1.96 * difference.std() / math.sqrt(count), rel=0.08)
    assert found.drop == pytest.approx(100 * difference.mean())


def test_parts_are_halves_of_layers_and_an_exchange_is_exact():
    own, other = subject().model, rounded(subject().model)
    parts = parts_of(own, other)
    assert [part.name for part in parts] == [f"layers.{k}.{half}" for k in range(5) for half in ("attention", "mlp")]
    ids = rows(2).ids
    with torch.no_grad():
        assert torch.equal(mixed(own, other, parts)(ids), other(ids))
        assert torch.equal(mixed(other, own, parts)(ids), own(ids))
        only = mixed(own, other, parts[:1])(ids)
        assert not torch.equal(only, own(ids))
        assert torch.equal(own(ids), subject().model(ids))
    assert parts_of(own, own) == []
    one = mixed(own, other, parts[3:4])
    assert [part.name for part in parts_of(own, one)] == ["layers.1.mlp"]


def guilty(max_drop: float):
    """A model in which one half of a layer was rounded to two bits, the rest to six."""
    own = subject().model
    other = rounded(own, bits=6, worse=(BAD,))
    probe = TokenProbe(own, rows(6))
    return own, other, Judge.of(own, perplexity(probe, own), probe, max_drop), probe


def test_the_guilty_part_is_found_and_it_alone_is_kept():
    own, other, verdict, probe = guilty(2.0)
    before, _ = verdict.look(other)
    assert not before.within
    found = suffering(own, other, parts_of(own, other), probe)
    assert max(zip(found.harm, (part.name for part in found.parts), strict=True))[1] == BAD
    made, kept = keep_fewest(verdict, own, other, found)
    assert [part.name for part in kept] == [BAD]
    after, _ = verdict.look(made)
    assert after.within
    assert after.drop < before.drop


def test_a_budget_that_no_mixture_meets_is_none():
    own, other, verdict, probe = guilty(-50.0)
    assert keep_fewest(verdict, own, other, suffering(own, other, parts_of(own, other), probe)) is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=9), st.integers(0, 60))
def test_fewest_meets_its_budget_and_gives_nothing_back(costs, budget):
    """Harm in a table that orders parts by something else than what the budget counts."""
    parts = [Exchange(str(k), ()) for k in range(len(costs))]
    real = {str(k): cost for k, (cost, _) in enumerate(costs)}

    def meets(kept):
        return sum(real.values()) - sum(real[part.name] for part in kept) <= budget

    kept = fewest(parts, [float(seen) for _, seen in costs], meets)
    assert kept is not None
    assert meets(kept)
    assert kept == sorted(kept, key=lambda part: int(part.name))
    for part in kept:
        assert not meets([other for other in kept if other is not part]), "a part is kept for nothing"


@pytest.mark.sabotage
def test_sabotage_harm_upside_down_is_noticed(monkeypatch):
    import burnish.compress.verify as verify_

    real = verify_.alone
    monkeypatch.setattr(verify_, "alone", lambda *given: [-harm for harm in real(*given)])
    with pytest.raises(AssertionError):
        test_the_guilty_part_is_found_and_it_alone_is_kept()


@pytest.mark.sabotage
def test_sabotage_padding_that_is_judged_is_noticed(monkeypatch):
    import burnish.compress.divergence as divergence

    monkeypatch.setattr(divergence, "_scored", lambda mask: torch.ones_like(mask[:, 1:]))
    with pytest.raises(AssertionError):
        test_divergence_and_nats_are_those_of_float64(2)


def test_an_encoder_is_held_against_itself_by_cosine(tmp_path):
    from burnish.encoders.config import EncoderConfig
    from burnish.models.encoder import Encoder
    from burnish.serve.embed import Embedder

    config = EncoderConfig(vocab=64, hidden=24, ffn=40, layers=2, heads=3)
    model = Encoder(config, torch.Generator().manual_seed(0)).eval()

    class Letters:
        def encode(self, texts):
            from burnish.data.encoder_texts import EncoderText

            return [EncoderText([ord(c) % 64 for c in text], [0] * len(text)) for text in texts]

    from burnish.load.sentence_folder import Pooling

    made = Embedder(model, config, Letters(), Pooling(mode="mean", normalise=True, limit=64))
    probe = VectorProbe(made, ["one", "another text", "x"])
    assert probe.itself.agreement == pytest.approx({"cosine": 1.0, "cosine_lowest": 1.0})
    other = rounded(model, bits=4)
    seen = probe.seen(other)
    import copy

    mine = dataclasses.replace(made, model=copy.deepcopy(other)).embed(["one", "another text", "x"])
    assert seen.agreement["cosine"] == pytest.approx(float((probe._own * mine).sum(1).mean()), abs=1e-6)
    assert 0 < seen.divergence < 0.2
    assert [part.name for part in parts_of(model, other)][:2] == ["layers.0.attention", "layers.0.mlp"]
