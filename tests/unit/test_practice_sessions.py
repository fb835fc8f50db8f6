"""Tests as they are drawn, taken and kept: no repetition, weights, seeds, scores, time, and a file that is never lost."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import UserError
from burnish.practice import bank, draw, forms, progress, session
from burnish.practice.feedback import feedback
from burnish.practice.question import LETTERS

BANK = bank.shipped()
SEEDS = st.integers(0, 2**31 - 1)


def subjects(posed: tuple[draw.Posed, ...]) -> Counter[str]:
    found = [BANK.find(one.id) for one in posed]
    return Counter(question.subject for question in found if question is not None)


def whole(posed: tuple[draw.Posed, ...]) -> bool:
    """No question twice, and each with its four options once."""
    return len({one.id for one in posed}) == len(posed) and all(sorted(one.order) == [0, 1, 2, 3] for one in posed)


@given(SEEDS, st.sampled_from(list(BANK.subjects())))
@settings(max_examples=30, deadline=None)
def test_a_short_set_is_six_of_its_subject(seed: int, subject: str) -> None:
    posed = draw.short(BANK, subject, seed)
    assert whole(posed)
    assert subjects(posed) == {subject: draw.SHORT}
    assert posed == draw.short(BANK, subject, seed)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_a_mixed_test_has_twelve_subjects(seed: int) -> None:
    posed = draw.mixed(BANK, seed)
    assert whole(posed)
    assert len(posed) == draw.MIXED == len(subjects(posed))
    assert posed == draw.mixed(BANK, seed)


@given(SEEDS, SEEDS)
@settings(max_examples=15, deadline=None)
def test_full_tests_follow_the_weights_and_share_nothing_whatever_the_seeds(one: int, other: int) -> None:
    first, second = draw.full(BANK, 1, one), draw.full(BANK, 2, other)
    weights = {name: subject.weight for name, subject in BANK.subjects().items()}
    assert whole(first + second)
    assert subjects(first) == subjects(second) == weights
    assert {posed.id for posed in first} == {posed.id for posed in draw.full(BANK, 1, other)}


def test_seeds_shuffle_questions_and_options() -> None:
    drawn = [draw.mixed(BANK, seed) for seed in range(40)]
    assert len(set(drawn)) == len(drawn)
    orders = Counter(posed.order for one in drawn for posed in one)
    assert len(orders) == 24
    absent = Counter(name for one in drawn for name in BANK.subjects() if name not in subjects(one))
    assert absent["mapping"] < max(absent.values())  # the heaviest is seldom the one that is left out


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 200))
def test_shares_add_up_and_are_within_one_of_the_weight(weights: dict[str, int], total: int) -> None:
    found = draw.shares(weights, total)
    assert sum(found.values()) == total
    whole = sum(weights.values())
    assert all(abs(found[name] - weights[name] * total / whole) < 1 for name in weights)


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="--subject zeroo: did you mean 'zero'"):
        draw.short(BANK, "zeroo", 0)
    with pytest.raises(UserError, match="--full 3: use 1 or 2"):
        draw.full(BANK, 3, 0)
    with pytest.raises(UserError, match="nothing was answered wrong so far"):
        forms.session(BANK, progress.Kept(), "wrong", forms.Asked())


def taken(right: list[bool], form: str = "mixed", timed: bool = False) -> session.Session:
    """A session in which these answers were given, each in two seconds."""
    made = forms.session(BANK, progress.Kept(), form, forms.Asked(seed=5, timed=timed))
    for hit in right:
        number = len(made.answers)
        answer = session.question(made, BANK, number).answer
        place = made.posed[number].order.index(answer)
        made = session.answered(made, place if hit else (place + 1) % 4, 2.0)
    return made


@given(st.lists(st.booleans(), max_size=12))
@settings(max_examples=40, deadline=None)
def test_scores_count_what_was_right_by_subject(right: list[bool]) -> None:
    made = taken(right)
    found = session.score(made, BANK)
    assert (found.right, found.asked) == (sum(right), len(right))
    assert sum(hit for hit, _ in found.subjects.values()) == sum(right)
    assert all(asked == 1 for _, asked in found.subjects.values())
    assert (made.current is None) == (len(right) == 12)


def test_feedback_names_letters_as_shown() -> None:
    made = taken([True, False])
    for number, right in enumerate((True, False)):
        asked = session.question(made, BANK, number)
        said = feedback(asked, made, number)
        assert said.right is right
        shown = {reason.letter: reason for reason in said.reasons}
        assert list(shown) == list(LETTERS)
        assert shown[said.answer].text == asked.options[asked.answer].text
        assert [letter for letter in shown if shown[letter].right] == [said.answer]
        assert said.chosen is not None
        assert shown[said.chosen].text == asked.options[made.answers[number].choice or 0].text
        assert said.verdict.startswith("Right: " if right else "Wrong: you chose ")


@pytest.mark.sabotage
def test_options_that_count_as_in_the_bank_and_not_as_shown_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw.Posed, "__getattribute__", straight)
    with pytest.raises(AssertionError):
        assert session.score(taken_by_letter(), BANK).right == 12


def straight(posed: draw.Posed, name: str) -> object:
    """A break: whatever was shuffled, the order is that of the bank."""
    return (0, 1, 2, 3) if name == "order" else object.__getattribute__(posed, name)


def taken_by_letter() -> session.Session:
    """A session answered right by the letters that a person sees, which the drawn order decides."""
    made = forms.session(BANK, progress.Kept(), "mixed", forms.Asked(seed=5))
    drawn = [dict(posed.model_dump())["order"] for posed in made.posed]
    for number, order in enumerate(drawn):
        made = session.answered(made, order.index(session.question(made, BANK, number).answer), 1.0)
    return made


def test_letters_that_a_person_sees_are_scored() -> None:
    assert session.score(taken_by_letter(), BANK).right == 12


def test_time_that_runs_out_ends_the_test_and_only_answering_counts() -> None:
    made = taken([True, True], timed=True)
    assert made.limit == 12 * session.SECONDS
    assert made.left == made.limit - 4.0
    late = session.answered(made, 0, made.left + 1)
    assert late.current is None
    assert session.score(late, BANK).asked == 12
    assert session.score(late, BANK).right == 2
    assert late.left == 0.0
    assert feedback(session.question(late, BANK, 2), late, 2).verdict.startswith("Out of time. The answer is ")
    assert session.answered(made, None, 10.0).current is None


def test_progress_is_kept_goes_on_and_asks_wrong_ones_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "practice.json"
    made = taken([True, False, False])
    for count in range(4):
        part = made.model_copy(update={"answers": made.answers[:count]})
        progress.record(path, BANK, part, min(count, 1))
    kept = progress.load(path)[0].of(BANK)
    assert kept.wrong == (made.posed[1].id, made.posed[2].id)
    assert forms.session(BANK, kept, "mixed", forms.Asked()) == made
    assert forms.session(BANK, kept, "mixed", forms.Asked(fresh=True)).answers == ()
    assert forms.session(BANK, kept, "short zero", forms.Asked()).answers == ()
    again = forms.session(BANK, kept, "wrong", forms.Asked())
    assert {posed.id for posed in again.posed} == set(kept.wrong)
    answer = session.question(again, BANK, 0).answer
    again = session.answered(again, again.posed[0].order.index(answer), 1.0)
    progress.record(path, BANK, again, 1)
    assert progress.load(path)[0].of(BANK).wrong == tuple(set(kept.wrong) - {again.posed[0].id})


def test_a_test_that_is_done_is_counted_and_open_no_more(tmp_path: Path) -> None:
    path = tmp_path / "practice.json"
    progress.record(path, BANK, taken([True] * 6 + [False] * 6), 12)
    kept = progress.load(path)[0].of(BANK)
    assert kept.open == {}
    (done,) = kept.finished
    assert (done.form, done.right, done.asked, done.seconds) == ("mixed", 6, 12, 24.0)


def test_a_bank_that_has_changed_begins_anew(tmp_path: Path) -> None:
    made = taken([True])
    kept = progress.Kept(open={"mixed": made})
    fewer = bank.Bank("shipped", tuple(q for q in BANK.questions if q.id != made.posed[5].id))
    assert progress.unfinished(kept, "mixed", BANK) == made
    assert progress.unfinished(kept, "mixed", fewer) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"banks": {"shipped": {"wrong": 3}}}', b"[]"])
def test_a_damaged_file_is_set_aside_and_never_lost(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "practice.json"
    for number in itertools.count(1):
        path.write_bytes(content)
        found, said = progress.load(path)
        assert found == progress.Progress()
        assert said is not None
        assert said.startswith(f"{path}: damaged (")
        assert said.endswith(f"set aside as practice.json.damaged-{number}, beginning anew")
        assert "\n" not in said
        assert not path.exists()
        if number == 2:
            break
    assert sorted(p.read_bytes() for p in tmp_path.iterdir()) == [content, content]


def test_where_progress_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert progress.place({"XDG_STATE_HOME": "/var/s"}) == Path("/var/s/burnish/practice.json")
    assert progress.place({}) == tmp_path / ".local/state/burnish/practice.json"
    assert progress.place({"XDG_STATE_HOME": "not/absolute"}) == progress.place({})
