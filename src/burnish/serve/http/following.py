"""Following requests in progress: the outputs of several as they come, and whether their client is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request as Received

from burnish.errors import UserError
from burnish.serve.engine import Output, Request
from burnish.serve.host import Host

Outputs = AsyncGenerator[tuple[int, Output], None]


class Left(Exception):
    """The client has hung up."""


async def merged(host: Host, requests: Sequence[Request]) -> Outputs:
    """Outputs of several requests as they come, each with its number; leaving early cancels them all. Raises as `Host.generate`."""
    found: asyncio.Queue[tuple[int, Output] | BaseException | None] = asyncio.Queue()

    async def follow(number: int, request: Request) -> None:
        try:
            async with aclosing(host.generate(request)) as outputs:  # type: ignore[type-var]
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


async def hung_up(request: Received) -> None:
    """Return when the client of a request whose body was read has hung up. Nothing is polled: thousands may wait."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def following(outputs: Outputs, gone: asyncio.Future[None]) -> tuple[int, Output] | None:
    """The next output, None after the last. Raises Left once `gone` is done; what runs is cancelled by then."""
    task = asyncio.ensure_future(anext(outputs, None))
    waiting: set[asyncio.Future[Any]] = {task, gone}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
        raise Left
    return task.result()
