"""A real browser for pages: what it measures in a frame of a given width, its console, and pictures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
NEEDED = pytest.mark.skipif(BROWSER is None, reason="no chromium found; scripts/test installs it where it may")

QUIET = "--no-first-run --disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"
DARK = "--blink-settings=preferredColorScheme=0"

# Goes into a copy of the page: opens what is folded, moves a pointer over the curve, tells the frame what it sees.
PROBE = """<script>
for (const d of document.querySelectorAll("details")) d.open = true;
const plot = document.querySelector(".plot");
if (plot) {
  const box = plot.getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2, clientY: box.top + 9}));
}
const wide = [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5);
parent.postMessage(JSON.stringify({
  width: innerWidth,
  scroll: document.documentElement.scrollWidth,
  wide: wide.map((e) => e.tagName + "." + e.className + " in " + e.parentNode.tagName + "." + e.parentNode.className),
  requests: performance.getEntriesByType("resource").map((e) => e.name),
  tip: document.querySelector(".tip")?.textContent,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  ground: getComputedStyle(document.body).backgroundColor,
}), "*");
</script>
"""


def browse(page: Path, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a local page in a fresh headless browser without any name resolution."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", *QUIET.split(), "--enable-logging=stderr"]
    command += [f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)


def look(html: str, folder: Path, width: int, *options: str) -> dict:
    """What the page measures inside a frame of `width` pixels, with the browser's console messages."""
    (folder / "copy.html").write_text(html.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    frame = f"""<!doctype html><meta name="color-scheme" content="light dark"><body><p id="seen"></p>
<script>addEventListener("message", (e) => {{ document.getElementById("seen").textContent = e.data; }});</script>
<iframe src="copy.html" style="border:0;width:{width}px;height:6000px"></iframe>"""
    (folder / "frame.html").write_text(frame, encoding="utf-8")
    ran = browse(folder / "frame.html", folder / "profile", "--virtual-time-budget=3000", "--dump-dom", *options)
    told = re.search(r'<p id="seen">(.+?)</p>', ran.stdout)
    assert told is not None, ran.stderr
    return json.loads(unescape(told[1])) | {"console": re.findall(r"CONSOLE.*", ran.stderr)}


def screenshot(page: Path, folder: Path, name: str, *options: str) -> tuple[int, int, set]:
    """Size and a sample of the colours of a picture of the page."""
    image = pytest.importorskip("PIL.Image", reason="pictures are measured with pillow")
    path = folder / name
    browse(page, folder / "profile", f"--screenshot={path}", *options)
    with image.open(path) as picture:
        small = picture.convert("RGB")
        colors = {small.getpixel((x, y)) for x in range(2, small.width, 7) for y in range(2, small.height, 7)}
        return small.width, small.height, colors
