"""Which turns of a conversation stay when the positions are used up, and what an answer leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.serve.chat import STAYS, Chat
from burnish.serve.opening import Settings, open_served
from burnish.serve.sampling import Sampling
from served_model import POSITIONS, chat_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("talk") / "fox")


def chat(folder: Path, most: int = 40, **options: object) -> Chat:
    engine, served, _ = open_served(folder, Settings(8 * 2**20, rows=1, queue=1, runner="torch"))
    return Chat(engine, served, Sampling(max_new_tokens=most, **options), "Be a fox.")


def silent(text: str) -> None:
    """Nobody listens."""


def test_answers_are_those_of_the_whole_conversation_read_anew(folder: Path) -> None:
    """What is found in the pool changes nothing: another engine that reads all of it at once writes the same."""
    first, second = chat(folder), chat(folder)
    answers = [first.ask(question, silent) for question in ("Jump!", "Over the dog?", "Why?")]
    second.turns = first.turns[:2]
    again = second.ask("Why?", silent)
    assert again.text == answers[2].text
    assert (again.reused, answers[2].prompt) == (0, again.prompt)
    page = first.engine.pages.size
    expected = (answers[1].prompt + answers[1].tokens - 1) // page * page
    assert answers[1].prompt - page < answers[2].reused <= expected
    assert first.totals.reused == sum(answer.reused for answer in answers)


def test_the_oldest_turns_leave_until_half_of_the_positions_are_free(folder: Path) -> None:
    talk = chat(folder, most=100)
    seen = [talk.ask(f"Tell more of number {number}.", silent) for number in range(9)]
    gone = [answer.left_out for answer in seen]
    assert sum(gone) == 9 - len(talk.turns) > 0
    for answer in seen:
        assert answer.prompt <= (POSITIONS * STAYS if answer.left_out else POSITIONS - 100)
    assert talk.turns[-1][0] == "Tell more of number 8."
    assert talk.messages(talk.turns)[0] == {"role": "system", "content": "Be a fox."}
    assert 0 in gone[gone.index(max(gone)) + 1 :]  # not every turn after it had to leave some out


@pytest.mark.sabotage
def test_notices_turns_that_stay_too_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.serve.chat.STAYS", 0.9)
    with pytest.raises(AssertionError):
        test_the_oldest_turns_leave_until_half_of_the_positions_are_free(folder)


def test_a_question_that_cannot_fit_leaves_the_conversation_as_it_was(folder: Path) -> None:
    talk = chat(folder)
    talk.ask("Jump!", silent)
    before = list(talk.turns)
    with pytest.raises(UserError, match=f"there is room for {POSITIONS - 1} and an answer"):
        talk.ask("jump " * POSITIONS, silent)
    assert talk.turns == before
    assert talk.ask("And?", silent).left_out == 0


def test_a_stopped_answer_stays_as_far_as_it_came_and_gives_its_pages_back(folder: Path) -> None:
    talk = chat(folder, most=200)
    said: list[str] = []
    answer = talk.ask("Jump!", said.append, lambda: len(said) >= 5)
    assert (answer.reason, answer.tokens) == ("cancelled", 5)
    assert talk.turns == [("Jump!", "".join(said))] == [("Jump!", answer.text)]
    assert talk.engine.pages.free == talk.engine.pages.count


def test_again_draws_anew_and_reset_forgets(folder: Path) -> None:
    talk = chat(folder, temperature=1.0)
    first = talk.ask("Jump!", silent).text
    assert talk.ask(talk.again(), silent).text != first
    assert len(talk.turns) == 1
    talk.reset("Be a dog.")
    assert (talk.turns, talk.system) == ([], "Be a dog.")
    with pytest.raises(UserError, match="no answer yet"):
        talk.again()


def test_a_file_that_is_there_is_not_replaced_but_by_the_conversation_that_wrote_it(
    folder: Path, tmp_path: Path
) -> None:
    talk, file = chat(folder), tmp_path / "talk.jsonl"
    with pytest.raises(UserError, match="nothing to save"):
        talk.save(file)
    for question in ("Jump!", "Again!"):
        talk.ask(question, silent)
        talk.save(file)
    assert len(file.read_text().splitlines()) == 1
    other = chat(folder)
    other.ask("Jump!", silent)
    with pytest.raises(UserError, match="is there already"):
        other.save(file)


def test_a_model_without_a_template_is_refused(folder: Path) -> None:
    engine, served, _ = open_served(folder, Settings(8 * 2**20, rows=1, queue=1, runner="torch"))
    from dataclasses import replace

    with pytest.raises(UserError, match="without a chat template; continue texts with `burnish generate`"):
        Chat(engine, replace(served, chat=None), Sampling())
