"""Metrics of the server in Prometheus' text form."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from burnish.serve.host import Host
from burnish.serve.http.answers import Answer

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # seconds


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
        self._first = self._histogram("first_token_seconds", "Seconds until the first token of a request")
        self._whole = self._histogram("answer_seconds", "Seconds until the end of a request")
        engine, drafting = host.engine, host.engine.speculator
        gauges = {
            "running": ("Sequences that run", lambda: len(engine.schedule.running)),
            "waiting": ("Sequences that wait", lambda: len(engine.schedule.waiting)),
            "pages": ("Pages of the pool", lambda: engine.pages.count),
            "pages_free": ("Pages that can be taken", lambda: engine.pages.free),
            "pool_bytes": ("Bytes of all pages", lambda: engine.pool.bytes),
            "preempted": ("Times a sequence had to give its pages back", lambda: engine.schedule.preempted),
            "drafted": ("Tokens that a draft guessed", lambda: drafting.counts.drafted if drafting else 0),
            "drafted_stood": ("Of those, tokens that the model kept", lambda: drafting.counts.stood if drafting else 0),
            "drafting": ("1 while guessing is measured to pay", lambda: int(bool(drafting and drafting.gate.on))),
            "steps": ("Steps of the engine", lambda: host.counts.steps),
            "step_seconds": ("Seconds of all steps", lambda: host.counts.step_seconds),
        }
        for name, (about, read) in gauges.items():
            Gauge(f"burnish_{name}", about, registry=self.registry).set_function(read)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"burnish_{name}", about, registry=self.registry)

    def _histogram(self, name: str, about: str) -> Histogram:
        return Histogram(f"burnish_{name}", about, registry=self.registry, buckets=BUCKETS)

    def first(self, seconds: float) -> None:
        """A request has its first token."""
        self._first.observe(seconds)

    def asked(self, answers: int, tokens: int) -> None:
        """A request came in."""
        self._requests.inc(answers)
        self._prompt.inc(tokens)

    def answered(self, answers: Sequence[Answer], seconds: float) -> None:
        """A request is over."""
        self._whole.observe(seconds)
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
