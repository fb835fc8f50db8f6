"""Bank: questions read from YAML files, each checked before anyone is asked it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from burnish import prove
from burnish.errors import UserError, nearest
from burnish.practice.question import LETTERS, Option, Question

HERE = "burnish.practice"
SHARED = ("subject", "claim")  # may stand once at the top of a file for all of its questions
KEYS = ("id", "subject", "stem", "options", "answer", "explanation", "claim", "source")
OPTION_KEYS = ("text", "why")


class _Words(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Every scalar is the text that was written; a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Subject:
    """What questions are about; `weight` is its share of a full-length test."""

    title: str
    weight: int = 1


@dataclass(frozen=True)
class Bank:
    """Questions of one origin. `name` tells them from others in what is kept of a person's progress."""

    name: str
    questions: tuple[Question, ...]

    def subjects(self) -> dict[str, Subject]:
        """Subjects that have questions, in the order of the table, then of the files."""
        there = dict.fromkeys(question.subject for question in self.questions)
        known = subjects()
        order = [name for name in known if name in there] + [name for name in there if name not in known]
        return {name: known.get(name, Subject(name)) for name in order}

    def find(self, identity: str) -> Question | None:
        """The question of a name, None when there is none."""
        return next((question for question in self.questions if question.id == identity), None)


@cache
def subjects() -> Mapping[str, Subject]:
    """The table of subjects, which are the claims that the practice test is about."""
    content = yaml.safe_load(resources.files(HERE).joinpath("subjects.yaml").read_text(encoding="utf-8"))
    return {name: Subject(**row) for name, row in content.items()}


def claims() -> list[str]:
    """Names that a question's `claim` may have: those of the subjects, and whatever else can be measured here."""
    return sorted({*subjects(), *prove.claims()})


def shipped() -> Bank:
    """The questions that come with the package."""
    files = sorted(resources.files(HERE).joinpath("bank").iterdir(), key=lambda file: file.name)
    return Bank("shipped", unique((file.name, list(parse(file.name, _text(file)))) for file in files))


def read(path: Path) -> Bank:
    """A person's own questions. Raises UserError naming the file, the question and the key that is wrong."""
    return Bank(str(path.resolve()), unique([(str(path), list(parse(str(path), _text(path))))]))


def _text(file: Path | Traversable) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error}); give a YAML file of questions") from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: is no UTF-8 text; give a YAML file of questions") from None


def unique(files: Iterable[tuple[str, list[Question]]]) -> tuple[Question, ...]:
    """All questions of some files. Raises UserError where two have one name."""
    seen: dict[str, str] = {}
    found: list[Question] = []
    for name, questions in files:
        for question in questions:
            if question.id in seen:
                raise UserError(f"{name}: question {question.id!r}, key 'id': {seen[question.id]} has one of that name")
            seen[question.id] = name
        found += questions
    return tuple(found)


def parse(name: str, text: str) -> Iterator[Question]:
    """Questions of one file's text; `name` is what errors call it. Raises UserError."""
    try:
        content = yaml.load(text, _Words)  # texts only: nothing is made but strings, lists and mappings
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UserError(f"{name}: {line}{error.problem or 'is no YAML'}") from None
    except (yaml.YAMLError, RecursionError):
        raise UserError(f"{name}: is no YAML that can be read") from None
    if not isinstance(content, dict):
        raise UserError(f"{name}: holds no keys; write 'questions:' and a list below it")
    _known(f"{name}: top of the file", content, (*SHARED, "questions"))
    listed = content.get("questions")
    if not isinstance(listed, list) or not listed:
        raise UserError(f"{name}: key 'questions': write a list of at least one question")
    shared = {key: content[key] for key in SHARED if key in content}
    for number, row in enumerate(listed, 1):
        if not isinstance(row, dict):
            raise UserError(f"{name}: question {number}: write the keys {', '.join(KEYS)}")
        yield question_of(f"{name}: question {row.get('id', number)!r}", shared | row)


def question_of(where: str, row: dict[str, Any]) -> Question:
    """One question, checked. Raises UserError that begins with `where` and names the key."""
    _known(where, row, KEYS)
    words = {key: _word(where, row, key) for key in KEYS if key != "options"}
    letter = words.pop("answer")
    if letter not in tuple(LETTERS):
        raise UserError(f"{where}, key 'answer': {letter!r} is none of {', '.join(LETTERS)}")
    if words["claim"] not in claims():
        raise UserError(f"{where}, key 'claim': {words['claim']!r}: {nearest(words['claim'], claims())}")
    return Question(**words, answer=LETTERS.index(letter), options=_options(where, row))


def _options(where: str, row: dict[str, Any]) -> tuple[Option, ...]:
    listed = row.get("options")
    if not isinstance(listed, list) or len(listed) != len(LETTERS):
        count = f"there are {len(listed)}" if isinstance(listed, list) else "there is no list"
        raise UserError(f"{where}, key 'options': {count}; write {len(LETTERS)}, one of them right")
    found: dict[str, Option] = {}
    for letter, option in zip(LETTERS, listed, strict=True):
        place = f"{where}, option {letter}"
        if not isinstance(option, dict):
            raise UserError(f"{place}: write the keys {' and '.join(OPTION_KEYS)}")
        _known(place, option, OPTION_KEYS)
        made = Option(**{key: _word(place, option, key) for key in OPTION_KEYS})
        if (said := made.text.casefold()) in found:
            raise UserError(f"{place}, key 'text': the same as another option's, so that there is not one right answer")
        found[said] = made
    return tuple(found.values())


def _known(where: str, row: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in row:
        if key not in keys:
            raise UserError(f"{where}, key {key!r}: {nearest(str(key), keys)}")


def _word(where: str, row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}, key {key!r}: {'write a text' if key in row else 'is missing'}")
    return " ".join(value.split())
