"""What every test runs under: few threads, no network, and slow or sabotage tests only when asked for."""

from __future__ import annotations

import os
import signal

import pytest

# Before torch is imported anywhere: two test processes on two cores must not fight for them, and nothing is downloaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_COLOR"] = "1"
# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

DEFAULT = "not slow and not sabotage"


def pytest_configure(config: pytest.Config) -> None:
    """A bare `pytest` selects what `scripts/test` does."""
    if not config.option.markexpr:
        config.option.markexpr = DEFAULT
