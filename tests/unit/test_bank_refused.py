"""A person's own questions: what is read, and what is refused in one line with file, question and key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from burnish.errors import UserError
from burnish.practice import bank, draw

GOOD: dict[str, Any] = {
    "id": "mine-1",
    "subject": "our-cluster",
    "stem": "Which rank prints the loss?",
    "options": [{"text": f"rank {k}", "why": f"because of {k}"} for k in range(4)],
    "answer": "B",
    "explanation": "The last stage has it.",
    "claim": "pipeline",
    "source": "our notes",
}


def write(path: Path, *rows: Any, **top: Any) -> Path:
    path.write_text(yaml.safe_dump({"questions": list(rows), **top}), encoding="utf-8")
    return path


def changed(**values: Any) -> dict[str, Any]:
    """The good question with other values; None leaves one out."""
    return {key: value for key, value in {**GOOD, **values}.items() if value is not None}


def options(*rows: Any) -> dict[str, Any]:
    return changed(options=list(rows) + GOOD["options"][len(rows) :])


def test_own_questions_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", {k: v for k, v in GOOD.items() if k != "subject"}, subject="our-cluster")
    found = bank.read(path)
    (question,) = found.questions
    assert (question.subject, question.answer, question.claim) == ("our-cluster", 1, "pipeline")
    assert question.options[1].text == "rank 1"
    assert found.subjects()["our-cluster"].weight == 1
    assert [posed.id for posed in draw.short(found, "our-cluster", 0)] == ["mine-1"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (changed(answer="E"), "question 'mine-1', key 'answer': 'E' is none of A, B, C, D"),
        (changed(answer="AB"), "key 'answer': 'AB' is none of"),
        (changed(answer=""), "key 'answer': write a text"),
        (changed(claim="zerro"), "key 'claim': 'zerro': did you mean 'zero'?"),
        (changed(stem="  "), "key 'stem': write a text"),
        (changed(source=None), "key 'source': is missing"),
        (changed(id=None), "question 1, key 'id': is missing"),
        (changed(explanation=["x"]), "key 'explanation': write a text"),
        (changed(anwser="B"), "key 'anwser': did you mean 'answer'?"),
        (changed(options=GOOD["options"][:3]), "key 'options': there are 3; write 4, one of them right"),
        (changed(options="A or B"), "key 'options': there is no list; write 4"),
        (options({"text": "rank 0"}), "option A, key 'why': is missing"),
        (options({"text": "rank 0", "why": ""}), "option A, key 'why': write a text"),
        (options({"text": "Rank 1", "why": "x"}), "option B, key 'text': the same as another option's"),
        (options("rank 0"), "option A: write the keys text and why"),
        ("just text", "question 1: write the keys id, subject"),
    ],
)
def test_a_wrong_question_is_named(tmp_path: Path, row: Any, said: str) -> None:
    path = write(tmp_path / "mine.yaml", row)
    with pytest.raises(UserError) as refused:
        bank.read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no keys; write 'questions:'"),
        ("- a\n- b\n", "holds no keys"),
        ("questions: []\n", "key 'questions': write a list of at least one question"),
        ("qestions: []\n", "key 'qestions': did you mean 'questions'?"),
        ("questions:\n  - id: [\n", "line 3: "),
        ("questions: []\nquestions: []\n", "line 2: key 'questions' is given twice"),
        ("questions: " + "[" * 3000, ""),
        ("a: \x00", ""),
    ],
)
def test_a_file_that_is_no_bank_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as refused:
        bank.read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_example_of_the_docs_is_a_bank(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "practice.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (question,) = bank.parse("practice.md", example)
    assert (question.subject, question.claim, question.options[question.answer].text) == ("our-cluster", "mapping", "4")


def test_what_cannot_be_read_and_what_is_there_twice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: cannot be read"):
        bank.read(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"questions: \xe9")
    with pytest.raises(UserError, match=r"latin\.yaml: is no UTF-8 text"):
        bank.read(tmp_path / "latin.yaml")
    with pytest.raises(UserError, match=r"question 'mine-1', key 'id': .*mine\.yaml has one of that name"):
        bank.read(write(tmp_path / "mine.yaml", GOOD, GOOD))


def test_too_few_questions_for_a_full_length_test(tmp_path: Path) -> None:
    found = bank.read(write(tmp_path / "mine.yaml", GOOD))
    with pytest.raises(UserError, match="subject 'our-cluster' has 1 questions, 2 tests take 100"):
        draw.full(found, 1, 0)
