"""The server as its clients meet it: the official client, clients that leave, floods, bad bodies, and its end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import openai
import pytest

from served_model import POSITIONS, Server, chat_model, events, served

KEY = "a-key"
PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("served") / "fox")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with served(
        folder, "--api-key", KEY, "--memory", "8MiB", "--rows", "8", "--queue", "16", "--step-tokens", "64"
    ) as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=KEY, max_retries=0, timeout=60)


def post(server: Server, path: str, body: object, key: str = KEY) -> httpx.Response:
    content = body if isinstance(body, bytes | str) else json.dumps(body)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return httpx.post(f"{server.address}/v1/{path}", content=content, headers=headers, timeout=60)


def test_the_official_client_lists_the_model(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, client.models.retrieve("fox").id) == ("fox", "fox")
    with pytest.raises(openai.NotFoundError, match="'cat' is not served; fox is"):
        client.models.retrieve("cat")


def test_a_completion_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    asked = {"model": "fox", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    whole = client.completions.create(**asked)
    pieces = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].text for piece in pieces[:-1]) == whole.choices[0].text
    assert whole.choices[0].text
    assert pieces[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24


def test_a_chat_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "Be a fox."}, {"role": "user", "content": "Jump!"}]
    asked = {"model": "fox", "messages": messages, "max_completion_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    pieces = list(client.chat.completions.create(**asked, stream=True))
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.choices[0].message.content
    told = whole.choices[0].logprobs.content
    assert len(told) == 16
    assert all(one.logprob == pytest.approx(one.top_logprobs[0].logprob) for one in told)  # greedy takes the likeliest


def test_several_prompts_answers_seeds_and_stop_strings(client: openai.OpenAI) -> None:
    asked = {"model": "fox", "max_tokens": 12, "temperature": 1.0, "seed": 5}
    both = client.completions.create(prompt=[PROMPT, [1, 2, 3]], n=2, **asked)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    again = client.completions.create(prompt=PROMPT, n=2, **asked)
    assert [choice.text for choice in again.choices] == [choice.text for choice in both.choices[:2]]
    assert both.choices[0].text != both.choices[1].text
    text = both.choices[0].text
    stop = text[len(text) // 2 :][:2]
    cut = client.completions.create(prompt=PROMPT, stop=[stop], **asked)
    assert cut.choices[0].text == text[: text.find(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_logprobs_of_a_completion_tell_where_each_token_begins(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="fox", prompt=PROMPT, max_tokens=6, temperature=0, logprobs=3).choices[0]
    told = whole.logprobs
    assert len(told.tokens) == len(told.text_offset) == 6
    assert told.text_offset == [len("".join(told.tokens[:k])) for k in range(6)]
    assert all(len(top) == 3 for top in told.top_logprobs)


def test_a_beginning_that_was_read_before_is_found(client: openai.OpenAI, server: Server) -> None:
    asked = {"model": "fox", "max_tokens": 2, "temperature": 0, "prompt": [7] * 100}
    first, second = (client.completions.create(**asked).usage.prompt_tokens_details.cached_tokens for _ in range(2))
    assert (first, second) == (0, 96)


def test_tokens_can_be_counted_before_they_are_sent(server: Server) -> None:
    def ask(path: str, body: object) -> httpx.Response:
        return httpx.post(f"{server.address}{path}", json=body, headers={"authorization": f"Bearer {KEY}"})

    told = ask("/tokenize", {"prompt": PROMPT, "return_token_strs": True}).json()
    assert told["count"] == len(told["tokens"])
    assert "".join(told["token_strs"]).strip() == PROMPT
    whole = post(server, "completions", {"prompt": PROMPT, "max_tokens": 1}).json()
    assert whole["usage"]["prompt_tokens"] == told["count"]
    assert ask("/detokenize", {"tokens": told["tokens"]}).json()["prompt"].strip() == PROMPT
    messages = [{"role": "user", "content": PROMPT}]
    chat = ask("/tokenize", {"messages": messages}).json()["count"]
    answer = post(server, "chat/completions", {"messages": messages, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == chat > told["count"]
    assert "outside the vocabulary 0..299" in ask("/detokenize", {"tokens": [300]}).json()["error"]["message"]
    assert "give either prompt or messages" in ask("/tokenize", {}).json()["error"]["message"]


def test_what_penalties_and_ends_do(server: Server) -> None:
    def text(**asked: object) -> str:
        body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "logprobs": 0, **asked}
        return post(server, "completions", body).json()["choices"][0]["logprobs"]["tokens"]

    plain, penalised = text(), text(presence_penalty=2, frequency_penalty=2)
    assert len(set(penalised)) / len(penalised) > len(set(plain)) / len(plain)
    assert len(text(temperature=1, seed=3, max_tokens=400, ignore_eos=True)) == 400


BAD: dict[str, tuple[str, object, int, str]] = {
    "no json": ("completions", b"{", 400, "the body is not JSON"),
    "not a number": ("completions", b'{"prompt": "a", "temperature": NaN}', 400, "NaN is no number"),
    "deep": ("completions", b"[" * 100_000, 400, "the body is not JSON"),
    "half a character": ("completions", b'{"prompt": "\\ud800"}', 400, "half of a surrogate pair"),
    "a list": ("completions", [], 400, "valid dictionary"),
    "no prompt": ("completions", {}, 400, "prompt: Field required"),
    "empty prompt": ("completions", {"prompt": []}, 400, "prompt: it is empty"),
    "foreign token": ("completions", {"prompt": [10**6]}, 400, "outside the vocabulary 0..299"),
    "temperature": ("completions", {"prompt": "a", "temperature": 3}, 400, "temperature: Input should be less than"),
    "unknown field": ("completions", {"prompt": "a", "tempo": 3}, 400, "tempo: Extra inputs are not permitted"),
    "not honoured": ("completions", {"prompt": "a", "logit_bias": {"1": 5}}, 400, "logit_bias is not honoured"),
    "too long": ("completions", {"prompt": [1] * (POSITIONS + 1)}, 400, f"not under the {POSITIONS} positions"),
    "too much": ("completions", {"prompt": "a", "max_tokens": POSITIONS}, 400, "max_tokens must be 511 or less"),
    "too much of a chat": (
        "chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": POSITIONS},
        400,
        "max_completion_tokens must be",
    ),
    "too many": ("completions", {"prompt": ["a"] * 9, "n": 2}, 400, "9 prompts with n 2 are 18 answers; at most 16"),
    "long stop": ("completions", {"prompt": "a", "stop": "b" * 1001}, 400, "stop: String should have at most 1000"),
    "many stops": ("completions", {"prompt": "a", "stop": ["b"] * 65}, 400, "stop: List should have at most 64"),
    "no messages": ("chat/completions", {"messages": []}, 400, "messages"),
    "picture": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        400,
        "messages.0.content",
    ),
    "other model": ("completions", {"prompt": "a", "model": "cat"}, 404, "model 'cat' is not served; fox is"),
    "large": ("completions", b" " * (5 * 2**20), 413, "4,194,304 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_told_its_field_and_the_limit(name: str, server: Server) -> None:
    path, body, status, said = BAD[name]
    answer = post(server, path, body)
    assert answer.status_code == status
    message = answer.json()["error"]["message"]
    assert said in message
    assert "\n" not in message


def test_who_does_not_know_the_key_is_turned_away(server: Server) -> None:
    assert post(server, "completions", {"prompt": "a"}, key="another").status_code == 401
    assert httpx.get(f"{server.address}/v1/models").status_code == 401
    assert httpx.get(f"{server.address}/health").json()["status"] == "ok"
    assert httpx.get(f"{server.address}/v1/nothing", headers={"authorization": f"Bearer {KEY}"}).status_code == 404


async def _leave(server: Server, number: int) -> None:
    body = {"prompt": [number % 200] * 30, "max_tokens": 400, "stream": number % 2 == 0}
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(timeout=30) as client:
        if not body["stream"]:
            patience = httpx.Timeout(30, read=0.1)
            with suppress(httpx.ReadTimeout):  # a fast machine may have answered by then
                await client.post(f"{server.address}/v1/completions", json=body, headers=headers, timeout=patience)
            return
        async with client.stream("POST", f"{server.address}/v1/completions", json=body, headers=headers) as answer:
            async for _ in answer.aiter_lines():
                return


def test_clients_that_leave_hold_no_pages(server: Server) -> None:
    async def leave_all() -> None:
        await asyncio.gather(*(_leave(server, number) for number in range(12)))

    asyncio.run(leave_all())
    found = server.settled()
    assert found["burnish_running"] + found["burnish_waiting"] == 0
    assert found["burnish_pages_free"] == found["burnish_pages"]


def test_who_leaves_while_waiting_gives_up_the_place_in_the_queue(server: Server) -> None:
    async def leave_the_queue() -> tuple[float, float]:
        address, headers = f"{server.address}/v1/completions", {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(timeout=60, headers=headers) as client:
            long = {"prompt": [5], "max_tokens": 500, "n": 8, "ignore_eos": True}
            runs = asyncio.ensure_future(client.post(address, json=long))
            while server.metrics()["burnish_running"] < 8:
                await asyncio.sleep(0.01)
            waits = [client.post(address, json={"prompt": [6], "stream": k % 2 == 0}, timeout=0.1) for k in range(4)]
            gone = await asyncio.gather(*waits, return_exceptions=True)
            assert all(isinstance(one, httpx.ReadTimeout) for one in gone)
            await asyncio.sleep(0.05)
            found = server.metrics()
            await runs
        return found["burnish_waiting"], found["burnish_running"]

    assert asyncio.run(leave_the_queue()) == (0, 8)
    assert server.settled()['burnish_answers_total{reason="left"}'] >= 4


def test_every_metric_that_the_page_names_is_there(server: Server) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text().split("## Metrics")[1].split("\n## ")[0]
    named = {
        name for row in page.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)", row.split("|")[1])
    }
    lines = httpx.get(f"{server.address}/metrics").text.splitlines()
    there = {line.split()[2].removeprefix("burnish_") for line in lines if line.startswith("# TYPE")}
    assert named == {name for name in there if not name.endswith("_created")}


def test_a_flood_is_answered_or_told_to_come_back(server: Server) -> None:
    async def flood() -> Counter[int]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(timeout=120, limits=limits, headers={"authorization": f"Bearer {KEY}"}) as client:
            asked = [
                client.post(f"{server.address}/v1/completions", json={"prompt": [k % 200], "max_tokens": 8})
                for k in range(150)
            ]
            answers = await asyncio.gather(*asked)
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
        return Counter(answer.status_code for answer in answers)

    statuses = asyncio.run(flood())
    assert set(statuses) == {200, 429}
    found = server.settled()
    assert found["burnish_pages_free"] == found["burnish_pages"]


def test_the_end_finishes_what_runs_and_turns_the_rest_away(folder: Path) -> None:
    with served(folder, "--memory", "8MiB") as server:
        body = {"prompt": PROMPT, "max_tokens": 300, "stream": True, "temperature": 0, "ignored": None}
        del body["ignored"]
        found: list[str] = []

        def follow() -> None:
            with httpx.stream("POST", f"{server.address}/v1/completions", json=body, timeout=60) as answer:
                found.extend(answer.iter_text())

        thread = threading.Thread(target=follow)
        thread.start()
        while not found:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        thread.join(60)
        assert server.process.wait(30) == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.address}/health")
    pieces = events("".join(found))
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"
    assert "".join(found).rstrip().endswith("data: [DONE]")


def test_what_takes_longer_than_the_end_allows_is_cut_and_said(folder: Path) -> None:
    with (
        served(folder, "--memory", "8MiB", "--drain", "0") as server,
        httpx.stream(
            "POST",
            f"{server.address}/v1/completions",
            json={"prompt": "a", "max_tokens": 500, "n": 16, "stream": True},
            timeout=60,
        ) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        assert server.ends(signal.SIGTERM) == 4
