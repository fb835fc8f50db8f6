"""A server treated badly: clients that leave, 10,000 that wait, bodies nobody thought of, prompts too long, the end under load.

After each, no page may be held and no request be left: asserted through /metrics. bench/results/serve_hard.json.
"""

from __future__ import annotations

import asyncio
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from burnish.bench_serve.client import Failed, Server
from burnish.bench_serve.client import events as following
from burnish.bench_serve.load import Result, Sent, run
from burnish.bench_serve.requests import Planned
from record import record
from served_model import POSITIONS, chat_model, served

LEAVE, WAIT, LONG, LAST = 200, 10_000, 50, 64
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def held(server: Any) -> int:
    """Pages and requests that are left once nothing should be."""
    found = server.settled(60)
    return int(
        found["burnish_pages"] - found["burnish_pages_free"] + found["burnish_running"] + found["burnish_waiting"]
    )


def load(server: Any, planned: list[Planned]) -> Result:
    """What became of requests sent at once."""
    return run(Server(f"{server.address}/v1"), planned, Sent(fields=(("ignore_eos", True),)))


def refused_otherwise(result: Result) -> int:
    """Answers with a status above 499, or none at all."""
    return sum(count for kind, count in result.failures.items() if kind != "HTTP 429")


async def leave(server: Any) -> None:
    """Clients that go after so many events as their number says, 0 to 9."""

    async def one(number: int) -> None:
        body = {"prompt": [number % 200] * 30, "max_tokens": 200, "stream": True, "ignore_eos": True}
        events = following(Server(f"{server.address}/v1"), body)
        with suppress(Failed):
            for _ in range(number % 10):
                if await anext(events, None) is None:
                    break
        await events.aclose()

    await asyncio.gather(*(one(number) for number in range(LEAVE)))


def fuzz(server: Any, folder: str) -> tuple[int, int]:
    """(requests made of the server's own description, answers that it does not describe or above 499)."""
    tool = str(Path(sys.executable).with_name("schemathesis"))
    options = ["--checks", CHECKS, "--max-examples", "60", "--seed", "1", "--no-color", "--phases"]
    command = [tool, "run", f"{server.address}/openapi.json", *options, "examples,coverage,fuzzing"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=400)
    made = re.search(r"(\d+) generated", ran.stdout)
    failed = re.search(r"(\d+) unique failures?|(\d+) found", ran.stdout)
    if ran.returncode:
        print(ran.stdout[-4000:])
    return int(made[1]) if made else 0, 0 if ran.returncode == 0 else int((failed and (failed[1] or failed[2])) or 1)


def too_long(server: Any) -> Counter[int]:
    """Statuses of prompts longer than the context, or with more new tokens than are left."""
    bodies = [{"prompt": [1] * (POSITIONS + k)} for k in range(LONG)]
    bodies += [{"prompt": [1] * (POSITIONS - 10), "max_tokens": 11 + k} for k in range(LONG)]
    with httpx.Client(timeout=60) as client:
        return Counter(client.post(f"{server.address}/v1/completions", json=body).status_code for body in bodies)


def ended(folder: Path) -> tuple[int, float, int]:
    """SIGTERM while LAST answers are written: (exit code, seconds until the end, streams that were cut)."""
    with served(folder, "--memory", "32MiB", "--rows", "16", "--queue", "100", "--drain", "60") as server:

        async def all_of_it() -> tuple[float, int]:
            async def one(number: int) -> bool:
                body = {"prompt": [number], "max_tokens": 400, "stream": True, "ignore_eos": True}
                try:
                    return len([event async for event in following(Server(f"{server.address}/v1"), body)]) > 0
                except Failed:
                    return False

            tasks = [asyncio.ensure_future(one(number)) for number in range(LAST)]
            while True:
                found = server.metrics()
                if found["burnish_running"] + found["burnish_waiting"] == LAST:
                    break
                await asyncio.sleep(0.02)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            whole = await asyncio.gather(*tasks)
            return time.monotonic() - began, whole.count(False)

        seconds, cut = asyncio.run(all_of_it())
        return server.process.wait(60), seconds, cut


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection is a file, here and in the server
    values: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = chat_model(Path(place) / "fox")
        with served(folder, "--memory", "32MiB", "--rows", "16", "--queue", str(WAIT), "--timeout", "400") as server:
            asyncio.run(leave(server))
            values |= {"leave.clients": LEAVE, "leave.held": held(server)}
            crowd = load(server, [Planned(0.0, (number % 200, number // 200), 2) for number in range(WAIT)])
            values |= {"crowd.clients": WAIT, "crowd.answered": crowd.answered, "crowd.seconds": crowd.seconds}
            values |= {"crowd.failed": refused_otherwise(crowd), "crowd.held": held(server)}
            long = too_long(server)
            values |= {"long.refused": long[400], "long.otherwise": long.total() - long[400], "long.held": held(server)}
            made, wrong = fuzz(server, place)
            values |= {"fuzz.requests": made, "fuzz.wrong": wrong, "fuzz.held": held(server)}
            values["alive"] = int(server.process.poll() is None)
        code, seconds, cut = ended(folder)
        values |= {"end.code": code, "end.seconds": seconds, "end.cut": cut}
    print(record("serve_hard", values), values)
