"""A conversation at a terminal or over a pipe: lines are questions or commands, answers are printed as they are written.

Questions come from one stream, answers go to a second, and what is said about them to a third, so that a pipe gets answers only.
Ctrl-C while an answer is written stops it; at the prompt it clears the line.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from burnish.errors import UserError
from burnish.serve.chat import Answer, Chat
from burnish.units import counted

GOES_ON = "\\"  # a line that ends with it goes on in the next one
HELP = (
    ("/reset", "begin anew, with the same system message"),
    ("/system TEXT", "begin anew with another system message; no TEXT: with none"),
    ("/again", "ask the last question once more"),
    ("/save FILE", "write the conversation as a line of JSON that a recipe can train on"),
    ("/help", "this list"),
    ("/exit", "leave, as does Ctrl-D"),
)
WHY = {
    "length": "cut: the answer reached its most tokens (--max-new-tokens) or the end of the context",
    "cancelled": "stopped",
    "error": "the model's scores are not finite; its weights may be damaged",
}


@dataclass
class Terminal:
    """Where lines come from and texts go. `read` raises EOFError at the end; `clean` takes out what steers a terminal.

    `typed`: a person sits there, who gets a prompt; `colour`: with colours; `verbose`: figures after each answer.
    """

    read: Callable[[str], str]
    out: TextIO
    notes: TextIO
    clean: Callable[[str], str]
    typed: bool = False
    colour: bool = False
    verbose: bool = False

    def note(self, text: str) -> None:
        """A line about the conversation, not part of it."""
        line = self.clean(text)
        print(f"\x1b[2m{line}\x1b[0m" if self.colour else line, file=self.notes, flush=True)

    def piece(self, text: str) -> None:
        """A part of an answer, at once."""
        kept = (part if part in ("\n", "\t") else self.clean(part) for part in re.split("([\n\t])", text))
        print("".join(kept), end="", file=self.out, flush=True)

    def line(self) -> str:
        """The next line, with those it goes on in. Raises EOFError."""
        lines = [self.read("> " if self.typed else "")]
        while lines[-1].endswith(GOES_ON):
            lines[-1] = lines[-1][: -len(GOES_ON)]
            try:
                lines.append(self.read("  " if self.typed else ""))
            except EOFError:
                break
        return "\n".join(lines)


def talk(chat: Chat, terminal: Terminal) -> bool:
    """Questions and answers until the lines end; whether every question was answered."""
    fine = True
    while True:
        try:
            text = terminal.line().strip()
        except EOFError:
            break
        except KeyboardInterrupt:
            if not terminal.typed:
                raise
            terminal.note("\nCtrl-D or /exit leaves")
            continue
        if text in ("/exit", "/quit"):
            break
        try:
            question = _command(chat, text, terminal) if text.startswith("/") else text
            if question:
                _answer(chat, question, terminal)
        except UserError as error:
            fine = False
            terminal.note(f"burnish: {error}")
    totals = chat.totals
    if totals.answers and (terminal.typed or terminal.verbose):
        terminal.note(
            f"{counted(totals.answers, 'answer')}, {counted(totals.tokens, 'token')} written; of "
            f"{counted(totals.prompt, 'token')} of prompts {totals.reused:,} were found, not computed again"
        )
    return fine or terminal.typed


def _answer(chat: Chat, question: str, terminal: Terminal) -> None:
    with _interrupts() as stopped:
        answer = chat.ask(question, terminal.piece, stopped)
    if not answer.text.endswith("\n"):
        terminal.piece("\n")
    if answer.left_out:
        terminal.note(f"{counted(answer.left_out, 'earlier turn')} did not fit any more and left the conversation")
    if said := WHY.get(answer.reason):
        terminal.note(said)
    if not answer.text.strip():
        terminal.note("there was no answer, so the question left the conversation too")
    if terminal.verbose:
        terminal.note(figures(answer))


def figures(answer: Answer) -> str:
    """What an answer took, in one line."""
    after = max(answer.seconds - answer.first, 1e-9)
    rate = f", {(answer.tokens - 1) / after:.1f} tokens/s after it" if answer.tokens > 1 else ""
    return (
        f"prompt {counted(answer.prompt, 'token')}, {answer.reused:,} of them found; first token after "
        f"{answer.first:.2f} s; {counted(answer.tokens, 'token')} written{rate}"
    )


def _command(chat: Chat, text: str, terminal: Terminal) -> str:
    """Do what a command says; a question to ask, or "". Raises UserError for one that is not known."""
    name, _, rest = text.partition(" ")
    rest = rest.strip()
    if name == "/reset":
        chat.reset()
    elif name == "/system":
        chat.reset(rest)
    elif name == "/again":
        return chat.again()
    elif name == "/save":
        if not rest:
            raise UserError("/save: give the name of a file, such as /save talk.jsonl")
        chat.save(Path(rest).expanduser())
        terminal.note(f"{counted(len(chat.turns), 'turn')} written to {rest}")
    elif name in ("/help", "/?"):
        for said, about in HELP:
            terminal.note(f"{said:<14}{about}")
    else:
        raise UserError(f"{name}: is no command; there are {', '.join(said.split()[0] for said, _ in HELP)}")
    return ""


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C sets a mark, read between two steps, so that no step is left half done; the second one ends the process."""
    mark = threading.Event()

    def handle(number: int, frame: Any) -> None:
        if mark.is_set():
            signal.default_int_handler(number, frame)
        mark.set()

    if threading.current_thread() is not threading.main_thread():
        yield mark.is_set
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield mark.is_set
    finally:
        signal.signal(signal.SIGINT, before)
