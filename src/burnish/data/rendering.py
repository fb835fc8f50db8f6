"""Rendering: a chat template's text for messages, made in a process of its own with limits on time, memory and size.

A template is a program that came with a model. The sandbox of jinja2 keeps it from the interpreter's internals, but not from
looping or growing without end, and nothing inside the process can stop it there; another process can be ended. That
process reads one JSON line a request and answers with one: {"text", "marks"} or {"error"}. Its settings of jinja2 are those
of transformers, so that the text is the same.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from datetime import datetime
from typing import Any

LARGEST_TEXT = 16 * 2**20  # characters; more than any model reads
LARGEST_MEMORY = 2**30  # bytes of the process
SECONDS = 10.0  # a rendering takes less than a thousandth of it
_STARTING_SECONDS = 60.0  # a busy machine may be slow to start a process
_LONGEST_REASON = 300  # characters
_ALARM = hasattr(signal, "setitimer")  # a process can then end itself in time; else a thread here ends it
_PRIVATE = range(0xF0000, 0xFFFFE)  # characters that no standard gives a meaning


class Renderer:
    """The process that renders one template; started when first asked, ended with this object."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any]) -> tuple[str, list[tuple[int, int]]]:
        """The text of one rendering, and the parts inside `generation` tags, [start, end) in characters.

        `request` holds `variables` (what the template sees) and `now` (an ISO date). Raises ValueError with the reason when
        the template cannot be rendered or takes too much.
        """
        with self._lock:
            if self._process is None:
                self._start()
            answer = self._exchange(dict(request), SECONDS)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["text"], [(start, end) for start, end in answer["marks"]]

    def _start(self) -> None:
        command = [sys.executable, "-P", __file__]  # -P: nothing is imported from the folder that this file stands in
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        weakref.finalize(self, _end, self._process)
        answer = self._exchange({"source": self._source}, _STARTING_SECONDS)
        if "error" in answer:
            raise ValueError(answer["error"])

    def _exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and read the answer; a process that does not give one in time ends, or is ended."""
        process = self._process
        assert process is not None
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None
        watch = threading.Timer(seconds, process.kill) if not _ALARM else None
        if watch:
            watch.start()
        try:
            requests.write(json.dumps(request | {"seconds": seconds}) + "\n")
            requests.flush()
            answer = answers.readline()
        except OSError:
            answer = ""
        except BaseException:  # Ctrl-C: an answer that comes later must not be taken for the next one
            self._drop()
            raise
        finally:
            if watch:
                watch.cancel()
        if answer:
            found: dict[str, Any] = json.loads(answer)
            return found
        late = process.wait() == (-signal.SIGALRM if _ALARM else 1)
        self._drop()
        return {"error": f"took more than {seconds:.0f} s" if late else "took more memory than it may"}

    def _drop(self) -> None:
        if self._process is not None:
            _end(self._process)
        self._process = None


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


class Program:
    """A compiled template, in the process that renders. Raises what jinja2 does for one that cannot be compiled.

    jinja2 is set up as transformers does: sandbox, trimmed blocks, JSON as it is, loop controls, the generation tag.
    """

    def __init__(self, source: str) -> None:
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.now = datetime.min
        self.marks = ("", "")
        made = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _generation(self)]
        )

        def raise_exception(message: str) -> None:
            raise jinja2.TemplateError(message)

        made.filters["tojson"] = _as_json
        made.globals["raise_exception"] = raise_exception
        made.globals["strftime_now"] = lambda form: self.now.strftime(form)
        self._source = source
        self._compiled = made.from_string(source)

    def render(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; whatever goes wrong is an error in one line."""
        line = json.dumps(request, ensure_ascii=False) + self._source
        unused = (chr(code) for code in _PRIVATE if chr(code) not in line)
        self.now, self.marks = datetime.fromisoformat(request["now"]), (next(unused), next(unused))
        pieces, size = [], 0
        try:
            for piece in self._compiled.generate(**request["variables"]):
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST_TEXT:
                    return {"error": f"wrote more than {LARGEST_TEXT:,} characters"}
        except Exception as error:  # a template may raise anything
            return {"error": reason(error)}
        return _without_marks("".join(pieces), self.marks)


def _generation(program: Program) -> Any:
    """The extension of jinja2 for {% generation %} ... {% endgeneration %}, around what the assistant says."""
    import jinja2.ext

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{program.marks[0]}{caller()}{program.marks[1]}"

    return Generation


def _as_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The filter of jinja2 escapes for HTML; this one does not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _without_marks(marked: str, marks: tuple[str, str]) -> dict[str, Any]:
    text, parts = "", []
    for number, piece in enumerate(marked.split(marks[0])):
        inside, mark, outside = piece.partition(marks[1])
        if bool(mark) != bool(number):
            return {"error": "has a generation tag inside another"}
        if number:
            parts.append((len(text), len(text) + len(inside)))
        text += inside + outside
    return {"text": text, "marks": parts}


def reason(error: Exception) -> str:
    """One line on what went wrong; for most, the words of the template's author."""
    if isinstance(error, MemoryError):
        return "took more memory than it may"
    if isinstance(error, RecursionError):
        return "calls itself without end"
    line = getattr(error, "lineno", None)
    said = " ".join(str(error).split()) or type(error).__name__
    return said[:_LONGEST_REASON] + (f" (line {line} of the template)" if line else "")


def serve() -> None:
    """Answer requests until the standard input ends: first the template itself, then its renderings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    if _ALARM:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    requests, answers = sys.stdin, sys.stdout
    sys.stdout = sys.stderr
    _limit_memory()
    program: Program | None = None
    for line in requests:
        request = json.loads(line)
        _alarm(request["seconds"])
        try:
            if program is None:
                program, found = Program(request["source"]), {}
            else:
                found = program.render(request)
        except Exception as error:
            found = {"error": reason(error)}
        _alarm(0)
        print(json.dumps(found), file=answers, flush=True)


def _alarm(seconds: float) -> None:
    """End this process in so many seconds, whatever it is doing then; 0 for never."""
    if _ALARM:
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this system; the limit on time remains
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY, LARGEST_MEMORY))


if __name__ == "__main__":
    serve()
