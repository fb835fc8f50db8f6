"""A conversation with a model: its turns, which of them still fit, and each answer as it is written.

One engine is kept for all of it, so that what was read and written in earlier turns is found in the pool and not computed
again. The history is what the template makes of the turns; where it does not fit any more, the oldest turns are left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from burnish.errors import UserError
from burnish.records import write_text
from burnish.serve.engine import Engine, Output, Request
from burnish.serve.sampling import Sampling
from burnish.serve.served import Served

STAYS = 0.5  # share of the positions that turns may keep once some had to go, so that not every turn is read anew


@dataclass(frozen=True)
class Answer:
    """What was said. `reason`: eos, stop, length, cancelled or error. `prompt` tokens were read, `reused` of them found in
    the pool; `left_out` turns did not fit. `first` and `seconds`: until its first token and its end."""

    text: str
    reason: str
    prompt: int
    reused: int
    tokens: int
    first: float
    seconds: float
    left_out: int = 0


@dataclass
class Totals:
    """Sums over the answers of a conversation."""

    answers: int = 0
    tokens: int = 0
    prompt: int = 0
    reused: int = 0

    def add(self, answer: Answer) -> None:
        """Count one more."""
        self.answers += 1
        self.tokens += answer.tokens
        self.prompt += answer.prompt
        self.reused += answer.reused


@dataclass
class Chat:
    """A conversation. `options.max_new_tokens` is the most of an answer, `options.seed` that of the first one.

    Raises UserError for a model without a chat template.
    """

    engine: Engine
    served: Served
    options: Sampling
    system: str = ""
    turns: list[tuple[str, str]] = field(default_factory=list)  # (question, answer)
    totals: Totals = field(default_factory=Totals)
    _saved: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.served.chat is None:
            raise UserError(f"{self.served.name}: came without a chat template; continue texts with `burnish generate`")
        self.options = replace(self.options, eos=self.served.ends or None)

    def ask(self, question: str, tell: Callable[[str], None], stopped: Callable[[], bool] = lambda: False) -> Answer:
        """The answer to a question; `tell` gets its text as it becomes certain, `stopped` is asked between steps.

        What was said so far stays a turn when it was stopped; an answer without words leaves no turn. Raises UserError for a
        question that does not fit by itself, and for what the template refuses; the conversation is then as it was.
        """
        prompt, left_out, room = self._prompt(question)
        pieces: list[str] = []
        outputs: list[Output] = []
        times: list[float] = []

        def take(output: Output) -> None:
            times.append(time.monotonic())
            outputs.append(output)
            pieces.append(output.text)
            tell(output.text)

        options = replace(
            self.options,
            max_new_tokens=min(self.options.max_new_tokens, room),
            seed=self.options.seed + self.totals.answers,
        )
        began = time.monotonic()
        number = self.engine.submit(Request(prompt, options), take)
        try:
            while self.engine.busy:
                self.engine.step()
                if stopped():
                    self.engine.cancel(number)
        finally:
            self.engine.cancel(number)
        written, last = sum(len(output.ids) for output in outputs), outputs[-1]
        text = "".join(pieces)
        answer = Answer(
            text, last.reason, len(prompt), last.reused, written, times[0] - began, times[-1] - began, left_out
        )
        self.totals.add(answer)
        del self.turns[:left_out]
        if text.strip():
            self.turns.append((question, text))
        return answer

    def again(self) -> str:
        """Take the last turn back; its question, to be asked once more. Raises UserError when there is none."""
        if not self.turns:
            raise UserError("there is no answer yet to take back")
        return self.turns.pop()[0]

    def reset(self, system: str | None = None) -> None:
        """Begin anew, with another system message where one is given."""
        self.turns.clear()
        self.system = self.system if system is None else system

    def save(self, file: Path) -> None:
        """Write the conversation as a line that a recipe with data.format=chat trains on. Raises UserError for a file that
        is there and was not written by this conversation, and when nothing was said yet."""
        if not self.turns:
            raise UserError("nothing to save: there is no answer yet")
        if file.exists() and file.resolve() not in self._saved:
            raise UserError(f"{file}: is there already; choose another name")
        line = json.dumps({"messages": self.messages(self.turns)}, ensure_ascii=False)
        write_text(file, line + "\n", folders=False)
        self._saved.add(file.resolve())

    def messages(self, turns: list[tuple[str, str]], question: str | None = None) -> list[dict[str, str]]:
        """The conversation as a template takes it."""
        found = [{"role": "system", "content": self.system}] if self.system else []
        for asked, answered in turns:
            found += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        return found if question is None else [*found, {"role": "user", "content": question}]

    def _prompt(self, question: str) -> tuple[tuple[int, ...], int, int]:
        """(token ids, turns left out, tokens of room for the answer). All turns where they fit beside an answer of full
        length; else the newest that fit in a share of the positions, or none."""
        room = self.served.room
        kept_free = min(self.options.max_new_tokens, room // 2)
        for gone in range(len(self.turns) + 1):
            prompt = self.served.chat_of(self.messages(self.turns[gone:], question))
            most = room - kept_free if gone == 0 else int(room * STAYS)
            if len(prompt) <= most:
                return prompt, gone, room - len(prompt)
        if len(prompt) >= room:
            raise UserError(
                f"{len(prompt):,} tokens with the system message: there is room for {room - 1:,} and an answer; ask less, "
                "or give more --memory"
            )
        return prompt, len(self.turns), room - len(prompt)
