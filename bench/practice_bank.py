"""What holds of the practice test's questions: bench/results/practice_bank.json, and practice_reader.json where one answered.

`--paper FILE` writes the questions without the key. The letters that a reader gives to them stand in
bench/practice_solver.yaml: `date`, `reader` ("a reader without the key") and `answers`, a letter for each code.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import yaml

from burnish.practice import bank
from burnish.practice.question import LETTERS, Question
from burnish.records import write_text
from record import record

SOLVER = Path(__file__).parent / "practice_solver.yaml"


def order(question: Question) -> list[int]:
    """The option at each letter of the paper: a function of the question alone, so that other questions move nothing."""
    return Random(f"paper {question.id}").sample(range(len(LETTERS)), len(LETTERS))


def code(question: Question) -> str:
    """What the paper calls a question: names of questions may tell the answer."""
    return hashlib.sha256(question.id.encode()).hexdigest()[:6]


def paper(questions: Sequence[Question]) -> str:
    """The questions without key, reasons and sources, in an order of chance."""
    parts = []
    for question in Random("paper").sample(list(questions), len(questions)):
        rows = [f"{letter}. {question.options[k].text}" for letter, k in zip(LETTERS, order(question), strict=True)]
        parts.append("\n".join((f"[{code(question)}] {question.stem}", *rows)))
    return "\n\n".join(parts) + "\n"


def structure(questions: Sequence[Question]) -> dict[str, Any]:
    """Counts and shares; shares are in percent."""
    count = len(questions)
    places = Counter(question.answer for question in questions)
    words = {q.id: set(re.findall(r"[a-z0-9]+", q.stem.lower())) for q in questions}
    alike = max(len(words[a.id] & words[b.id]) / len(words[a.id] | words[b.id]) for a, b in combinations(questions, 2))
    longest = sum(
        len(q.options[q.answer].text) > max(len(o.text) for o in q.options if o is not q.options[q.answer])
        for q in questions
    )
    return {
        "questions": count,
        "subjects": len({question.subject for question in questions}),
        "fewest_of_a_subject": min(Counter(question.subject for question in questions).values()),
        "key_place_least_percent": 100 * min(places[k] for k in range(len(LETTERS))) / count,
        "key_place_most_percent": 100 * max(places[k] for k in range(len(LETTERS))) / count,
        "right_is_longest_percent": 100 * longest / count,
        "most_alike_percent": 100 * alike,
        "options_without_reason": sum(not option.why for q in questions for option in q.options),
        "claims_unknown": sum(question.claim not in bank.subjects() for question in questions),
    }


def reader(questions: Sequence[Question], path: Path) -> dict[str, Any]:
    """How a reader without the key answered: the share of questions answered otherwise, and their names."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    answers = content["answers"]
    read = {q: answers[code(q)] for q in questions if code(q) in answers}
    otherwise = [
        question.id for question, said in read.items() if order(question)[LETTERS.index(said)] != question.answer
    ]
    return {
        "date": str(content["date"]),
        "reader": content["reader"],
        "answered": len(read),
        "unread": len(questions) - len(read),
        "disagreement_percent": 100 * len(otherwise) / max(1, len(read)),
        "otherwise": otherwise,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paper", type=Path, help="write the questions without the key, and measure nothing")
    given = parser.parse_args()
    all_questions = bank.shipped().questions
    if given.paper:
        write_text(given.paper, paper(all_questions))
    else:
        values = structure(all_questions)
        print(record("practice_bank", values), values)
        if SOLVER.is_file():
            values = reader(all_questions, SOLVER)
            print(record("practice_reader", values), values)
