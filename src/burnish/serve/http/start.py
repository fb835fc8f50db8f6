"""Starting the server on a port, and ending it: what runs is finished first, new requests are turned away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from burnish.errors import UserError
from burnish.serve.engine import Engine
from burnish.serve.host import Host
from burnish.serve.http.app import Rules, make_app
from burnish.serve.served import Served


class _Server(uvicorn.Server):
    """Turns new requests away from the first signal on; a second signal ends what runs."""

    def __init__(self, config: uvicorn.Config, host: Host) -> None:
        super().__init__(config)
        self.engine_host = host

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.force_exit = self.should_exit
        self.should_exit = self.engine_host.draining = True


def run(
    engine: Engine,
    served: Served,
    rules: Rules,
    place: tuple[str, int],
    drain: int,
    ready: Callable[[str], None] = lambda address: None,
) -> bool:
    """Serve until a signal comes, then finish what runs within `drain` seconds; whether all of it was finished.

    `place`: address and port, 0 for any free one; `ready` is told where. Raises UserError for a place that is taken.
    """
    address, port = place
    listening = _listen(address, port)
    host = Host(engine)
    config = uvicorn.Config(
        make_app(host, served, rules), log_level="warning", timeout_graceful_shutdown=drain, lifespan="off"
    )
    server = _Server(config, host)
    shown = f"[{address}]" if ":" in address else address
    ready(f"http://{shown}:{listening.getsockname()[1]}")
    try:
        asyncio.run(server.serve([listening]))
    finally:
        left = engine.busy or host.cut
        host.stop()
    return not left


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"--host {address} --port {port}: {error.strerror or error}; choose another, or --port 0"
        ) from None
    listening.listen(2048)
    return listening
