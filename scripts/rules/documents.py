"""Commands and paths in the README and the docs exist: each is looked up or asked for its help."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.S | re.M)
IN_TICKS = re.compile(r"`([^`\n]+)`")
# Pages whose files and commands the reader makes; a test of their own takes them from the page and runs them.
EXAMPLES = {"adding_a_technique.md"}
TOP = ("src", "tests", "bench", "scripts", "docs", ".ci")
PATH = re.compile(rf"(?:{'|'.join(map(re.escape, TOP))})/[\w./-]*|[\w-]+\.(?:md|toml|txt|yml)|LICENSE")
MADE = ("runs/", "bench/results/")  # what a command makes


def check(root: Path) -> tuple[str, list[str]]:
    """Numbers of commands and paths looked up, and those that are not there."""
    pages = [
        root / "README.md",
        root / "CONTRIBUTING.md",
        *sorted(p for p in (root / "docs").rglob("*.md") if p.name not in EXAMPLES),
    ]
    commands, paths, problems = [], [], []
    for page in pages:
        if not page.exists():
            problems.append(f"{page.name}: missing")
            continue
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(root).as_posix()
        commands += [(name, command) for command in fenced_commands(text)]
        prose = FENCE.sub("", text)
        commands += [(name, t) for t in IN_TICKS.findall(prose) if t.startswith("burnish ")]
        paths += [(name, t) for t in IN_TICKS.findall(prose) if PATH.fullmatch(t) and not t.startswith(MADE)]
    problems += [f"{n}: no such path: {p}" for n, p in paths if not is_there(root / p)]
    problems += commands_missing(root, commands)
    return f"{len(commands)} commands, {len(paths)} paths", problems


def fenced_commands(text: str) -> Iterator[str]:
    """Lines of fenced blocks that call the program, a script or a bench; comments and prompts are dropped."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if line.startswith(("burnish ", "scripts/", "bench/", ".ci/")):
                yield line


def is_there(path: Path) -> bool:
    """A file, or a folder with a file in it: a checkout has no empty folders."""
    return path.is_file() or any(inside.is_file() for inside in path.rglob("*"))


def commands_missing(root: Path, commands: list[tuple[str, str]]) -> list[str]:
    """Commands whose verb, script, option, recipe or override nobody knows."""
    problems: list[str] = []
    asked: dict[tuple[str, ...], str | None] = {}
    calls = [(page, command, shlex.split(command, comments=True)) for page, command in commands]
    for page, command, words in calls:
        if words[0] == "burnish":
            asked[(*verb_of(words), "--help")] = None
            asked[shown_recipe(words)] = None
        elif not (root / words[0]).is_file() or not os.access(root / words[0], os.X_OK):
            problems.append(f"{page}: {command}: {words[0]} is not an executable file")
        else:
            text = (root / words[0]).read_text(encoding="utf-8")
            problems += [f"{page}: {command}: {o} is not in {words[0]}" for o in options(words) if o not in text]
    asked.pop((), None)
    with ThreadPoolExecutor(2) as pool:
        asked = dict(zip(asked, pool.map(lambda words: answer(root, words), asked), strict=True))
    for page, command, words in calls:
        if words[0] != "burnish":
            continue
        text = asked[(*verb_of(words), "--help")]
        if text is None:
            problems.append(f"{page}: {command}: not a command")
        else:
            problems += [f"{page}: {command}: no option {o}" for o in options(words) if o not in text]
        if (shown := shown_recipe(words)) and asked[shown] is None:
            problems.append(f"{page}: {command}: no such recipe, or an override it refuses")
    return problems


def shown_recipe(words: list[str]) -> tuple[str, ...]:
    """The `recipe show` that tells whether a recipe and its overrides are right; () when no shipped one is named."""
    verb = list(verb_of(words))
    arguments = words[1 + len(verb) :]
    takes = verb[:1] in (["plan"], ["run"], ["train"]) or verb in (["recipe", "show"], ["recipe", "validate"])
    decoder = "--cluster" in options(words)  # then the first word is a decoder, not a recipe
    if not takes or decoder or not arguments or not re.fullmatch(r"[a-z][a-z0-9-]*", arguments[0]):
        return ()
    return ("recipe", "show", arguments[0], *(word for word in arguments[1:] if re.match(r"[\w.]+=", word)))


def verb_of(words: list[str]) -> Iterator[str]:
    """The verb of a burnish command, with its second word where the verb is a group."""
    for word in words[1:3]:
        if not re.fullmatch(r"[a-z]+", word) or (
            word != words[1] and words[1] not in ("bench", "hardware", "recipe", "speculate")
        ):
            return
        yield word


def options(words: list[str]) -> list[str]:
    """Long options without their values."""
    return [word.split("=")[0] for word in words if word.startswith("--")]


def answer(root: Path, words: tuple[str, ...]) -> str | None:
    """What `burnish WORDS` prints, None when it fails."""
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "burnish", *words]
    ran = subprocess.run(command, capture_output=True, text=True, env=env, cwd=root)
    return ran.stdout if ran.returncode == 0 else None
