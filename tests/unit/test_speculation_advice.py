"""Advice on a draft, by hand: what pays, from which acceptance and up to which cost, and how sure that is."""

from __future__ import annotations

import pytest

from burnish.errors import UserError
from burnish.serve.sampling import Sampling
from burnish.serve.speculative.advice import Costs, Stood, advise, speed
from burnish.serve.speculative.advice_text import lines, verdict
from burnish.serve.speculative.prompts import cut
from burnish.serve.speculative.speculator import Counts
from burnish.serve.speculative.trial import Apart, Found, Text, apart, stood_of
from burnish.speculation import speedup

LENGTHS = (1, 2, 5)


def costs(draft: float, verify: float, rows: int = 1, step: float = 0.02) -> Costs:
    """A guess and a step that verifies, in plain steps, whatever their number."""
    return Costs(rows, step, {k: k * draft * step for k in LENGTHS}, dict.fromkeys(LENGTHS, verify * step))


def stood(acceptance: float, tried: int = 10_000) -> Stood:
    return Stood([tried] * 5, [round(acceptance * tried)] * 5)


@pytest.mark.parametrize(("acceptance", "draft", "verify"), [(0.2, 0.1, 1.0), (0.8, 0.1, 1.3), (0.5, 0.3, 1.1)])
def test_a_draft_that_always_guesses_is_priced_by_the_formula(acceptance, draft, verify):
    for length in LENGTHS:
        wanted = speedup(acceptance, length, draft, verify)
        assert speed(stood(acceptance), costs(draft, verify), length) == pytest.approx(wanted)
    best = max(LENGTHS, key=lambda length: speedup(acceptance, length, draft, verify))
    gain = speedup(acceptance, best, draft, verify)
    made = advise(stood(acceptance), costs(draft, verify))
    assert (made.length, made.speedup) == ((best, pytest.approx(gain)) if gain >= 1.03 else (0, 1.0))


def check_edges(acceptance: float, draft: float, verify: float) -> None:
    """The named check: at the acceptance and at the cost that are said, nothing is won and nothing lost."""
    made = advise(stood(acceptance), costs(draft, verify))
    assert made.least is not None
    assert made.dearest is not None
    assert speed(stood(made.least), costs(draft, verify), made.tried) == pytest.approx(1, abs=1e-3)
    assert max(speed(stood(acceptance), costs(made.dearest, verify), k) for k in LENGTHS) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("acceptance", "draft", "verify"), [(0.3, 0.4, 1.2), (0.7, 0.2, 1.1)])
def test_what_would_have_to_change_is_where_it_begins_to_pay(acceptance, draft, verify):
    check_edges(acceptance, draft, verify)


def check_off() -> None:
    """The named check: a cheap draft is left off where verifying costs more than it gives."""
    assert advise(stood(0.3), costs(0.1, 1.6)).length == 0


def test_verification_can_cost_more_than_guesses_give():
    check_off()


@pytest.mark.sabotage
def test_sabotage_verification_is_taken_for_free(monkeypatch):
    monkeypatch.setattr(Costs, "verify", lambda self, length: 1.0)
    with pytest.raises(AssertionError):
        check_off()


def test_no_acceptance_is_enough_where_a_round_costs_more_than_all_it_could_give():
    made = advise(stood(0.99), costs(1.2, 1.5))
    assert (made.length, made.least) == (0, None)
    assert verdict(made, stood(0.99)).startswith("1 row: does not pay whatever is accepted, unless a guess costs under")
    made = advise(stood(0.1), costs(0.01, 9.0))
    assert made.dearest is None
    assert "however cheap a guess" in verdict(made, stood(0.1))


def test_a_look_up_that_finds_nothing_costs_a_plain_step():
    """In a tenth of the rounds there is a guess, always right, of 2 tokens for 1.5 steps: 1.2 tokens for 1.05 steps."""
    seen = Stood([100, 100], [100, 100], offered=0.1)
    assert speed(seen, costs(0.0, 1.5), 2) == pytest.approx(1.2 / 1.05)
    made = advise(seen, costs(0.0, 1.5))
    assert made.length == 5
    counts = Counts(tried_at={0: 10, 1: 6}, stood_at={0: 6, 1: 3})
    assert stood_of(counts, 49, free=True) == Stood([10, 6], [6, 3], 0.25)
    assert stood_of(counts, 49, free=False).offered == 1.0
    assert stood_of(Counts(), 5, free=True).guesses == 0


def test_few_guesses_are_not_called_sure():
    many, few = (advise(stood(0.6, tried), costs(0.1, 1.2)) for tried in (10_000, 6))
    assert (many.pays, many.sure, few.pays, few.sure) == (True, True, True, False)
    assert few.low < many.low < many.speedup < many.high < few.high
    assert "give more --prompts" in verdict(few, stood(0.6, 6))


def test_the_table_says_fewer_rows_where_they_would_do():
    seen = stood(0.6)
    advice = [advise(seen, costs(0.1, 1.2, 1)), advise(seen, costs(0.1, 3.0, 8))]
    printed = "\n".join(lines(Found(seen, advice, 100, [Apart(1, 6, 3e-6)])))
    assert "fewer rows at once than 8 would do: it pays at 1" in printed
    said = "1 text differs with the draft: text 2 first, at token 7, the two tokens are 3e-06 apart in log probability"
    assert said in printed


def test_flt_107_the_first_token_that_differs_is_told_with_the_gap_of_its_scores():
    plain = Text((4, 5, 6), ((-0.1, {4: -0.1, 9: -3.0}), (-0.7, {5: -0.7, 7: -0.70001}), (-0.2, {6: -0.2, 1: -2.0})))
    other = Text((4, 7, 1), ())
    (found,) = apart([plain, plain], [plain, other], Sampling())
    assert (found.text, found.place) == (1, 1)
    assert found.gap == pytest.approx(1e-5)
    assert apart([plain], [other], Sampling(temperature=1.0)) == []
    assert apart([plain], [Text((4, 11), ())], Sampling())[0].gap is None


def test_prompts_are_cut_from_all_of_the_texts(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcdefghij" * 100, encoding="utf-8")
    letters = lambda text: tuple(map(ord, text))  # noqa: E731
    found = cut(str(path), letters, 5, 4)
    assert [len(one) for one in found] == [5] * 4
    assert len(cut(str(path), letters, 5, 100)) == 25
    path.write_text("ab", encoding="utf-8")
    assert cut(str(path), letters, 5, 4) == [(97, 98)]
    with pytest.raises(UserError, match="no text has a token"):
        cut(str(path), lambda text: (), 5, 4)
