"""A search that is killed outright in the middle goes on to the same table, the same files."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SEARCH = """
import sys, time
from pathlib import Path
sys.path.insert(0, "tests")
from awq_models import config_of, decoder, samples
from burnish.compress.awq_table import save_table
from burnish.export.compressed_tensors import save_compressed
from burnish.mesh import Mesh
from burnish.techniques import awq

state, out, wait = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
config, model = awq.Config(group=32, ratios=4), decoder("mixtral")
table = awq.search(config, model, samples("mixtral"), state, lambda done, total: time.sleep(wait))
save_table(table, out / "table.json")
save_compressed(awq.apply(config, model, Mesh(), table), config_of("mixtral"), out / "model")
"""


def start(state: Path, out: Path, wait: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SEARCH, str(state), str(out), str(wait)], cwd=Path(__file__).parents[2]
    )


def written(out: Path) -> dict[str, str]:
    files = [path for path in out.rglob("*") if path.is_file()]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_killed_in_the_middle_and_begun_again(tmp_path: Path) -> None:
    killed = start(tmp_path / "state", tmp_path / "out", 600)
    first = tmp_path / "state" / "layer-0000.json"
    deadline = time.monotonic() + 300
    while not first.exists():
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "out").exists()
    before = first.stat().st_mtime_ns
    assert start(tmp_path / "state", tmp_path / "out", 0).wait() == 0
    assert first.stat().st_mtime_ns == before
    assert start(tmp_path / "fresh", tmp_path / "whole", 0).wait() == 0
    assert written(tmp_path / "out") == written(tmp_path / "whole")
    assert "table.json" in written(tmp_path / "out")
