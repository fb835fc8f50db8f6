"""One streamed completion over HTTP, timed: a client small enough that thousands of them wait in one thread."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from burnish.errors import UserError

LINE = 2**22  # most bytes of one line of an answer
NOBODY = "no connection"


class Failed(Exception):
    """Why there was no whole answer, as the kind that failures are counted by."""


@dataclass(frozen=True)
class Server:
    """Where to ask: `url` up to and with /v1, the key to send, and the seconds that an answer may take."""

    url: str
    key: str | None = None
    timeout: float = 600.0
    host: str = field(init=False)
    port: int = field(init=False)
    path: str = field(init=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            raise UserError(f"--url {self.url}: its port is no number from 0 to 65535") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"--url {self.url}: write it as http://127.0.0.1:8000/v1")
        object.__setattr__(self, "host", parts.hostname)
        object.__setattr__(self, "port", port or (443 if parts.scheme == "https" else 80))
        object.__setattr__(self, "path", parts.path.rstrip("/"))

    @property
    def secure(self) -> ssl.SSLContext | None:
        """For https."""
        return ssl.create_default_context() if self.url.startswith("https") else None


@dataclass(frozen=True)
class Outcome:
    """What became of a request. Seconds from when it was sent: `first` token, `last` event. `late`: how long after it was due
    it was sent. `failure` is empty for a whole answer."""

    failure: str = ""
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    prompt: int = 0
    reused: int = 0
    late: float = 0.0

    @property
    def per_token(self) -> float | None:
        """Seconds of a token after the first one."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None


async def complete(server: Server, body: dict[str, Any], late: float = 0.0) -> Outcome:
    """Ask for a streamed completion and time what comes."""
    began = time.perf_counter()
    times: list[float] = []
    usage: dict[str, Any] = {}
    pieces = 0
    try:
        async with asyncio.timeout(server.timeout):
            async for event in events(server, body):
                if "error" in event:
                    raise Failed("error in the stream")
                usage = event.get("usage") or usage
                if event.get("choices"):
                    pieces += 1
                    times.append(time.perf_counter() - began)
    except TimeoutError:
        return Outcome("timeout", late=late)
    except Failed as failed:
        return Outcome(str(failed), late=late)
    if not times:
        return Outcome("empty answer", late=late)
    details = usage.get("prompt_tokens_details") or {}
    read, found = usage.get("prompt_tokens", 0), details.get("cached_tokens") or 0
    return Outcome("", times[0], times[-1], usage.get("completion_tokens", pieces), read, found, late)


async def models(server: Server) -> dict[str, Any]:
    """The first model that a server lists. Raises UserError where there is none to be asked."""
    try:
        async with asyncio.timeout(min(server.timeout, 30)):
            text = "".join([line async for line in _lines(server, "GET", "/models", b"")])
        return dict(json.loads(text)["data"][0])
    except TimeoutError:
        raise UserError(f"--url {server.url}: gave no answer; is the server up?") from None
    except Failed as failed:
        if str(failed) == NOBODY:
            raise UserError(f"--url {server.url}: no connection; is the server up?") from None
        raise UserError(
            f"--url {server.url}: {failed} of /models; is it the address up to /v1, and the key right?"
        ) from None
    except (ValueError, LookupError, TypeError):
        raise UserError(f"--url {server.url}: /models lists no model; is it the address up to /v1?") from None


async def events(server: Server, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a stream, which must end with [DONE]. Raises Failed."""
    async for line in _lines(server, "POST", "/completions", json.dumps(body).encode()):
        if line.startswith("data: [DONE]"):
            return
        if line.startswith("data: "):
            try:
                yield dict(json.loads(line[6:]))
            except (ValueError, TypeError):
                raise Failed("event that is not JSON") from None
    raise Failed("cut off")


async def _lines(server: Server, method: str, path: str, body: bytes) -> AsyncIterator[str]:
    """The lines of an answer with status 200. Raises Failed."""
    try:
        opening = asyncio.open_connection(server.host, server.port, ssl=server.secure, limit=LINE)
        reader, writer = await opening
    except OSError:
        raise Failed(NOBODY) from None
    try:
        head = [f"{method} {server.path}{path} HTTP/1.1", f"Host: {server.host}:{server.port}", "Connection: close"]
        head += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
        head += [f"Authorization: Bearer {server.key}"] if server.key else []
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        status = (await reader.readline()).split()
        if len(status) < 2:
            raise Failed("cut off")
        fields = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            fields[name.lower()] = value.strip().lower()
        if status[1] != b"200":
            raise Failed(f"HTTP {status[1].decode('latin-1')}")
        async for text in _content(reader, fields.get("transfer-encoding") == "chunked"):
            yield text
    except (OSError, EOFError, ValueError):
        raise Failed("cut off") from None
    finally:
        writer.close()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


async def _content(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[str]:
    """Lines of a body, in chunks or up to the end of the connection."""
    left = b""
    while True:
        if chunked:
            size = int((await reader.readline()).partition(b";")[0], 16)
            piece = await reader.readexactly(size)
            await reader.readline()
        else:
            piece = await reader.read(2**16)
        *whole, left = (left + piece).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").strip("\r")
        if not piece:
            break
    if left:
        yield left.decode("utf-8", "replace")
