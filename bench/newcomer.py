"""What a newcomer does first, timed in a clean clone: the demo, all claims, own text, own pictures. newcomer.json.

The clone makes its own environment, with packages from the cache of pip where there is one. Own text is the pages of the
documentation; own pictures are drawn, with boxes in Pascal VOC's form, so that nothing is fetched for them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from record import record

ROOT = Path(__file__).parent.parent
LIMIT = 1800  # seconds of one step
DRAWN = """
import random
from pathlib import Path
from PIL import Image, ImageDraw
draw = random.Random(0)
for number in range(60):
    picture, boxes = Image.new("RGB", (128, 96), "white"), []
    for name, shape in (("disc", "ellipse"), ("square", "rectangle")):
        x, y, side = draw.randrange(0, 90), draw.randrange(0, 60), draw.randrange(14, 34)
        getattr(ImageDraw.Draw(picture), shape)((x, y, x + side, y + side), fill=draw.choice(["red", "navy", "green"]))
        corners = zip(("xmin", "ymin", "xmax", "ymax"), (x + 1, y + 1, x + side + 1, y + side + 1))
        inside = "".join(f"<{key}>{value}</{key}>" for key, value in corners)
        boxes.append(f"<object><name>{name}</name><bndbox>{inside}</bndbox></object>")
    for folder in ("JPEGImages", "Annotations", "new"):
        Path("shapes", folder).mkdir(parents=True, exist_ok=True)
    picture.save(f"shapes/JPEGImages/{number}.png")
    size = "<size><width>128</width><height>96</height><depth>3</depth></size>"
    text = f"<annotation><filename>{number}.png</filename>{size}{''.join(boxes)}</annotation>"
    Path(f"shapes/Annotations/{number}.xml").write_text(text)
    if number < 8:
        picture.save(f"shapes/new/{number}.png")
"""
PICTURES = """
task: detection
network: {kind: centernet, channels: [16, 32, 64]}
images: {train: [shapes], validation_fraction: 0.2}
augment: {flip: [false, true], scale: 0.2, shift: 0.1}
train: {steps: 200, global_batch: 8, micro_batch: 8, eval_every: 100, checkpoint_every: 200}
int8: {used: true, max_drop: 0.05}
"""
STEPS = {
    "demo": "scripts/demo",
    "everything": ".venv/bin/python -m pip install -q -c constraints.txt -e .[all]",
    "plan": "burnish plan quickstart",
    "prove": "burnish prove",
    "own_text": "burnish run quickstart data.train=pages data.heldout=score.txt train.steps=200 --out runs/pages",
    "own_text_written": "burnish generate runs/pages Burnish",
    "own_pictures": "burnish run shapes.yaml --out runs/shapes",
    "own_pictures_found": "burnish predict runs/shapes shapes/new --out found",
}


def main() -> int:
    """Clone, do, time, record."""
    values: dict[str, float] = {"failed": 0}
    with TemporaryDirectory() as scratch:
        clone = Path(scratch) / "burnish"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        env = {**os.environ, "PATH": f"{clone / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        for name, command in STEPS.items():
            if name == "own_text":
                (clone / "pages").mkdir()
                for page in (clone / "docs").glob("*.md"):
                    text = page.read_text(encoding="utf-8")
                    (clone / ("" if page.stem == "score" else "pages") / f"{page.stem}.txt").write_text(text, "utf-8")
            if name == "own_pictures":
                subprocess.run([clone / ".venv" / "bin" / "python", "-c", DRAWN], cwd=clone, check=True)
                (clone / "shapes.yaml").write_text(PICTURES, encoding="utf-8")
            began = time.perf_counter()
            done = subprocess.run(command.split(), cwd=clone, env=env, timeout=LIMIT, check=False)
            values[f"{name}.seconds"] = time.perf_counter() - began
            values["failed"] += done.returncode != 0
    values["seconds"] = sum(value for key, value in values.items() if key.endswith(".seconds"))
    print(record("newcomer", values), values)
    return int(values["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
