"""Requests that nobody thought of: made from the server's own description, answered as it says and with no failure inside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from served_model import chat_model, served

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.slow
def test_no_request_breaks_it(tmp_path: Path) -> None:
    with served(chat_model(tmp_path / "fox"), "--memory", "8MiB", "--timeout", "20") as server:
        tool = Path(sys.executable).with_name("schemathesis")
        options = ["--checks", CHECKS, "--max-examples", "60", "--seed", "1", "--request-timeout", "60", "--no-color"]
        command = [
            str(tool),
            "run",
            f"{server.address}/openapi.json",
            *options,
            "--phases",
            "examples,coverage,fuzzing",
        ]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=900)
        assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-1000:]
        assert server.process.poll() is None
        found = server.settled()
        assert found["burnish_requests_total"] > 20
        assert found["burnish_pages_free"] == found["burnish_pages"]
