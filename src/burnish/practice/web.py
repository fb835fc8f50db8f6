"""Web: the practice test as a page of this machine, for nobody who does not know its address."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.practice.bank import Bank
from burnish.practice.forms import Asked
from burnish.practice.service import Service

HOST = "127.0.0.1"
LONGEST = 4096  # bytes of a request's body
ENOUGH = 1 << 20  # bytes after which a longer one is cut off
PATIENCE = 10  # seconds for a client to say what it wants
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def page() -> bytes:
    """The page: style and script are in it, and all that it asks for is asked of where it came from."""

    def asset(package: str, name: str) -> str:
        return resources.files(package).joinpath(name).read_text(encoding="utf-8")

    here = "burnish.practice"
    frame = asset(here, "practice.html").replace("{{script}}", asset(here, "practice.js"))
    return frame.replace("{{style}}", asset("burnish", "page.css") + asset(here, "practice.css")).encode()


class Server(ThreadingHTTPServer):
    """A server of one service. Only requests that carry the token in their path and come from its own page count."""

    daemon_threads = True

    def __init__(self, service: Service, port: int) -> None:
        super().__init__((HOST, port), Handler)
        self.service, self.token, self.page = service, secrets.token_urlsafe(16), page()
        self.names = tuple(f"{name}:{self.server_port}" for name in (HOST, "localhost"))

    @property
    def address(self) -> str:
        """What a person opens."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = PATIENCE
    server_version, sys_version = "burnish", ""

    def do_GET(self) -> None:
        """The page, or the state."""
        name = self._asked()
        if name == "":
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif name == "state":
            self._answer(self.server.service.state)
        elif name is not None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:
        """A call of the service; its body is a JSON object."""
        content = self._content()  # read whatever comes of it: a client that is cut off sees no answer
        name = self._asked()
        if name is None:
            return
        if name not in self.server.service.calls:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such call")
        elif self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
        elif (body := parsed(content)) is None:
            self._refuse(HTTPStatus.BAD_REQUEST, f"send a JSON object of at most {LONGEST} bytes, with its length")
        else:
            self._answer(lambda: self.server.service.call(name, body))

    def _content(self) -> bytes:
        """What was sent, as far as anybody would read."""
        length = self.headers.get("Content-Length", "")
        return self.rfile.read(min(int(length), ENOUGH)) if length.isascii() and length.isdecimal() else b""

    def _asked(self) -> str | None:
        """The path behind the token; None after having refused."""
        token, _, name = self.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "open the whole address that was printed")
        elif self.headers.get("Host") not in self.server.names:
            self._refuse(HTTPStatus.FORBIDDEN, "the host is another one")
        elif self._foreign():
            self._refuse(HTTPStatus.FORBIDDEN, "the request comes from another page")
        else:
            return name
        return None

    def _foreign(self) -> bool:
        """Whether a browser says that another page has sent it; programs that are none say nothing."""
        origins = ("", *(f"http://{name}" for name in self.server.names))
        sites = ("none", "same-origin")
        return self.headers.get("Origin", "") not in origins or self.headers.get("Sec-Fetch-Site", "none") not in sites

    def _answer(self, act: Callable[[], dict[str, Any]]) -> None:
        try:
            self._send(HTTPStatus.OK, json.dumps(act()).encode(), "application/json")
        except UserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._send(status, json.dumps({"error": why}).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(content))} | HEADERS).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what a person answers is theirs."""


def parsed(content: bytes) -> dict[str, Any] | None:
    """The JSON object of a body, None where it is none or too long."""
    try:
        body = json.loads(content) if len(content) <= LONGEST else None
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def serve(bank: Bank, path: Path, asked: Asked, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `say` is told the address. Raises UserError where the port cannot be had."""
    service = Service(bank, path, asked)
    try:
        server = Server(service, port)
    except OSError as error:
        raise UserError(f"--port {port}: cannot be listened on ({error.strerror}); 0 takes a free one") from None
    say(f"practice is at {server.address}")
    say("it is for this machine only; Ctrl-C ends it, and what was answered is kept")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        service.close()
        server.server_close()
