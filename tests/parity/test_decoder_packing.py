"""Documents packed into one row against the same documents alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from llama_pair import BASE, pair

from burnish.models import decoder
from burnish.models.attention import Pattern, Run, packed_runs

LENGTH = 16
SEGMENTS = ((16,), (16,), (5, 8, 3), (16,), (1, 15))


def packed_ids() -> torch.Tensor:
    return torch.randint(BASE.vocab, (len(SEGMENTS), LENGTH), generator=torch.Generator().manual_seed(3))


def loss_sum(model, ids, segments=None):
    """Next-token loss summed over labels that lie in the same piece."""
    logits = model.logits(model(ids, segments=segments))
    total = logits.new_zeros(())
    for row, pieces in enumerate(segments or ((ids.shape[1],),) * len(ids)):
        start = 0
        for piece in pieces:
            part = slice(start, start + piece)
            total = total + F.cross_entropy(logits[row, part][:-1], ids[row, part][1:], reduction="sum")
            start += piece
    return total


def alone(model, ids):
    """Every piece as a batch of its own: (hidden of each, summed loss)."""
    hidden, losses = [], []
    for row, pieces in zip(ids, SEGMENTS, strict=True):
        for piece in row.split(list(pieces)):
            hidden.append(model(piece[None])[0])
            losses.append(loss_sum(model, piece[None]))
    return hidden, torch.stack(losses).sum()


def leak(model) -> float:
    """How far the last piece of row 2 moves when the first piece of that row changes."""
    ids = packed_ids()
    before = model(ids, segments=SEGMENTS)[2, 13:]
    ids[2, :5] = (ids[2, :5] + 1) % BASE.vocab
    return (model(ids, segments=SEGMENTS)[2, 13:] - before).abs().max().item()


@torch.no_grad()
def test_flt_043_packed_documents_do_not_see_each_other():
    model, _ = pair(BASE)
    assert leak(model) == 0.0
    packed, (separate, _) = model(packed_ids(), segments=SEGMENTS), alone(model, packed_ids())
    pieces = [p for row, sizes in zip(packed, SEGMENTS, strict=True) for p in row.split(list(sizes))]
    for found, wanted in zip(pieces, separate, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_flt_044_packed_loss_and_gradients_equal_the_sum_of_documents():
    model, _ = pair(BASE)
    packed = loss_sum(model, packed_ids(), SEGMENTS)
    packed.backward()
    packed_grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    _, separate = alone(model, packed_ids())
    separate.backward()
    torch.testing.assert_close(packed, separate, rtol=1e-5, atol=0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(packed_grads[name], parameter.grad, rtol=1e-3, atol=1e-3, msg=name)


@torch.no_grad()
def test_rows_that_are_one_piece_equal_unpacked_rows():
    model, _ = pair(BASE)
    ids = packed_ids()
    assert torch.equal(model(ids, segments=((LENGTH,),) * len(ids)), model(ids))


def test_neighbouring_whole_rows_share_a_run():
    runs = packed_runs(SEGMENTS, LENGTH)
    assert runs[0] == Run(0, 2, 0, LENGTH)
    assert runs[1:4] == (Run(2, 3, 0, 5), Run(2, 3, 5, 13), Run(2, 3, 13, 16))
    assert runs[4:] == (Run(3, 4, 0, LENGTH), Run(4, 5, 0, 1), Run(4, 5, 1, LENGTH))


@pytest.mark.parametrize("segments", [((16,),) * 4, ((16,),) * 4 + ((15,),), ((16,),) * 4 + ((16, 0),)])
def test_pieces_that_do_not_fill_their_rows_are_refused(segments):
    model, _ = pair(BASE)
    with pytest.raises(ValueError, match="segments"):
        model(packed_ids(), segments=segments)


def test_packed_rows_take_no_mask():
    model, _ = pair(BASE)
    with pytest.raises(ValueError, match="mask"):
        model(packed_ids(), segments=SEGMENTS, mask_BS=torch.ones(len(SEGMENTS), LENGTH, dtype=torch.bool))


@pytest.mark.sabotage
@torch.no_grad()
def test_packing_check_notices_attention_across_documents(monkeypatch):
    model, _ = pair(BASE)
    right = decoder.attend
    monkeypatch.setattr(decoder, "attend", lambda q, k, v, pattern: right(q, k, v, Pattern()))
    assert leak(model) > 1e-2  # positions still restart at each document, and that alone does not help
