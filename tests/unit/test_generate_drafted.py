"""Generation with a draft writes what it writes without; in exact mode to the last digit, in float32 (FLT-107)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from burnish.cli import code_of
from burnish.serve.engine import Engine, Request
from burnish.serve.opening import Settings, open_served
from burnish.serve.prompts import Helped, continued
from burnish.serve.runners.exact import Exact
from burnish.serve.sampling import Sampling
from served_model import chat_model

PROMPTS = ["The quick brown fox", "five wizards box with jugs of liquor. five wizards box with", "0"]
DRAWN = {"temperature": 0.8, "top_k": 30, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("drafted") / "fox")


@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
def test_prompts_are_continued_as_without_a_draft(folder: Path, options: dict) -> None:
    settings, said = {"max_new_tokens": 24, **options}, []
    plain = continued(folder, PROMPTS, settings)
    assert continued(folder, PROMPTS, settings, helped=Helped("ngram", tell=said.append)) == plain
    assert continued(folder, PROMPTS, settings, helped=Helped(None)) == plain
    (line,) = said
    assert line.startswith("draft ngram: ")
    assert "; off: " in line or "; on, " in line


def texts(engine: Engine, prompts: list[tuple[int, ...]]) -> list[list[tuple[int, float]]]:
    """Tokens and their log probabilities."""
    found: list[list[tuple[int, float]]] = [[] for _ in prompts]
    for prompt, own in zip(prompts, found, strict=True):
        options = Sampling(max_new_tokens=20)
        engine.submit(
            Request(prompt, options, top=1),
            lambda output, own=own: own.extend(
                (token, pair[0]) for token, pair in zip(output.ids, output.logprobs, strict=True)
            ),
        )
    while engine.busy:
        engine.step()
    return found


def check_exact(folder: Path, draft: str) -> None:
    """The named check: in float32 and exact mode, tokens and scores have the same digits with a draft and without."""
    plain, served, _ = open_served(folder, Settings(2**25, rows=3, runner="torch", exact=True))
    drafted, _, _ = open_served(folder, Settings(2**25, rows=3, runner="torch", exact=True, draft=draft))
    assert drafted.runner.dtype == torch.float32
    assert drafted.speculator is not None
    drafted.speculator.fixed = 3
    prompts = [served.prompt_of(prompt) for prompt in PROMPTS]
    assert texts(drafted, prompts) == texts(plain, prompts)
    assert drafted.speculator.counts.drafted > 0


@pytest.mark.parametrize("draft", ["ngram", "itself"])
def test_flt_107_in_exact_mode_a_draft_changes_no_digit(folder: Path, draft: str) -> None:
    check_exact(folder, str(folder) if draft == "itself" else draft)


@pytest.mark.sabotage
def test_flt_107_notices_products_of_as_many_rows_as_there_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exact, "begin", lambda self, ids_T, positions_T: self.runner.begin(ids_T, positions_T))
    monkeypatch.setattr(Exact, "go_on", lambda self, *given: self.runner.go_on(*given))
    monkeypatch.setattr(Exact, "scores", lambda self, *given: self.runner.scores(*given))
    with pytest.raises(AssertionError):
        check_exact(folder, "ngram")


def test_the_command_says_what_came_of_the_draft_beside_the_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["generate", str(folder), *PROMPTS[:2], "--max-new-tokens", "10", "--exact"]
    assert code_of(asked) == 0
    plain = capsys.readouterr().out
    assert code_of([*asked, "--draft", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out == plain
    assert "guesses stood" in err
    assert code_of([*asked, "--draft", "skip:3"]) == 2
    assert "skip:3: the model has 2 layers" in capsys.readouterr().err
