"""Metrics of the server in Prometheus' text form."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from burnish.serve.host import Host
from burnish.serve.http.answers import Answer


class Metrics:
    """Counters of one server, and gauges read off its host when asked for."""

    def __init__(self, host: Host) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Answers asked for")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts")
        self._found = self._counter("prompt_tokens_cached", "Tokens of prompts that were found in the pool")
        self._written = self._counter("completion_tokens", "Tokens written")
        self._ended = Counter("burnish_answers", "Answers that ended, by why", ["reason"], registry=self.registry)
        self._refused = Counter("burnish_refused", "Requests refused, by status", ["status"], registry=self.registry)
        engine = host.engine
        gauges = {
            "running": ("Sequences that run", lambda: len(engine.schedule.running)),
            "waiting": ("Sequences that wait", lambda: len(engine.schedule.waiting)),
            "pages": ("Pages of the pool", lambda: engine.pages.count),
            "pages_free": ("Pages that can be taken", lambda: engine.pages.free),
            "pool_bytes": ("Bytes of all pages", lambda: engine.pool.bytes),
            "preempted": ("Times a sequence had to give its pages back", lambda: engine.schedule.preempted),
            "steps": ("Steps of the engine", lambda: host.counts.steps),
            "step_seconds": ("Seconds of all steps", lambda: host.counts.step_seconds),
        }
        for name, (about, read) in gauges.items():
            Gauge(f"burnish_{name}", about, registry=self.registry).set_function(read)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"burnish_{name}", about, registry=self.registry)

    def asked(self, answers: int, tokens: int) -> None:
        """A request came in."""
        self._requests.inc(answers)
        self._prompt.inc(tokens)

    def answered(self, answers: Sequence[Answer]) -> None:
        """A request is over."""
        for answer in answers:
            self._written.inc(len(answer.ids))
            self._found.inc(answer.reused)
            self._ended.labels(answer.reason or "left").inc()

    def refused(self, status: int) -> None:
        """A request was refused."""
        self._refused.labels(str(status)).inc()

    def text(self) -> str:
        """All of them."""
        return generate_latest(self.registry).decode()
