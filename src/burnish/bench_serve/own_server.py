"""A server of one's own for the time of a load: started on a free port, ended when the load is over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from burnish.errors import UserError

WIDE = {"COLUMNS": "400", "NO_COLOR": "1"}  # its lines are read here
END = 60  # seconds that it may take to end


@contextmanager
def own_server(model: str, options: Sequence[str], key: str | None = None) -> Iterator[str]:
    """Its address, up to and with /v1. Raises UserError with what it says where it does not start."""
    command = [sys.executable, "-m", "burnish", "serve", model, "--port", "0", *options]
    env = os.environ | WIDE | ({"BURNISH_API_KEY": key} if key else {})  # not among words that every user can list
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line.strip())
            if found := re.search(r"listening on (http\S+/v1)", line):
                reading = threading.Thread(target=process.stderr.read, daemon=True)
                reading.start()  # what it says later must not fill the pipe
                yield found[1]
                return
        last = next((line for line in reversed(said) if line), "it ended without a word")
        raise UserError(f"burnish serve {model}: {last.removeprefix('burnish: ')}")
    finally:
        process.terminate()
        try:
            process.wait(END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
