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

from starlette.applications import Starlette
from starlette.requests import Request as Received
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from burnish.errors import UserError
from burnish.serve.engine import Busy, Output, Request
from burnish.serve.host import Host
from burnish.serve.http.answers import Answer, Writer, error, usage_of
from burnish.serve.http.metrics import Metrics
from burnish.serve.http.openapi import openapi
from burnish.serve.http.reading import Refused, read
from burnish.serve.http.schema import ChatAsked, CompletionAsked
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
        Route("/health", server.health),
        Route("/metrics", lambda request: PlainTextResponse(metrics.text())),
        Route("/openapi.json", lambda request: JSONResponse(openapi())),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _unknown, 405: _method, 500: _broken})
    app.add_middleware(KeyCheck, key=rules.key)
    return app


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
        assert isinstance(asked, CompletionAsked)
        prompts = [self._told(partial(self.served.prompt_of, given)) for given in asked.prompts]
        most = DEFAULT_TOKENS if asked.max_tokens is None else asked.max_tokens
        return await self._answer(request, asked, prompts, most, Writer(self.served, chat=False))

    async def chat(self, request: Received) -> Response:
        """POST /v1/chat/completions."""
        asked = await self._read(request, ChatAsked)
        assert isinstance(asked, ChatAsked)
        messages = [{"role": message.role, "content": message.text} for message in asked.messages]
        prompt = await asyncio.to_thread(self._told, partial(self.served.chat_of, messages))
        most = asked.max_completion_tokens or asked.max_tokens
        return await self._answer(request, asked, [prompt], most, Writer(self.served, chat=True))

    async def _read(self, request: Received, kind: type[CompletionAsked] | type[ChatAsked]) -> Any:
        """The body, checked."""
        if self.host.draining:
            raise Refused(503, "the server is shutting down; ask another one")
        asked = await read(request, kind, self.rules.body)
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
        self, request: Received, asked: Any, prompts: list[tuple[int, ...]], most: int | None, writer: Writer
    ) -> Response:
        deadline = None if self.rules.seconds is None else time.monotonic() + self.rules.seconds
        every = [(prompt, number) for prompt in prompts for number in range(asked.n)]
        ours = [self._told(partial(self.served.request, p, asked, most, k, deadline)) for p, k in every]
        read = sum(map(len, prompts))
        answers = [Answer(index) for index in range(len(ours))]
        self.metrics.asked(len(ours), read)
        outputs = self._merged(ours)
        try:  # what is wrong with a request shows before its first output: then there is a status to say it with
            first = await anext(outputs)
        except Busy as busy:
            raise Refused(429, str(busy)) from None
        except UserError as wrong:
            raise Refused(400, str(wrong), "max_tokens" if "new ones" in str(wrong) else "prompt") from None
        if asked.stream:
            events = self._events(first, outputs, answers, writer, (read, asked.tells_usage))
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        return await self._whole(request, first, outputs, answers, (writer, read))

    async def _whole(
        self,
        request: Received,
        first: tuple[int, Output],
        outputs: Any,
        answers: list[Answer],
        about: tuple[Writer, int],
    ) -> Response:
        writer, read = about
        gone = asyncio.ensure_future(_gone(request))
        async with aclosing(outputs):
            answers[first[0]].take(first[1])
            while not gone.done():
                following = asyncio.ensure_future(anext(outputs, None))
                await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    await asyncio.wait({following})
                    break
                if (found := following.result()) is None:
                    break
                answers[found[0]].take(found[1])
        if gone.done():
            return Response(status_code=499)
        gone.cancel()
        self.metrics.answered(answers)
        if failed := next((answer.reason for answer in answers if answer.reason not in ("eos", "stop", "length")), ""):
            raise Refused(504 if failed == "deadline" else 500, _failure(failed, self.host))
        return JSONResponse(writer.whole(answers, usage_of(read, answers)))

    async def _events(
        self,
        first: tuple[int, Output],
        outputs: Any,
        answers: list[Answer],
        writer: Writer,
        about: tuple[int, bool],
    ) -> AsyncIterator[bytes]:
        read, usage = about
        async with aclosing(outputs):
            if writer.chat:
                for answer in answers:
                    yield _event(writer.piece(answer.index, None))
            found: tuple[int, Output] | None = first
            while found is not None:
                index, output = found
                answers[index].take(output)
                if output.reason in ("deadline", "error", "cancelled"):
                    yield _event(error(500, _failure(output.reason, self.host)))
                    break
                if output.text or output.reason or output.logprobs:
                    yield _event(writer.piece(index, output))
                found = await anext(outputs, None)
        self.metrics.answered(answers)
        if usage:
            yield _event(writer.closing(usage_of(read, answers)))
        yield b"data: [DONE]\n\n"

    async def _merged(self, requests: list[Request]) -> AsyncIterator[tuple[int, Output]]:
        """Outputs of several requests as they come, each with its number; leaving early cancels them all."""
        found: asyncio.Queue[tuple[int, Output] | BaseException | None] = asyncio.Queue()

        async def follow(number: int, request: Request) -> None:
            try:
                async with aclosing(self.host.generate(request)) as outputs:  # type: ignore[type-var]
                    async for output in outputs:
                        await found.put((number, output))
                await found.put(None)
            except UserError as wrong:
                await found.put(wrong)

        tasks = [asyncio.ensure_future(follow(number, request)) for number, request in enumerate(requests)]
        try:
            left = len(tasks)
            while left:
                got = await found.get()
                if isinstance(got, BaseException):
                    raise got
                if got is None:
                    left -= 1
                else:
                    yield got
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(request: Received) -> None:
    """Return when the client has hung up."""
    while not await request.is_disconnected():
        await asyncio.sleep(0.1)


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
