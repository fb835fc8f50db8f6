"""A small chat model in a folder, and a server process over it: what the tests of the server share."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from burnish.config import ModelConfig
from burnish.data.tokenizer import Tokenizer
from burnish.export.safetensors import save_folder
from burnish.load.checkpoint import TokenizerFiles
from burnish.models.decoder import Decoder

TEXTS = ["The quick brown fox jumps over the lazy dog, and five wizards box with jugs of liquor. 0123456789"] * 4
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
POSITIONS = 512


def chat_model(folder: Path) -> Path:
    """Random weights, so that texts are long and odd; no token ends one by itself often."""
    tokenizer = Tokenizer.train(TEXTS, 300)
    sizes: dict[str, Any] = {"hidden": 48, "ffn": 96, "layers": 2, "heads": 6, "kv_heads": 2, "tied": True}
    config = ModelConfig(vocab=tokenizer.vocab, max_positions=POSITIONS, eos=tokenizer.eos, init_std=0.2, **sizes)
    model = Decoder(config, torch.Generator().manual_seed(0))
    files = TokenizerFiles(tokenizer.to_json(), {}, TEMPLATE)
    save_folder(model, config, folder, tokenizer=files)
    return folder


class Server:
    """A server process: its address, and what it says of itself."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address

    def metrics(self) -> dict[str, float]:
        """What /metrics says, without what is said by label."""
        lines = httpx.get(f"{self.address}/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if line and line[0] != "#")}

    def settled(self, seconds: float = 20) -> dict[str, float]:
        """The metrics once nothing runs or waits any more."""
        until = time.monotonic() + seconds
        while (found := self.metrics())["burnish_running"] + found["burnish_waiting"] and time.monotonic() < until:
            time.sleep(0.05)
        return found

    def ends(self, number: int, seconds: float = 60) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)


@contextmanager
def served(model: Path, *options: str) -> Iterator[Server]:
    """`burnish serve` of a model on a free port, stopped at the end if it has not stopped by itself."""
    command = [sys.executable, "-m", "burnish", "serve", str(model), "--port", "0", "--runner", "torch", *options]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "400", "NO_COLOR": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=quiet)
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"listening on (http\S+)/v1", line):
                yield Server(process, found[1])
                break
        else:
            raise AssertionError("".join(said))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        process.stdout.close()


def events(text: str) -> list[Any]:
    """The content of server-sent events."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
