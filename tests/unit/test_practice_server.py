"""The page's server: whom it answers, whom it refuses, and what a page may ask for in which order."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import UserError
from burnish.practice import bank, forms, live, progress, web
from burnish.practice.service import Service
from page_elements import Elements, colors_of, contrast

BANK = bank.shipped()
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[web.Server]:
    made = web.Server(Service(BANK, tmp_path / "practice.json", forms.Asked(seed=3)), 0)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.service.close()
    made.server_close()


def send(server: web.Server, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and content of an answer."""
    connection = http.client.HTTPConnection(web.HOST, server.server_port, timeout=10)
    sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(
        method, path, sent, {k.replace("_", "-"): v for k, v in headers.items()} | (JSON if body else {})
    )
    answer = connection.getresponse()
    content = answer.read()
    assert answer.headers["Cache-Control"] == "no-store"
    connection.close()
    return answer.status, json.loads(content) if answer.headers["Content-Type"] == "application/json" else content


def call(server: web.Server, name: str, **body: Any) -> dict[str, Any]:
    status, content = send(server, "POST", f"/{server.token}/{name}", body or {"none": 0})
    assert status == 200, content
    return content


def test_only_its_own_page_is_answered(server: web.Server) -> None:
    state = f"/{server.token}/state"
    assert send(server, "GET", state)[0] == 200
    assert send(server, "GET", f"/{server.token}/")[0] == 200
    assert send(server, "GET", state, Origin=f"http://127.0.0.1:{server.server_port}")[0] == 200
    for path in ("/", "/state", f"/{server.token[:-1]}/state", "/x/state", "/%C3%A9/state"):
        assert send(server, "GET", path) == (403, {"error": "open the whole address that was printed"})
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        assert send(server, "GET", state, **headers) == (403, {"error": "the request comes from another page"})
        assert send(server, "POST", f"/{server.token}/start", {"form": "mixed"}, **headers)[0] == 403
    assert send(server, "GET", state, Host="evil.example") == (403, {"error": "the host is another one"})
    assert send(server, "GET", f"/{server.token}/other")[0] == 404
    assert server.service.state()["view"] == "menu"


def test_bodies_that_are_none_are_refused(server: web.Server) -> None:
    start = f"/{server.token}/start"
    for body in (b"{", b"[]", b"\xff", b"1" * 5000, b"[" * 4000):
        status, content = send(server, "POST", start, body)
        assert (status, "send a JSON object" in content["error"]) == (400, True)
    assert send(server, "POST", start)[0] in (400, 415)
    assert send(server, "POST", f"/{server.token}/nothing", {"a": 1})[0] == 404
    for body in ({"form": "full 3"}, {"form": 3}, {"form": "short nothing"}, {"form": "wrong"}):
        status, content = send(server, "POST", start, body)
        assert status == 400
        assert "\n" not in content["error"]


def test_answers_count_once_and_in_turn(server: web.Server) -> None:
    asked = call(server, "start", form="short zero")
    assert (asked["view"], asked["number"], asked["total"]) == ("question", 0, 6)
    assert "feedback" not in asked or asked["feedback"] is None
    assert all(set(option) == {"letter", "text"} for option in asked["options"])  # the answer is not in the page yet
    assert call(server, "answer", number=3, place=0)["view"] == "question"
    for place in (4, -1, True, "0", None):
        assert send(server, "POST", f"/{server.token}/answer", {"number": 0, "place": place})[0] == 400
    said = call(server, "answer", number=0, place=1)
    assert (said["view"], said["number"], said["feedback"]["chosen"]) == ("answered", 0, "B")
    assert call(server, "answer", number=1, place=0)["number"] == 0  # not before the next question is asked for
    following = call(server, "next")
    assert (following["view"], following["number"], following["feedback"]) == ("question", 1, None)
    for number in range(1, 6):
        call(server, "answer", number=number, place=0)
        last = call(server, "next")
    assert last["view"] == "score"
    assert last["asked"] == 6
    assert call(server, "leave")["view"] == "menu"


def test_a_half_done_test_goes_on_and_damage_is_said(server: web.Server, tmp_path: Path) -> None:
    server.service.asked = forms.Asked()
    call(server, "start", form="mixed")
    call(server, "answer", number=0, place=0)
    assert call(server, "leave")["open"] == ["mixed"]
    again = call(server, "start", form="mixed")
    assert (again["number"], again["note"]) == (1, "Going on after question 1 of 12.")
    assert call(server, "start", form="mixed", fresh=True)["number"] == 0
    (tmp_path / "practice.json").write_text("{")
    assert "set aside as practice.json.damaged-1" in call(server, "answer", number=0, place=0)["note"]
    assert progress.load(tmp_path / "practice.json")[0].of(BANK).open["mixed"].answers != ()


def test_a_timed_test_ends_when_its_time_does(server: web.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("burnish.practice.service.time.monotonic", lambda: clock[0])
    assert call(server, "start", form="short fp8", timed=True)["left"] == 540
    clock[0] += 500
    assert call(server, "answer", number=0, place=0)["view"] == "answered"
    clock[0] += 1000  # reading is free
    assert call(server, "next")["left"] == 40
    assert send(server, "POST", f"/{server.token}/answer", {"number": 1, "place": None})[0] == 400
    clock[0] += 41
    out = call(server, "answer", number=1, place=None)
    assert out["feedback"]["verdict"].startswith("Out of time.")
    assert (out["number"], call(server, "next")["view"]) == (1, "score")


def test_claims_that_are_not_there_are_said_in_a_line(server: web.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.prove.claims", lambda: ["zero"])
    monkeypatch.setattr(live, "start", lambda claim: pytest.fail("measured"))
    seen = call(server, "measure", claim="pool")["measured"]
    assert seen == {
        "claim": "pool",
        "running": False,
        "verdict": None,
        "said": "claim 'pool' is not in this installation; there are: zero",
    }
    assert send(server, "POST", f"/{server.token}/measure", {"claim": "../x"})[0] == 400


def test_a_port_that_is_taken_is_said(server: web.Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--port {server.server_port}: cannot be listened on"):
        web.serve(BANK, tmp_path / "p.json", forms.Asked(), server.server_port, print)


def test_the_page_is_whole_and_its_colours_are_told_apart() -> None:
    text = web.page().decode()
    assert "{{" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in text
    assert "connect-src 'self'" in text
    elements = Elements(re.sub(r"(?s)<(style|script)>.*?</\1>|<link[^>]*>", "", text))
    assert {"main", "header", "footer", "noscript"} <= set(elements.tags)
    assert not [name for name, _ in elements.attributes if name in ("src", "href", "srcset", "action")]
    assert 'aria-live="polite"' in text
    for theme in ("light", "dark"):
        colors = colors_of("page.css", theme)
        for ink in ("ink", "soft", "good", "bad", "measured"):
            assert contrast(colors[ink], colors["raised"]) >= 4.5
