"""The routes of the server, over one host: requests checked, answered whole or as a stream of server-sent events.

A client that goes away is noticed, and what it asked for is cancelled.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request as Received
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from burnish.errors import UserError
from burnish.serve.engine import Busy, Output
from burnish.serve.host import Host
from burnish.serve.http.answers import Answer, Writer, error, usage_of
from burnish.serve.http.following import Left, Outputs, following, hung_up, merged
from burnish.serve.http.metrics import Metrics
from burnish.serve.http.openapi import openapi
from burnish.serve.http.reading import Refused, read
from burnish.serve.http.schema import ChatAsked, CompletionAsked, DetokenizeAsked, TokenizeAsked
from burnish.serve.http.tokens import detokenized, tokenized
from burnish.serve.served import DEFAULT_TOKENS, Served

OPEN = ("/health", "/metrics", "/openapi.json")  # routes that need no key


@dataclass(frozen=True)
class Rules:
    """`key`: what clients must send, none for anybody. `body`: most bytes of a request. `seconds`: its longest time."""

    key: str | None = None
    body: int = 4 * 2**20
    seconds: float | None = None


def make_app(host: Host, served: Served, rules: Rules) -> Starlette:
    """The application."""
    metrics = Metrics(host)
    server = Server(host, served, rules, metrics)
    routes = [
        Route("/v1/models", server.models),
        Route("/v1/models/{name:path}", server.model),
        Route("/v1/completions", server.guarded(server.completions), methods=["POST"]),
        Route("/v1/chat/completions", server.guarded(server.chat), methods=["POST"]),
        Route("/tokenize", server.guarded(server.tokenize), methods=["POST"]),
        Route("/detokenize", server.guarded(server.detokenize), methods=["POST"]),
        Route("/health", server.health),
        Route("/metrics", lambda request: PlainTextResponse(metrics.text())),
        Route("/openapi.json", lambda request: JSONResponse(openapi())),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _unknown, 405: _method, 500: _broken})
    app.add_middleware(KeyCheck, key=rules.key)
    return app


@dataclass
class Job:
    """One request in progress: what writes its answers, tokens of its prompts, its answers, and when it began."""

    writer: Writer
    read: int
    answers: list[Answer]
    tells_usage: bool
    began: float


class KeyCheck:
    """Refuses who does not know the key, before anything is read."""

    def __init__(self, app: Any, key: str | None) -> None:
        self.app, self.key = app, key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.key is not None and scope["type"] == "http" and scope["path"] not in OPEN:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self.key.encode()):
                answer = JSONResponse(error(401, "the key is missing or wrong; send Authorization: Bearer KEY"), 401)
                return await answer(scope, receive, send)
        return await self.app(scope, receive, send)


class Server:
    """Handlers of the routes."""

    def __init__(self, host: Host, served: Served, rules: Rules, metrics: Metrics) -> None:
        self.host, self.served, self.rules, self.metrics = host, served, rules, metrics

    def guarded(self, handler: Callable[[Received], Awaitable[Response]]) -> Callable[[Received], Awaitable[Response]]:
        """A handler whose refusals become answers."""

        async def answer(request: Received) -> Response:
            try:
                return await handler(request)
            except Refused as refused:
                self.metrics.refused(refused.status)
                headers = {"retry-after": "1"} if refused.status in (429, 503) else None
                return JSONResponse(error(refused.status, str(refused), refused.param), refused.status, headers)

        return answer

    async def health(self, request: Received) -> Response:
        """200 while requests are taken."""
        if self.host.draining:
            return JSONResponse({"status": "draining"}, 503)
        return JSONResponse({"status": "ok", "model": self.served.name})

    async def models(self, request: Received) -> Response:
        """The one model there is."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Received) -> Response:
        """The model by its name."""
        if (name := request.path_params["name"]) != self.served.name:
            return JSONResponse(error(404, f"model {name!r} is not served; {self.served.name} is", "model"), 404)
        return JSONResponse(self._card())

    def _card(self) -> dict[str, Any]:
        about = {"id": self.served.name, "object": "model", "created": self.served.created, "owned_by": "burnish"}
        return about | {"max_model_len": self.served.room}

    async def completions(self, request: Received) -> Response:
        """POST /v1/completions."""
        asked = await self._read(request, CompletionAsked)
        count, most = len(asked.prompts) * asked.n, self.host.engine.limits.queue
        if count > most:
            said = f"prompt: {len(asked.prompts):,} prompts with n {asked.n} are {count:,} answers; at most {most:,} at once"
            raise Refused(400, said, "prompt")
        prompts = [self._told(partial(self.served.prompt_of, given)) for given in asked.prompts]
        most = DEFAULT_TOKENS if asked.max_tokens is None else asked.max_tokens
        return await self._answer(request, asked, prompts, (most, "max_tokens"), Writer(self.served, chat=False))

    async def chat(self, request: Received) -> Response:
        """POST /v1/chat/completions."""
        asked = await self._read(request, ChatAsked)
        messages = [{"role": message.role, "content": message.text} for message in asked.messages]
        prompt = await asyncio.to_thread(self._told, partial(self.served.chat_of, messages))
        field = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
        most = asked.max_completion_tokens or asked.max_tokens
        return await self._answer(request, asked, [prompt], (most, field), Writer(self.served, chat=True))

    async def tokenize(self, request: Received) -> Response:
        """POST /tokenize."""
        asked = await self._read(request, TokenizeAsked)
        return JSONResponse(await asyncio.to_thread(self._told, partial(tokenized, self.served, asked)))

    async def detokenize(self, request: Received) -> Response:
        """POST /detokenize."""
        asked = await self._read(request, DetokenizeAsked)
        return JSONResponse(detokenized(self.served, asked))

    async def _read(self, request: Received, kind: type[BaseModel]) -> Any:
        """The body, checked."""
        if self.host.draining:
            raise Refused(503, "the server is shutting down; ask another one")
        asked: Any = await read(request, kind, self.rules.body)
        if asked.model not in (None, self.served.name):
            raise Refused(404, f"model {asked.model!r} is not served; {self.served.name} is", "model")
        return asked

    def _told(self, make: Callable[[], Any]) -> Any:
        """What is made, or the refusal that its error is."""
        try:
            return make()
        except UserError as wrong:
            raise Refused(400, str(wrong), str(wrong).partition(":")[0]) from None

    async def _answer(
        self,
        request: Received,
        asked: Any,
        prompts: list[tuple[int, ...]],
        most: tuple[int | None, str],
        writer: Writer,
    ) -> Response:
        """Answer a request; `most`: new tokens asked for, and the field that says so."""
        began = time.monotonic()
        deadline = None if self.rules.seconds is None else began + self.rules.seconds
        every = [(prompt, number) for prompt in prompts for number in range(asked.n)]
        ours = [self._told(partial(self.served.request, p, asked, most[0], k, deadline)) for p, k in every]
        answers = [Answer(index) for index in range(len(ours))]
        job = Job(writer, sum(map(len, prompts)), answers, asked.tells_usage, began)
        self.metrics.asked(len(ours), job.read)
        outputs = merged(self.host, ours)
        gone = asyncio.ensure_future(hung_up(request))
        try:  # what is wrong with a request shows before its first output: then there is a status to say it with
            first = await following(outputs, gone)
            self.metrics.first(time.monotonic() - began)
            if not asked.stream:
                return await self._whole(job, first, outputs, gone)
        except Busy as busy:
            raise Refused(429, str(busy)) from None
        except UserError as wrong:
            field = most[1] if "new ones" in str(wrong) else "prompt"
            raise Refused(400, str(wrong).replace("max_new_tokens", most[1]), field) from None
        except Left:
            self.metrics.answered(answers, time.monotonic() - began)
            return Response(status_code=499)
        finally:
            gone.cancel()
        events = self._events(job, first, outputs)
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def _whole(
        self, job: Job, first: tuple[int, Output] | None, outputs: Outputs, gone: asyncio.Future[None]
    ) -> Response:
        found = first
        async with aclosing(outputs):
            while found is not None:
                job.answers[found[0]].take(found[1])
                found = await following(outputs, gone)
        self.metrics.answered(job.answers, time.monotonic() - job.began)
        reasons = [answer.reason for answer in job.answers]
        if failed := next((reason for reason in reasons if reason not in ("eos", "stop", "length")), ""):
            raise Refused(504 if failed == "deadline" else 500, _failure(failed, self.host))
        return JSONResponse(job.writer.whole(job.answers, usage_of(job.read, job.answers)))

    async def _events(self, job: Job, first: tuple[int, Output] | None, outputs: Outputs) -> AsyncIterator[bytes]:
        writer, answers = job.writer, job.answers
        told: dict[str, Any] = {"usage": None} if job.tells_usage else {}
        try:
            async with aclosing(outputs):
                if writer.chat:
                    for answer in answers:
                        yield _event(writer.piece(answer.index, None) | told)
                found = first
                while found is not None:
                    index, output = found
                    answers[index].take(output)
                    if output.reason in ("deadline", "error", "cancelled"):
                        status = 504 if output.reason == "deadline" else 500
                        yield _event(error(status, _failure(output.reason, self.host)))
                        break
                    if output.text or output.reason or output.logprobs:
                        yield _event(writer.piece(index, output) | told)
                    found = await anext(outputs, None)
            if job.tells_usage:
                yield _event(writer.closing(usage_of(job.read, answers)))
            yield b"data: [DONE]\n\n"
        finally:  # also when the client has left
            self.metrics.answered(answers, time.monotonic() - job.began)


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def _failure(reason: str, host: Host) -> str:
    if reason == "deadline":
        return "the request took longer than this server allows"
    return f"the engine failed: {host.failed or 'scores are not finite'}" if reason == "error" else "cancelled"


async def _unknown(request: Received, wrong: Exception) -> Response:
    return JSONResponse(error(404, f"no route {request.url.path}; see /openapi.json"), 404)


async def _method(request: Received, wrong: Any) -> Response:
    text = f"{request.method} is not for {request.url.path}; see /openapi.json"
    return JSONResponse(error(405, text), 405, headers=getattr(wrong, "headers", None))


async def _broken(request: Received, wrong: Exception) -> Response:
    return JSONResponse(error(500, f"internal error: {type(wrong).__name__}"), 500)
