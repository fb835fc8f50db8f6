"""A load on a server: the same requests for a seed, and figures that are those of what a server of known speed did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.bench_serve import load, requests, text
from burnish.bench_serve.client import Outcome, Server
from burnish.bench_serve.lengths import lengths
from burnish.errors import UserError


def made(seed: int, rate: float | None = 50.0, count: int = 400, shared: int = 4) -> tuple[requests.Planned, ...]:
    return requests.made(count, rate, lengths("8-32", "-"), lengths("4,6", "-"), seed, below=100, shared=shared)


def test_a_seed_decides_everything_and_the_rate_only_when() -> None:
    assert made(1) == made(1) != made(2)
    at_once = made(1, rate=None)
    assert [(one.prompt, one.new) for one in at_once] == [(one.prompt, one.new) for one in made(1)]
    assert {one.at for one in at_once} == {0.0}
    assert made(1, count=10) == made(1)[:10]
    assert len({one.prompt[:4] for one in made(1)}) == 1 < len({one.prompt[4:6] for one in made(1)})


def test_arrivals_are_a_poisson_process_and_lengths_as_asked() -> None:
    found = made(3, count=4000)
    gaps = np.diff([one.at for one in found])
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.1)  # of an exponential, as large as its mean
    sizes = [len(one.prompt) for one in found]
    assert (min(sizes), max(sizes)) == (8, 32)
    assert {one.new for one in found} == {4, 6}
    draw, far = Random(0), lengths("exponential:50", "-")
    many = [far(draw) for _ in range(4000)]
    assert np.mean(many) == pytest.approx(50, rel=0.1)
    assert 1 <= min(many) <= max(many) <= 500


@pytest.mark.parametrize("wrong", ["", "0", "5-2", "0-3", "1,0", "exponential:0", "normal:3", "-4", "3.5"])
def test_lengths_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(UserError, match=r"--new-lengths .*: a length of 1 or more is written as 128"):
        lengths(wrong, "--new-lengths")


def test_a_trace_is_read_in_the_order_of_its_times(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows = [{"at": 7.5, "prompt": "b", "new_tokens": 2}, {}, {"at": 5, "prompt_tokens": 3, "new_tokens": 1}]
    file.write_text("\n".join(json.dumps(row) if row else "" for row in rows))
    first, second = requests.trace(file, 0)
    assert (first.at, len(first.prompt), second) == (0, 3, requests.Planned(2.5, "b", 2))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", ":1: is not JSON"),
        ("[]", ":1: is no object"),
        ('{"prompt": "a", "tokens": 3}', "has 'tokens'; its keys are at, new_tokens, prompt, prompt_tokens"),
        ('{"prompt": "a", "prompt_tokens": 3, "new_tokens": 1}', "either prompt"),
        ('{"prompt_tokens": 0, "new_tokens": 1}', "prompt_tokens 0"),
        ('{"prompt": "a"}', "new_tokens None: a whole number"),
        ('{"at": -1, "prompt": "a", "new_tokens": 1}', "at -1: a number of seconds"),
        ("", "has no requests"),
    ],
)
def test_a_wrong_line_of_a_trace_is_told(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(line)
    with pytest.raises(UserError, match="--trace") as caught:
        requests.trace(tmp_path / "t", 0)
    assert said in str(caught.value)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_numpys(values: list[float]) -> None:
    found = load.percentiles(values)
    for percent in (50, 90, 99):
        assert found[f"p{percent}"] == pytest.approx(float(np.percentile(values, percent)), rel=1e-9, abs=1e-9)


Handler = Callable[[asyncio.StreamWriter, dict], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def event(**content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(size) or b"{}")
        if head.startswith("get"):
            card = json.dumps({"data": [{"id": "fox", "max_model_len": 40}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(card) + card)
        else:
            await handler(writer, body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def paced(writer: asyncio.StreamWriter, body: dict) -> None:
    """A token after 0.1 s, then one each 0.02 s; a chunk ends in the middle of an event."""
    writer.write(HEAD)
    await asyncio.sleep(0.1)
    for number in range(body["max_tokens"]):
        await asyncio.sleep(0.02 if number else 0)
        content = event(choices=[{"text": "a"}])
        writer.write(chunk(content[:9]) + chunk(content[9:]))
        await writer.drain()
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
    writer.write(chunk(event(choices=[], usage=usage)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    await writer.drain()


async def failing(writer: asyncio.StreamWriter, body: dict) -> None:
    """By the length of the prompt: busy, cut off, an error in the stream, silence; else an answer."""
    match len(body["prompt"]):
        case 1:
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n")
        case 2:
            writer.write(HEAD + chunk(event(choices=[{"text": "a"}])))
        case 3:
            writer.write(HEAD + chunk(event(error={"message": "no"})) + b"0\r\n\r\n")
        case 4:
            await asyncio.sleep(1)
        case _:
            await paced(writer, body)


def sent(handler: Handler, planned: list[requests.Planned], **options: object) -> load.Result:
    async def all_of_it() -> load.Result:
        async with listening(handler) as url:
            return await load._run(Server(url, timeout=0.6), planned, load.Sent(**options), lambda done, most: None)

    return asyncio.run(all_of_it())


def test_times_are_those_of_the_server() -> None:
    result = sent(paced, [requests.Planned(0.0, (1,) * k, 6) for k in range(1, 9)])
    assert (result.answered, result.new_tokens, result.prompt_tokens, result.failures) == (8, 48, 36, {})
    assert 0.1 <= result.first_token["p50"] < 0.18
    assert 0.02 <= result.per_token["p50"] < 0.035
    assert result.whole["p50"] == pytest.approx(result.first_token["p50"] + 5 * result.per_token["p50"], rel=0.1)
    assert result.new_tokens_a_second == pytest.approx(48 / result.seconds)
    shown = "\n".join(text.lines(result))
    assert "fox: 8 of 8 requests answered" in shown
    assert "each later token" in shown


def test_at_most_so_many_are_sent_at_once() -> None:
    together, alone = (sent(paced, [requests.Planned(0.0, (1,), 2)] * 4, at_once=n).seconds for n in (4, 1))
    assert alone > 3 * together


def test_failures_are_counted_by_kind_and_spoil_no_figure() -> None:
    result = sent(failing, [requests.Planned(0.0, (1,) * k, 3) for k in (1, 1, 2, 3, 4, 5)])
    assert result.failures == {"HTTP 429": 2, "cut off": 1, "error in the stream": 1, "timeout": 1}
    assert (result.answered, result.new_tokens) == (1, 3)


def test_what_the_server_cannot_take_is_told_before_anything_is_sent() -> None:
    with pytest.raises(UserError, match="30 tokens of a prompt and 11 new ones are more than the 40 that fox takes"):
        sent(paced, [requests.Planned(0.0, (1,) * 30, 11)])
    with pytest.raises(UserError, match="no connection; is the server up"):
        load.run(Server("http://127.0.0.1:9/v1"), [], load.Sent())
    for url in ("127.0.0.1:8000", "ftp://a/v1", "http://a:99999/v1"):
        with pytest.raises(UserError, match="--url"):
            Server(url)


def test_nothing_answered_has_no_latencies() -> None:
    result = load.summed("fox", [Outcome("timeout")], 1.0)
    assert (result.first_token, result.failures) == ({}, {"timeout": 1})
    assert list(text.lines(result))
