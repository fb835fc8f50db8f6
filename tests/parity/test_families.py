"""Every family against transformers: logits with both paddings, with and without a cache, packed rows, greedy tokens,
gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from families import FAMILIES, config_of, pair
from llama_pair import LENGTHS, batch, real_prompts, their_logits

from burnish.config import ModelConfig
from burnish.models import decoder, experts, rotary, view
from burnish.models.cache import KVCache
from burnish.models.decoder import Decoder
from burnish.serve.generate import generate
from burnish.serve.sampling import Sampling

CLOSE = 1e-4
families = pytest.mark.parametrize("name", FAMILIES)
sides = pytest.mark.parametrize("side", ["left", "right"])


def padded_difference(ours: Decoder, theirs: torch.nn.Module, config: ModelConfig, side: str) -> float:
    ids, mask = batch(config, side)
    found, wanted = ours.logits(ours(ids, mask_BS=mask)), their_logits(theirs, ids, mask)
    return (found - wanted)[mask].abs().max().item()


def cached_difference(ours: Decoder, theirs: torch.nn.Module, config: ModelConfig, side: str) -> float:
    """A padded read, then single tokens, against each row alone without cache."""
    ids, mask = batch(config, side)
    more = torch.randint(config.vocab, (len(ids), 9), generator=torch.Generator().manual_seed(5))
    cache = KVCache(config, len(ids), ids.shape[1] + more.shape[1])
    ours(ids, mask_BS=mask, cache=cache)
    found = torch.cat([ours.logits(ours(part, cache=cache)) for part in more.split([1, 3, 1, 1, 3], dim=1)], 1)
    worst = 0.0
    for row, prompt in enumerate(real_prompts(ids, mask)):
        alone = torch.cat((torch.tensor(prompt), more[row]))[None]
        difference = found[row] - their_logits(theirs, alone)[0, -more.shape[1] :]
        worst = max(worst, difference.abs().max().item())
    return worst


@families
@torch.no_grad()
def test_logits_equal_transformers(name):
    (ours, theirs), config = pair(name), config_of(name)
    ids, _ = batch(config)
    wanted = their_logits(theirs, ids)
    assert wanted.abs().max() > 1  # logits of a size at which the bound below says something
    torch.testing.assert_close(ours.logits(ours(ids)), wanted, rtol=0, atol=CLOSE)


@families
@sides
@torch.no_grad()
def test_padded_and_cached_logits_equal_transformers(name, side):
    assert padded_difference(*pair(name), config_of(name), side) <= CLOSE
    assert cached_difference(*pair(name), config_of(name), side) <= CLOSE


@families
@torch.no_grad()
def test_greedy_tokens_equal_transformers(name):
    (ours, theirs), config = pair(name), config_of(name)
    ids, mask = batch(config, "left")
    settings = {"do_sample": False, "max_new_tokens": 64, "pad_token_id": 0, "eos_token_id": None}
    wanted = theirs.generate(ids, attention_mask=mask.long(), **settings)[:, ids.shape[1] :].tolist()
    options = Sampling(max_new_tokens=64)
    prompts = real_prompts(ids, mask)
    assert generate(ours, prompts, options) == wanted
    assert [generate(ours, [prompt], options)[0] for prompt in prompts] == wanted


@families
@torch.no_grad()
def test_packed_rows_equal_their_pieces(name):
    ours, _ = pair(name)
    ids, _ = batch(config_of(name))
    pieces = ((17,), (3, 14), (9, 1, 7))
    found = ours(ids, segments=pieces)
    for row, lengths in enumerate(pieces):
        alone = torch.cat([ours(piece[None])[0] for piece in ids[row].split(list(lengths))])
        torch.testing.assert_close(found[row], alone, rtol=0, atol=CLOSE)


@families
def test_gradients_equal_those_of_float64(name):
    """Those written by hand against autograd's in double, and the loss's gradient against transformers'."""
    (ours, theirs), config = pair(name), config_of(name)
    ids, _ = batch(config)
    double = Decoder(config).double()
    double.load_state_dict({key: value.double() for key, value in ours.state_dict().items()})
    double.tie()

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    found = torch.autograd.grad(loss(ours.logits(ours(ids))), list(ours.parameters()))
    wide = torch.autograd.grad(loss(double.logits(double(ids))), list(double.parameters()))
    for (key, _), one, two in zip(ours.named_parameters(), found, wide, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-3, atol=1e-5, msg=key)
    wanted = torch.autograd.grad(loss(their_logits(theirs, ids)), [theirs.get_input_embeddings().weight])[0]
    torch.testing.assert_close(found[0], wanted, rtol=1e-3, atol=1e-5)


def _no_window(patch: pytest.MonkeyPatch) -> None:
    right = view.view
    patch.setattr(decoder, "view", lambda *given: right(*given[:4], 0, given[5]))


def _window_one_wider(patch: pytest.MonkeyPatch) -> None:
    right = view.view
    patch.setattr(decoder, "view", lambda *given: right(*given[:4], given[4] + 1, given[5]))


def _plain_frequencies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        rotary, "_STRETCHED", dict.fromkeys(rotary._STRETCHED, lambda frequencies, theta, scaling: frequencies)
    )


def _unnormed_heads(patch: pytest.MonkeyPatch) -> None:
    right = decoder.rotate
    patch.setattr(decoder, "rotate", lambda x, angles: right(x * 2 if x.shape[2] == 2 else x, angles))


def _last_choice_dropped(patch: pytest.MonkeyPatch) -> None:
    right = experts.choose

    def choose(*given):
        weights, choice = right(*given)
        return weights * torch.arange(weights.shape[1], 0, -1).ge(2), choice

    patch.setattr(experts, "choose", choose)


def _shares_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = experts.choose
    patch.setattr(experts, "choose", lambda logits, topk, normalise: right(logits, topk, not normalise))


def _positions_off_by_one(patch: pytest.MonkeyPatch) -> None:
    right = view.view

    def shifted(*given):
        seen = right(*given)
        return seen._replace(positions=seen.positions + 1)

    patch.setattr(decoder, "view", shifted)


def _no_bias(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decoder.Linear, "forward", lambda self, x: F.linear(x, self.weight))


DAMAGES = [
    ("mistral", _no_window),
    ("mistral", _window_one_wider),
    ("qwen2 window", _window_one_wider),
    ("llama 3", _plain_frequencies),
    ("llama yarn", _plain_frequencies),
    ("qwen3", _unnormed_heads),
    ("qwen2", _no_bias),
    ("gpt2", _no_bias),
    ("gpt2", _positions_off_by_one),
    ("mixtral", _last_choice_dropped),
    ("mixtral", _shares_forgotten),
    ("qwen3 moe", _shares_forgotten),
]


@pytest.mark.sabotage
@pytest.mark.parametrize(("name", "damage"), DAMAGES)
@torch.no_grad()
def test_parity_notices(name, damage, monkeypatch):
    assert padded_difference(*pair(name), config_of(name), "left") <= CLOSE
    damage(monkeypatch)
    assert padded_difference(*pair(name), config_of(name), "left") > 10 * CLOSE


def test_every_length_is_met():
    """Rows of the batch differ, and the windows of the shapes above are narrower than the longest."""
    assert len(set(LENGTHS)) == len(LENGTHS)
    windows = [config_of(name).window for name in FAMILIES if config_of(name).window]
    assert windows
    assert max(windows) < max(LENGTHS)
