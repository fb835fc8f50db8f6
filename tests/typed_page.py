"""A page in a headless browser that is driven by its keyboard alone, over the browser's own debugging pipe."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser import BROWSER, QUIET

KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), " ": (32, " "), "ArrowDown": (40, "")}


class Page:
    """One tab. Commands are JSON, each ended by a zero byte."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive, self.left = send, receive, b""
        self.number, self.session = 0, ""
        self.console: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events met on the way are noted."""
        self.number += 1
        said = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            said["sessionId"] = self.session
        os.write(self.send, json.dumps(said).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self.number:
                assert "error" not in found, found
                return found["result"]
            self._note(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.left:
            read = os.read(self.receive, 1 << 16)
            assert read, "the browser has ended"
            self.left += read
        one, _, self.left = self.left.partition(b"\0")
        return json.loads(one)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.console.append(json.dumps(told)[:500])

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 20) -> Any:
        """Wait until an expression is true in the page, and give it."""
        end, asked = time.monotonic() + seconds, f"((found) => found instanceof Node || found)({script})"
        while not (found := self.value(asked)):
            assert time.monotonic() < end, f"{script}\n{self.value('document.body.innerText')}\n{self.console}"
            time.sleep(0.05)
        return found

    def press(self, key: str, times: int = 1) -> None:
        """Press a key and let it go."""
        code, text = KEYS.get(key, (ord(key.upper()[0]), key))
        for _ in range(times):
            event = {"key": key, "windowsVirtualKeyCode": code, "text": text}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def tab_to(self, identity: str, most: int = 60) -> None:
        """Press Tab until an element has the focus."""
        for _ in range(most):
            if self.value("document.activeElement.id") == identity:
                return
            self.press("Tab")
        raise AssertionError(f"{identity} is not reached by Tab")


@contextmanager
def opened(address: str, profile: Path, width: int = 800, dark: bool = False) -> Iterator[Page]:
    """The page of an address, in a window of some width."""
    there, ours = os.pipe(), os.pipe()
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", *QUIET.split(), "--remote-debugging-pipe"]
    command += [f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    shell = ["bash", "-c", f'exec "$0" "$@" 3<&{there[0]} 4>&{ours[1]}', *command]
    process = subprocess.Popen(
        shell, pass_fds=(there[0], ours[1]), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    os.close(there[0])
    os.close(ours[1])
    page = Page(there[1], ours[0])
    try:
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=address)
        yield page
    finally:
        process.kill()
        process.wait()
        os.close(page.send)
        os.close(page.receive)
