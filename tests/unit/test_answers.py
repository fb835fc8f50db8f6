"""Answers of a model, kept to be learned from: what it says to each question alone; nothing is left half-written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from burnish.cli import code_of
from burnish.data.chat import Conversations
from burnish.errors import UserError
from burnish.recipe_files import load
from burnish.serve.answers import write_answers
from burnish.serve.engine import Request
from burnish.serve.opening import Settings, open_served
from burnish.serve.sampling import Sampling
from served_model import chat_model

SETTINGS = Settings(2**24, rows=2, runner="torch")
QUESTIONS = ["fox?", "the lazy dog and five wizards?", "0123"]
MOST = 9


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return chat_model(tmp_path_factory.mktemp("model"))


def alone(model, question: str) -> str:
    engine, served, _ = open_served(model, replace(SETTINGS, rows=1))
    found = []
    options = Sampling(max_new_tokens=MOST, eos=served.ends or None)
    engine.submit(Request(served.chat_of([{"role": "user", "content": question}]), options), found.append)
    while engine.busy:
        engine.step()
    return "".join(one.text for one in found).strip()


def test_each_question_has_the_answer_that_it_gets_alone(model, tmp_path):
    path = tmp_path / "new" / "answers.jsonl"
    assert 0 < write_answers(model, QUESTIONS, path, SETTINGS, MOST) <= MOST * len(QUESTIONS)
    read = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    assert {turns[0]["content"]: turns[1]["content"] for turns in read} == {one: alone(model, one) for one in QUESTIONS}
    assert Conversations.open([path]).count() == len(QUESTIONS)


def test_nothing_asked_is_said_and_nothing_written(model, tmp_path):
    with pytest.raises(UserError, match="questions: there are none"):
        write_answers(model, [], tmp_path / "answers.jsonl", SETTINGS, MOST)
    assert not list(tmp_path.iterdir())


def test_the_recipe_of_a_draft_has_its_targets_words_and_positions():
    draft, target = load("distill-draft"), load("smollm2-chat")
    for key in ("vocab", "bos", "eos", "pad", "max_positions"):
        assert getattr(draft.model, key) == getattr(target.model, key)
    assert draft.data.tokenizer == target.train.init
    assert draft.model.parameters * 15 < target.model.parameters
    conversations = Conversations.open(draft.data.train)
    assert conversations.count() == 1024
    assert all(one.messages[-1]["role"] == "assistant" for one in conversations.documents())


def test_the_verb_reads_questions_and_writes_answers(model, tmp_path, capsys):
    asked, out = tmp_path / "asked.txt", tmp_path / "answers.jsonl"
    asked.write_text("\n".join([*QUESTIONS, "", QUESTIONS[0]]))
    words = ["--new-tokens", str(MOST), "--runner", "torch", "--memory", "16MiB"]
    assert code_of(["speculate", "answers", str(model), str(asked), str(out), *words]) == 0
    assert "asked 3 questions" in capsys.readouterr().out
    assert Conversations.open([out]).count() == len(QUESTIONS)
    out.unlink()
    for path, name in ((tmp_path / "none.txt", "answers.jsonl"), (asked, "answers.txt")):
        assert code_of(["speculate", "answers", str(model), str(path), str(tmp_path / name), *words]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["asked.txt"]
