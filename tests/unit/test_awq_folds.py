"""AWQ's folds and statistics: a fold changes nothing, all that read a norm are found, padding is in no sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from awq_models import FAMILIES, config_of, decoder, logits, samples
from burnish.compress import awq_layer, fold
from burnish.compress.awq_stream import enter, readers, through
from burnish.compress.fold import apply_fold, folds_of
from burnish.compress.gram import Gram, diagonal_blocks, loss
from burnish.compress.samples import Samples
from burnish.techniques import awq

SMALL = awq.Config(group=32, ratios=8)
families = pytest.mark.parametrize("name", FAMILIES)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_gram_matrix_is_all_that_the_error_needs() -> None:
    x, change = drawn(53, 32), drawn(7, 32, seed=1)
    gram = Gram(32)
    for rows in x.split((20, 1, 32)):
        gram.add(rows)
    wanted = (x.double() @ change.double().t()).square().sum(1).mean()
    assert loss(change, gram.mean) == pytest.approx(float(wanted), rel=1e-5)
    assert torch.allclose(gram.magnitude, x.abs().mean(0), rtol=1e-6)
    own = change.view(7, 2, 16)[:, 1] @ diagonal_blocks(gram.mean, 2)[1]
    alone = (x[:, 16:].double() @ change[:, 16:].double().t()).square().mean(0)
    assert torch.allclose((own * change[:, 16:]).sum(1).double(), alone, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "mistral"])
def test_padding_enters_no_statistic(name: str) -> None:
    """Right or left, one token or another in the padding: the sums of the layers are those of the rows alone."""
    model, own = decoder(name), samples(name)
    left = Samples(own.ids.clone(), own.mask.flip(1))
    left.ids[left.mask] = own.ids[own.mask]
    left.ids[~left.mask] = 5
    alone = [Samples(ids[None, mask], mask[None, mask]) for ids, mask in zip(own.ids, own.mask, strict=True)]
    found = []
    for batches in (enter(model, own, 2), enter(model, left, 4), [one for row in alone for one in enter(model, row)]):
        for number, block in enumerate(model.layers):
            grams = awq_layer.gather(model, number, block, batches)
        found.append(grams)
    for matrix, wanted in found[2].items():
        for expert, gram in enumerate(wanted):
            for other in found[:2]:
                assert other[matrix][expert].tokens == gram.tokens
                scale = wanted[expert].total.abs().max()
                assert (other[matrix][expert].total - gram.total).abs().max() <= 1e-5 * scale
    tokens = own.tokens * (model.shape.topk or 1)
    assert sum(gram.tokens for gram in found[0]["mlp.down"]) == tokens


@families
def test_folds_leave_the_model_as_it_is(name: str) -> None:
    """Any scale: logits within what rounding of float32 explains, grouped value heads and routers included."""
    model, own = decoder(name), samples(name)
    wanted = logits(model, own)
    draw = torch.Generator().manual_seed(7)
    for block in model.layers:
        for one in folds_of(model.shape):
            experts = fold.experts_of(block, one.matrices[0])
            source = block.get_submodule(one.source).weight
            channels = len(source) // (2 * experts) if experts > 1 and source.dim() == 2 else len(source)
            shape = (experts, channels) if experts > 1 and source.dim() == 2 else (channels,)
            before = source.clone()
            apply_fold(block, one, torch.exp2(torch.randn(shape, generator=draw)))
            assert not torch.equal(source, before)
    apart = (logits(model, own) - wanted).abs().max()
    assert apart <= 5e-6 * wanted.abs().max()


@families
def test_whoever_reads_a_norm_is_found_by_running(name: str) -> None:
    model, own = decoder(name), samples(name)
    (batch,) = enter(model, own, len(own.ids))
    for number, block in enumerate(model.layers):
        for one in folds_of(model.shape):
            if one.source.endswith("norm"):
                assert readers(model, number, block, one.source, batch) == set(one.readers)
        batch = batch._replace(states=through(model, number, block, batch))


def test_a_reader_that_the_fold_forgets_stops_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = fold.Fold("mlp_norm", ("mlp.up",))
    monkeypatch.setattr(awq_layer, "folds_of", lambda shape: (*fold.ATTENTION, forgotten))
    with pytest.raises(RuntimeError, match=r"layers\.0\.mlp_norm is read by \['mlp\.router', 'mlp\.up'\]"):
        awq.search(SMALL, decoder("mixtral"), samples("mixtral"))


def test_a_fold_that_is_none_is_seen_before_anything_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through gelu nothing can be folded."""
    through_gelu = (*fold.folds_of(config_of("gpt2")), fold.Fold("mlp.up", ("mlp.down",)))
    monkeypatch.setattr(awq_layer, "folds_of", lambda shape: through_gelu)
    with pytest.raises(RuntimeError, match=r"layers\.0: its folds change what it gives"):
        awq.search(SMALL, decoder("gpt2"), samples("gpt2"))


@pytest.mark.sabotage
def test_a_router_that_keeps_its_weights_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    test_folds_leave_the_model_as_it_is("mixtral")
    monkeypatch.setattr(fold, "ROUTED", (fold.Fold("mlp_norm", ("mlp.up",)), fold.ROUTED[1]))
    with pytest.raises(AssertionError):
        test_folds_leave_the_model_as_it_is("mixtral")
    with pytest.raises(AssertionError):
        test_whoever_reads_a_norm_is_found_by_running("mixtral")


@pytest.mark.sabotage
def test_value_heads_in_the_order_of_query_heads_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    test_folds_leave_the_model_as_it_is("llama")
    monkeypatch.setattr(fold, "widened", lambda scale, block, one: scale.repeat(fold.repeats(block, one)[0]))
    with pytest.raises(AssertionError):
        test_folds_leave_the_model_as_it_is("llama")


@pytest.mark.sabotage
def test_padding_in_a_statistic_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    test_padding_enters_no_statistic("llama")
    right = awq_layer.watching
    monkeypatch.setattr(
        awq_layer,
        "watching",
        lambda block, names, mask, watch: right(block, names, lambda: torch.ones_like(mask()), watch),
    )
    with pytest.raises(AssertionError):
        test_padding_enters_no_statistic("llama")
