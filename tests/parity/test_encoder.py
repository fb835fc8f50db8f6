"""Our encoder against transformers' BERT and RoBERTa: hidden states, pooled vectors, logits, gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from encoder_pair import BASE, CLASSES, LENGTHS, SHAPES, batch, pair, their_answer

from burnish.encoders.config import EncoderConfig
from burnish.encoders.tensors import encoder_links
from burnish.models import encoder
from burnish.models.attention import Pattern
from burnish.models.encoder import first_positions

CLOSE = 1e-4
shapes = pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())
sides = pytest.mark.parametrize("side", ["left", "right"])


def our_answer(ours, config, ids, mask, types) -> list[torch.Tensor]:
    """Of a padded batch: hidden states of the real tokens of each row, or logits."""
    hidden = ours(ids, mask_BS=mask, types_BS=types)
    if config.head == "sequence":
        return list(ours.logits(hidden, first_positions(ids, mask_BS=mask)))
    given = hidden if config.head == "none" else ours.logits(hidden)
    return [row[keep] for row, keep in zip(given, mask, strict=True)]


def largest_difference(config: EncoderConfig, side: str) -> float:
    """Between a padded batch of ours and the same texts one by one in transformers."""
    ours, theirs = pair(config)
    given = batch(config, side)
    pairs = zip(our_answer(ours, config, *given), their_answer(theirs, config, *given), strict=True)
    return max((found - wanted).abs().max().item() for found, wanted in pairs)


@shapes
@torch.no_grad()
def test_whole_rows_equal_transformers(config):
    ours, theirs = pair(config)
    ids, _, types = batch(config)
    ids = torch.where(ids == config.pad, config.pad + 1, ids)
    hidden = ours(ids, types_BS=types)
    wanted = theirs(ids, attention_mask=torch.ones_like(ids), token_type_ids=types)
    found = hidden if config.head == "none" else ours.logits(hidden)
    expected = wanted.last_hidden_state if config.head == "none" else wanted.logits
    assert expected.abs().max() > 0.3  # of a size at which the bound below says something
    torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE)
    if config.head == "none" and config.pooler:
        pooled = ours.pooled(hidden, first_positions(ids))
        torch.testing.assert_close(pooled, wanted.pooler_output, rtol=0, atol=CLOSE)


@shapes
@sides
@torch.no_grad()
def test_padded_rows_equal_each_text_alone_in_transformers(config, side):
    assert largest_difference(config, side) <= CLOSE


@shapes
@torch.no_grad()
def test_a_padded_batch_equals_transformers_padded_batch(config):
    ours, theirs = pair(config)
    ids, mask, types = batch(config)
    out = theirs(ids, attention_mask=mask.long(), token_type_ids=types)
    wanted = out.last_hidden_state if config.head == "none" else out.logits
    wanted = list(wanted) if config.head == "sequence" else [w[keep] for w, keep in zip(wanted, mask, strict=True)]
    for found, expected in zip(our_answer(ours, config, ids, mask, types), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE)


@torch.no_grad()
def test_no_types_are_types_of_the_first_text():
    ours, theirs = pair(BASE)
    ids, _, types = batch(BASE)
    assert torch.equal(ours(ids), ours(ids, types_BS=types * 0))
    torch.testing.assert_close(ours(ids), theirs(ids).last_hidden_state, rtol=0, atol=CLOSE)


@sides
@torch.no_grad()
def test_the_content_of_pads_does_not_matter(side):
    ours, _ = pair(BASE)
    ids, mask, types = batch(BASE, side)
    changed = ids.where(mask, (ids + 7) % BASE.vocab)
    first, second = (ours(x, mask_BS=mask, types_BS=types)[mask] for x in (ids, changed))
    assert torch.equal(first, second)


@torch.no_grad()
def test_a_row_of_pads_alone_spoils_nothing():
    ours, _ = pair(BASE)
    ids, mask, _ = batch(BASE)
    mask[1] = False
    hidden = ours(ids, mask_BS=mask)
    assert hidden.isfinite().all()
    torch.testing.assert_close(hidden[0], ours(ids[:1])[0], rtol=0, atol=CLOSE)


def packed(config: EncoderConfig) -> tuple[torch.Tensor, tuple, list[torch.Tensor]]:
    """The rows of `batch` in two packed rows, their segments, and each text."""
    ids, mask, _ = batch(config)
    texts = [row[keep] for row, keep in zip(ids, mask, strict=True)]
    rows = torch.stack([torch.cat((texts[1], texts[2])), texts[0]])
    return rows, ((LENGTHS[1], LENGTHS[2]), (LENGTHS[0],)), [texts[1], texts[2], texts[0]]


@shapes
def test_packed_texts_equal_each_alone(config):
    ours, _ = pair(config)
    rows, segments, texts = packed(config)
    hidden = ours(rows, segments=segments)
    alone = [ours(text[None])[0] for text in texts]
    torch.testing.assert_close(hidden.flatten(0, 1), torch.cat(alone), rtol=0, atol=1e-5)
    if config.head == "sequence":
        logits = ours.logits(hidden, first_positions(rows, segments))
        separate = torch.cat([ours.logits(one[None]) for one in alone])
        torch.testing.assert_close(logits, separate, rtol=0, atol=1e-5)


@torch.no_grad()
def test_packed_texts_do_not_see_each_other():
    ours, _ = pair(BASE)
    rows, segments, _ = packed(BASE)
    before = ours(rows, segments=segments)
    rows[0, : LENGTHS[1]] = (rows[0, : LENGTHS[1]] + 1) % BASE.vocab
    assert torch.equal(ours(rows, segments=segments)[0, LENGTHS[1] :], before[0, LENGTHS[1] :])


@pytest.mark.parametrize("name", ["classes", "token classes", "odd sizes", "relu", "roberta classes"])
def test_gradients_equal_transformers(name):
    config = SHAPES[name]
    ours, theirs = pair(config)
    ids, _, types = batch(config)
    ids = torch.where(ids == config.pad, config.pad + 1, ids)  # transformers gives the padding token's row no gradient
    given = {"attention_mask": torch.ones_like(ids), "token_type_ids": types}
    hidden, out = ours(ids, types_BS=types), theirs(ids, **given)
    if config.head == "none":
        found, wanted = ours.pooled(hidden, first_positions(ids)), out.pooler_output
        losses = [(x[:, :5] * torch.arange(1.0, 6.0)).sum() for x in (found, wanted)]
    else:
        shape = (3,) if config.head == "sequence" else tuple(ids.shape)
        labels = torch.randint(len(CLASSES), shape, generator=torch.Generator().manual_seed(4)).flatten()
        scores = (ours.logits(hidden), out.logits)
        losses = [F.cross_entropy(x.flatten(0, -2), labels, reduction="sum") for x in scores]
    for loss in losses:
        loss.backward()
    wanted_parameters = dict(theirs.named_parameters())
    names = {link.ours[0]: link.theirs[0] for link in encoder_links(config)}
    for own, parameter in ours.named_parameters():
        assert parameter.grad is not None, own
        expected = wanted_parameters[names[own]].grad
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-4, msg=own)


@torch.no_grad()
def test_a_text_beyond_the_positions_is_refused():
    ours, _ = pair(SHAPES["odd sizes"])
    ours(torch.zeros(2, 31, dtype=torch.long))
    with pytest.raises(ValueError, match="positions: a text of 32 tokens, the encoder has 31"):
        ours(torch.zeros(2, 32, dtype=torch.long))
    ours(torch.zeros(1, 40, dtype=torch.long), segments=((9, 31),))
    with pytest.raises(ValueError, match="32 tokens"):
        ours(torch.zeros(1, 40, dtype=torch.long), segments=((8, 32),))


@torch.no_grad()
def test_what_a_batch_cannot_be_is_refused():
    ours, _ = pair(SHAPES["no pooler"])
    ids, mask, _ = batch(BASE)
    whole = ((17,),) * 3
    for problem, given in {
        "no mask": {"segments": whole, "mask_BS": mask},
        "segments: 2 rows": {"segments": whole[:2]},
        "sum to 17": {"segments": ((17,), (8, 8), (17,))},
    }.items():
        with pytest.raises(ValueError, match=problem):
            ours(ids, **given)
    with pytest.raises(ValueError, match="no head"):
        ours.logits(ours(ids))
    with pytest.raises(ValueError, match="no pooler"):
        ours.pooled(ours(ids), first_positions(ids))


def _causal(monkeypatch: pytest.MonkeyPatch) -> None:
    right = encoder.attend
    monkeypatch.setattr(encoder, "attend", lambda q, k, v, pattern: right(q, k, v, Pattern(causal=True)))


def _wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    right = encoder.Encoder.pooled
    monkeypatch.setattr(encoder.Encoder, "pooled", lambda self, hidden, first: right(self, hidden, first + 1))


def _no_types(monkeypatch: pytest.MonkeyPatch) -> None:
    right = encoder.Encoder.forward
    monkeypatch.setattr(
        encoder.Encoder,
        "forward",
        lambda self, ids, mask_BS, types_BS: right(self, ids, mask_BS=mask_BS),
    )


def _no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    right = encoder.attend
    monkeypatch.setattr(encoder, "attend", lambda q, k, v, pattern: right(q, k, v, Pattern(causal=False)))


@pytest.mark.sabotage
@pytest.mark.parametrize("damage", [_causal, _wrong_position, _no_types, _no_mask])
@torch.no_grad()
def test_parity_notices(damage, monkeypatch):
    assert largest_difference(SHAPES["classes"], "right") <= CLOSE
    damage(monkeypatch)
    assert largest_difference(SHAPES["classes"], "right") > 100 * CLOSE
