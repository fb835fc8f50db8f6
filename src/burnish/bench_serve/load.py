"""Sending requests when they are due, and what they add up to: throughput, latencies, failures by kind."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from burnish.bench_serve.client import Outcome, Server, complete, models
from burnish.bench_serve.requests import Planned
from burnish.errors import UserError

PERCENTILES = (50, 90, 99)
LATE = 0.1  # seconds after which a request that was sent late is told: then the client is what was measured


@dataclass(frozen=True)
class Sent:
    """How requests are sent: most at once (None: all that are due), the model's name (None: the first that the server lists), and
    fields of every body."""

    at_once: int | None = None
    model: str | None = None
    fields: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Result:
    """Figures of a load. Latencies are in seconds: of the first token, of each later token, of the whole answer."""

    model: str
    requests: int
    answered: int
    failures: dict[str, int]
    seconds: float
    requests_a_second: float
    new_tokens: int
    new_tokens_a_second: float
    prompt_tokens: int
    prompt_tokens_found: int
    prompt_tokens_a_second: float
    first_token: dict[str, float]
    per_token: dict[str, float]
    whole: dict[str, float]
    sent_late: float

    def record(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def run(
    server: Server, planned: Sequence[Planned], sent: Sent, watch: Callable[[int, int], None] = lambda done, all_: None
) -> Result:
    """Send all requests and wait for their answers. Raises UserError where the server cannot be asked at all, or where a request
    is longer than it says it takes."""
    return asyncio.run(_run(server, planned, sent, watch))


async def _run(server: Server, planned: Sequence[Planned], sent: Sent, watch: Callable[[int, int], None]) -> Result:
    found = await models(server)
    name, room = sent.model or str(found.get("id")), found.get("max_model_len")
    for long in planned:
        if isinstance(room, int) and long.most is not None and long.most > room:
            raise UserError(
                f"{long.most - long.new:,} tokens of a prompt and {long.new:,} new ones are more than the {room:,} that {name} "
                "takes; lower --prompt-lengths or --new-lengths"
            )
    gate = asyncio.Semaphore(sent.at_once or len(planned) or 1)
    began = time.perf_counter()
    done = 0

    async def one(request: Planned) -> Outcome:
        nonlocal done
        await asyncio.sleep(max(0.0, began + request.at - time.perf_counter()))
        async with gate:
            late = time.perf_counter() - began - request.at
            body: dict[str, Any] = {"model": name, "prompt": request.prompt, "max_tokens": request.new, "stream": True}
            body |= {"stream_options": {"include_usage": True}, **dict(sent.fields)}
            outcome = await complete(server, body, 0.0 if sent.at_once else late)
        done += 1
        watch(done, len(planned))
        return outcome

    outcomes = await asyncio.gather(*(one(request) for request in planned))
    return summed(name, outcomes, time.perf_counter() - began)


def summed(model: str, outcomes: Sequence[Outcome], seconds: float) -> Result:
    """The figures of what came back within `seconds`."""
    good = [one for one in outcomes if not one.failure]
    tokens, prompts = sum(one.tokens for one in good), sum(one.prompt for one in good)
    return Result(
        model,
        len(outcomes),
        len(good),
        dict(sorted(Counter(one.failure for one in outcomes if one.failure).items())),
        seconds,
        len(good) / seconds,
        tokens,
        tokens / seconds,
        prompts,
        sum(one.reused for one in good),
        prompts / seconds,
        percentiles([one.first for one in good]),
        percentiles([one.per_token for one in good if one.per_token is not None]),
        percentiles([one.last for one in good]),
        max((one.late for one in outcomes), default=0.0),
    )


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90 and p99, linear between neighbours, and the mean; empty for no values."""
    if not values:
        return {}
    rising = sorted(values)
    found = {}
    for percent in PERCENTILES:
        place = (len(rising) - 1) * percent / 100
        low, part = math.floor(place), place % 1
        found[f"p{percent}"] = rising[low] * (1 - part) + rising[math.ceil(place)] * part
    return found | {"mean": sum(rising) / len(rising)}
