"""Our logits, gradients and greedy tokens against transformers' Llama with the same weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from llama_pair import BASE, LENGTHS, SHAPES, batch, pair, real_prompts, their_logits

from burnish.config import ModelConfig
from burnish.models import decoder, layers, rotary
from burnish.models.attention import Pattern
from burnish.models.cache import KVCache
from burnish.serve.generate import generate, unpadded
from burnish.serve.sampling import Sampling
from burnish.tensors import links

CLOSE = 1e-4
shapes = pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())
sides = pytest.mark.parametrize("side", ["left", "right"])


def largest_difference(config: ModelConfig, side: str) -> float:
    ours, theirs = pair(config)
    ids, mask = batch(config, side)
    found, wanted = ours.logits(ours(ids, mask_BS=mask)), their_logits(theirs, ids, mask)
    return (found - wanted)[mask].abs().max().item()


@shapes
@torch.no_grad()
def test_logits_equal_transformers(config):
    ours, theirs = pair(config)
    ids, _ = batch(config)
    wanted = their_logits(theirs, ids)
    assert wanted.abs().max() > 1  # logits of a size at which the bound below says something
    torch.testing.assert_close(ours.logits(ours(ids)), wanted, rtol=0, atol=CLOSE)


@shapes
@sides
@torch.no_grad()
def test_padded_logits_equal_transformers(config, side):
    assert largest_difference(config, side) <= CLOSE


@shapes
@torch.no_grad()
def test_logits_from_a_cache_equal_transformers(config):
    """A whole read, then a piece of several tokens, then single ones."""
    ours, theirs = pair(config)
    ids, _ = batch(config)
    cache = KVCache(config, len(ids), ids.shape[1])
    parts = [ours.logits(ours(part, cache=cache)) for part in ids.split([6, 4, 1, 1, 5], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), their_logits(theirs, ids), rtol=0, atol=CLOSE)
    assert cache.used == ids.shape[1]
    assert cache.count_B.tolist() == [ids.shape[1]] * len(ids)


@sides
@torch.no_grad()
def test_flt_099_padding_on_either_side_then_cached_steps(side):
    ours, theirs = pair(BASE)
    ids, mask = batch(BASE, side)
    more = torch.randint(BASE.vocab, (len(ids), 3), generator=torch.Generator().manual_seed(5))
    cache = KVCache(BASE, len(ids), ids.shape[1] + 3)
    ours(ids, mask_BS=mask, cache=cache)
    found = torch.cat([ours.logits(ours(token, cache=cache)) for token in more.split(1, dim=1)], 1)
    for row, prompt in enumerate(real_prompts(ids, mask)):
        alone = torch.cat((torch.tensor(prompt), more[row]))[None]
        torch.testing.assert_close(found[row], their_logits(theirs, alone)[0, -3:], rtol=0, atol=CLOSE)


@sides
@torch.no_grad()
def test_flt_097_a_row_keeps_its_logits_beside_longer_rows(side):
    ours, _ = pair(BASE)
    ids, mask = batch(BASE, side)
    together = ours.logits(ours(ids, mask_BS=mask))
    for row, prompt in enumerate(real_prompts(ids, mask)):
        alone = ours.logits(ours(torch.tensor([prompt])))[0]
        torch.testing.assert_close(together[row][mask[row]], alone, rtol=0, atol=CLOSE)


@sides
@torch.no_grad()
def test_flt_098_the_content_of_pads_does_not_matter(side):
    ours, _ = pair(BASE)
    ids, mask = batch(BASE, side)
    changed = ids.where(mask, (ids + 7) % BASE.vocab)
    first, second = (ours(x, mask_BS=mask)[mask] for x in (ids, changed))
    assert torch.equal(first, second)


@shapes
def test_gradients_equal_transformers(config):
    ours, theirs = pair(config)
    ids, _ = batch(config)
    for logits in (ours.logits(ours(ids)), their_logits(theirs, ids)):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    wanted = dict(theirs.named_parameters())
    names = {link.ours[0]: link.theirs[0] for link in links(config)}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, wanted[names[name]].grad, rtol=1e-4, atol=1e-5, msg=name)


@shapes
@torch.no_grad()
def test_greedy_tokens_equal_transformers(config):
    ours, theirs = pair(config)
    ids, mask = batch(config, "left")
    wanted = theirs.generate(ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=32, pad_token_id=0)
    options = Sampling(max_new_tokens=32)
    prompts = real_prompts(ids, mask)
    together = generate(ours, prompts, options)
    assert together == wanted[:, ids.shape[1] :].tolist()
    assert together == [generate(ours, [prompt], options)[0] for prompt in prompts]


@sides
def test_flt_099_a_padded_batch_becomes_prompts(side):
    ids, mask = batch(BASE, side)
    prompts = unpadded(ids, mask)
    assert [len(prompt) for prompt in prompts] == list(LENGTHS)
    assert prompts == real_prompts(ids, mask)


def _wrong_rotary(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rotary._turn
    monkeypatch.setattr(
        rotary, "_turn", lambda x, cos, sin: right(x, cos, -sin) if x.shape[2] == 2 else right(x, cos, sin)
    )


def _no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    right = decoder.attend
    monkeypatch.setattr(decoder, "attend", lambda q, k, v, pattern: right(q, k, v, Pattern()))


def _heads_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key heads repeated 0 1 0 1 .. in place of 0 0 .. 1 1 .."""
    right = decoder.attend

    def attend(q, k, v, pattern):
        group = q.shape[2] // k.shape[2]
        return right(q, k.repeat(1, 1, group, 1), v.repeat(1, 1, group, 1), pattern)

    monkeypatch.setattr(decoder, "attend", attend)


def _norm_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        layers.RMSNorm, "forward", lambda self, x: F.layer_norm(x, x.shape[-1:], self.weight, None, self.eps)
    )


def _gate_on_the_wrong_side(monkeypatch: pytest.MonkeyPatch) -> None:
    right = decoder.gated_silu
    monkeypatch.setattr(decoder, "gated_silu", lambda gate, up: right(up, gate))


@pytest.mark.sabotage
@pytest.mark.parametrize(
    "damage", [_wrong_rotary, _no_mask, _heads_in_turn, _norm_without_root, _gate_on_the_wrong_side]
)
@torch.no_grad()
def test_parity_notices(damage, monkeypatch):
    assert largest_difference(BASE, "left") <= CLOSE
    damage(monkeypatch)
    assert largest_difference(BASE, "left") > 100 * CLOSE
