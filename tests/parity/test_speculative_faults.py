"""What users of other engines met with drafts: a q that was not drawn by, draws that favour what both like, ends that are missed.

Each by its number in the table of reports; FLT-101 and FLT-107 are where drafts are opened and where texts are continued.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_engine import ROOMY, ids_of, make, run
from torch import Tensor

from burnish.serve import schedule
from burnish.serve.engine import Engine, Request
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.sampling import Sampling, probabilities
from burnish.serve.speculative import acceptance
from burnish.serve.speculative.draft import Asked, Guess
from burnish.serve.speculative.forced import ForcedDraft
from burnish.serve.speculative.judge import judge
from burnish.serve.speculative.model_draft import ModelDraft, _Own

TOY = torch.tensor([2.0, 1.5, 1.0, 0.5])
DRAWS = 4000
NEAR = 0.03  # over three standard deviations of a share in so many draws


def asked(options: Sampling, seed: int = 0) -> Asked:
    return Asked(schedule.Sequence([1], 1, 9), options, {}, np.random.default_rng(seed))


def shares(scores_V: Tensor, drawn_V: Tensor | None, guess: int | None = None) -> np.ndarray:
    """How often each token comes first, for guesses drawn by `drawn_V`, or one guess that nothing was drawn for."""
    one, draw, found = asked(Sampling(temperature=1.0)), np.random.default_rng(1), np.zeros(len(scores_V))
    for _ in range(DRAWS):
        if drawn_V is None:
            assert guess is not None
            made = Guess((guess,))
        else:
            token = acceptance.drawn_by(drawn_V, draw.random()) if guess is None else guess
            made = Guess((token,), (drawn_V,))
        found[judge(one, made, torch.stack([scores_V, scores_V]))[0]] += 1 / DRAWS
    return found


def check_greedy_draft() -> None:
    """The named check: a draft that takes the likeliest token leaves the target's distribution as it is."""
    wanted = TOY.softmax(0).numpy()
    for guess in (0, 3):
        np.testing.assert_allclose(shares(TOY, None, guess), wanted, atol=NEAR)


def test_flt_103_a_greedy_draft_beside_a_target_that_draws() -> None:
    check_greedy_draft()


@pytest.mark.sabotage
def test_flt_103_notices_a_softmax_told_for_a_greedy_draft() -> None:
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(shares(TOY, TOY.double().softmax(0), 0), TOY.softmax(0).numpy(), atol=NEAR)


def check_marginal() -> None:
    """The named check: p = (0.6, 0.4), guesses by q = (0.4, 0.6); p comes out."""
    target_V, drawn_V = (torch.tensor(values, dtype=torch.float64) for values in ((0.6, 0.4), (0.4, 0.6)))
    np.testing.assert_allclose(shares(target_V.log(), drawn_V), target_V.numpy(), atol=NEAR)


def test_flt_104_what_both_like_does_not_come_more_often() -> None:
    check_marginal()


@pytest.mark.sabotage
def test_flt_104_notices_a_draw_from_p_where_a_guess_fell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda target_V, drawn_V: target_V)
    with pytest.raises(AssertionError):
        check_marginal()


def test_flt_105_a_guess_is_drawn_by_the_very_numbers_that_are_told() -> None:
    """Scores in bfloat16 with many near ties: what is told is float64, sums to 1, and gives the token for the same number."""
    scores_V = (torch.randn(5000, generator=torch.Generator().manual_seed(0)) / 8).bfloat16()
    options = Sampling(temperature=0.7, top_p=0.9)
    draft = ModelDraft.__new__(ModelDraft)
    draft.shared, draft.vocab = 5000, 5003
    one = asked(options)
    own = _Own(one.sequence, np.random.default_rng(7))
    drawn: list[Tensor] = []
    tokens = [draft._choose(one, own, scores_V, [], drawn) for _ in range(50)]
    again = np.random.default_rng(7)
    for token, told_V in zip(tokens, drawn, strict=True):
        assert (told_V.dtype, len(told_V)) == (torch.float64, 5003)
        assert float(told_V.sum()) == pytest.approx(1, abs=1e-12)
        assert torch.equal(told_V[:5000], probabilities(scores_V, options))
        assert token == acceptance.drawn_by(told_V, again.random())
        assert float(told_V[token]) > 0


def test_flt_106_without_sampling_a_guess_stands_where_it_is_the_likeliest_and_nowhere_else() -> None:
    """Though the draft told probabilities, and the target gives the second likeliest nearly as much."""
    scores_KV = torch.tensor([[1.0, 1.001, 0.0], [3.0, 0.0, 2.99], [0.0, 0.0, 1.0]])
    sure_V = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    greedy = asked(Sampling(temperature=0.0))
    for guess, wanted in (((1, 0), [1, 0, 2]), ((1, 2), [1, 0]), ((0, 0), [1])):
        assert judge(greedy, Guess(guess), scores_KV) == wanted
        assert judge(greedy, Guess(guess, (sure_V, sure_V)), scores_KV) == wanted


def check_end() -> None:
    """The named check: a text ends at its end token, though all guesses behind it would stand."""
    model, config = make("llama", torch.float64)
    prompt = (5, 6)
    (free,) = run(Engine(TorchRunner(model, config), ROOMY), [Request(prompt, Sampling(max_new_tokens=24))])
    written = ids_of(free)
    place = next(k for k in range(8, 24) if written[k] not in written[:k])
    engine = Engine(TorchRunner(model, config), ROOMY)
    engine.speculate(ForcedDraft({prompt: written}, 1.0, 0.0), 7)
    (found,) = run(engine, [Request(prompt, Sampling(max_new_tokens=24, eos=written[place]))])
    assert (ids_of(found), found[-1].reason) == (written[:place], "eos")


def test_flt_108_an_end_token_among_guesses_that_stand_ends_the_text() -> None:
    check_end()


@pytest.mark.sabotage
def test_flt_108_notices_an_engine_that_writes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampling, "ends", property(lambda options: frozenset()))
    with pytest.raises(AssertionError):
        check_end()
