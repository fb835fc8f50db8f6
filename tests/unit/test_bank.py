"""The questions that ship: what holds for each, and for all of them together."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations

import pytest

from burnish.practice import bank, draw
from burnish.practice.question import LETTERS, Question

THIRTEEN = [
    *("tensor-parallel", "int8", "flash-attention", "segmentation", "pruning", "pool", "recipes"),
    *("mapping", "zero", "fp8", "speculation", "awq", "checkpointing"),
]
QUESTIONS = bank.shipped().questions
ALIKE = 0.6  # shared words of two questions over all of theirs
FEWEST = 110


def words(question: Question) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", " ".join((question.stem, *(o.text for o in question.options))).lower()))


def test_there_are_enough_and_each_is_on_one_of_the_thirteen() -> None:
    assert len(QUESTIONS) >= FEWEST
    assert list(bank.subjects()) == THIRTEEN
    assert {question.subject for question in QUESTIONS} == set(THIRTEEN)
    assert {question.claim for question in QUESTIONS} <= set(THIRTEEN)
    assert len({question.id for question in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_a_question_has_four_options_with_reasons_and_one_is_right(question: Question) -> None:
    assert len(question.options) == len(LETTERS) == len({option.text.lower() for option in question.options})
    assert 0 <= question.answer < len(LETTERS)
    reasons = [option.why for option in question.options]
    assert all(len(why) >= 15 for why in reasons)
    assert len(set(reasons)) == len(reasons)
    assert all(len(text) >= 20 for text in (question.stem, question.explanation))
    assert question.stem.endswith(("?", "."))
    assert question.source
    assert not re.search(r"\b(all|none) of the (above|others)\b", " ".join(o.text for o in question.options).lower())


def test_no_two_questions_are_nearly_the_same() -> None:
    close = [
        (one.id, other.id)
        for one, other in combinations(QUESTIONS, 2)
        if len(words(one) & words(other)) > ALIKE * len(words(one) | words(other))
    ]
    assert close == []


def test_neither_place_nor_length_gives_the_answer_away() -> None:
    places = Counter(question.answer for question in QUESTIONS)
    assert all(0.2 <= places[place] / len(QUESTIONS) <= 0.3 for place in range(len(LETTERS)))
    longest = shortest = 0
    for question in QUESTIONS:
        right, *wrong = sorted(question.options, key=lambda option: option is not question.options[question.answer])
        longest += len(right.text) > max(len(option.text) for option in wrong)
        shortest += len(right.text) < min(len(option.text) for option in wrong)
    assert longest / len(QUESTIONS) <= 0.35
    assert shortest / len(QUESTIONS) <= 0.40


def test_subjects_are_covered_by_their_weight() -> None:
    weights = {name: subject.weight for name, subject in bank.subjects().items()}
    counts = Counter(question.subject for question in QUESTIONS)
    assert sum(weights.values()) == draw.FULL
    assert all(counts[name] >= len(draw.TESTS) * weights[name] for name in weights)
    assert sorted(counts, key=lambda name: counts[name])[-1] == max(weights, key=lambda name: weights[name])


def test_pages_and_claims_that_sources_name_are_there(request: pytest.FixtureRequest) -> None:
    root = request.config.rootpath
    for question in QUESTIONS:
        for page in re.findall(r"docs/[\w/-]+\.md", question.source):
            assert (root / page).is_file(), f"{question.id}: {page}"
        for claim in re.findall(r"`burnish prove ([\w-]+)`", question.source):
            assert claim in THIRTEEN, f"{question.id}: {claim}"
