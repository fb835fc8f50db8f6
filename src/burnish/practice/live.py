"""Live: a claim measured in a process of its own, so that practice loads no torch, waits for nothing and can stop it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from pydantic import ValidationError

from burnish import prove
from burnish.prove.claim import Verdict

GRACE = 5.0  # seconds a stopped measurement has to end by itself


@dataclass(frozen=True)
class Measurement:
    """A claim that is being measured; the files take what its process prints."""

    claim: str
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    began: float

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began


@dataclass(frozen=True)
class Shown:
    """What came of it: a verdict, or one line on why there is none."""

    claim: str
    verdict: Verdict | None
    said: str = ""


def absent(claim: str) -> str | None:
    """One line where this installation cannot measure a claim, else None."""
    names = prove.claims()
    return None if claim in names else f"claim {claim!r} is not in this installation; there are: {', '.join(names)}"


def start(claim: str) -> Measurement:
    """Begin to measure: `burnish prove CLAIM`, here and now, with this interpreter. It makes a session of its own, so that
    Ctrl-C reaches only the one who asked."""
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 `result` closes them
    command = [sys.executable, "-m", "burnish", "prove", claim, "--json"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
    return Measurement(claim, process, out, err, time.monotonic())


def stop(measurement: Measurement) -> None:
    """End a measurement and the ranks it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not measurement.running:
            break
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(measurement.process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            measurement.process.wait(GRACE)


def _why(printed: str, code: int | None) -> str:
    """The last line of what a failed measurement printed; a package that is missing is said as such."""
    lines = printed.strip().splitlines() or [f"it ended with exit code {code}"]
    if found := re.search(r"No module named '(\w+)", lines[-1]):
        return f"it needs {found[1]}, which is not installed; install it with: pip install 'burnish[all]'"
    return lines[-1].removeprefix("burnish: ")


def result(measurement: Measurement) -> Shown:
    """What an ended measurement found; a claim that does not hold here is a result too."""
    measurement.out.seek(0)
    measurement.err.seek(0)
    try:
        verdicts = json.loads(measurement.out.read())
        return Shown(measurement.claim, Verdict.model_validate(verdicts[0]))
    except (ValueError, LookupError, TypeError, ValidationError):
        said = _why(measurement.err.read().decode("utf-8", "replace"), measurement.process.poll())
        return Shown(measurement.claim, None, f"claim {measurement.claim!r} could not be measured: {said}")
    finally:
        measurement.out.close()
        measurement.err.close()
