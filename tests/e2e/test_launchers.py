"""torchrun and the Slurm script start the same run as --nproc does: the same losses, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from many_ranks import SMALL, end, losses, start

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="a shell is needed")]
STANDINS = {
    # Each machine is one more torchrun on this one; what srun itself is told begins with two dashes.
    "srun": """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
code=0
for node in $(seq "$STANDIN_NODES"); do "$@" & jobs+=($!); done
for job in "${jobs[@]}"; do wait "$job" || code=$?; done
exit $code
""",
    "scontrol": """#!/bin/bash
[ "$1" = show ] && echo localhost
exit 0
""",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two ranks have been to the end, in `nproc`."""
    place = tmp_path_factory.mktemp("launchers")
    code, said = end(start("train", *SMALL, "--out", "nproc", "--nproc", "2", cwd=place))
    assert code == 0, said
    return place


def test_torchrun(place: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "burnish", "train", *SMALL, "--out", "torchrun"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert losses(place / "torchrun") == losses(place / "nproc")
    assert "2 ranks on 1 machine: dp 2" in done.stderr


@pytest.mark.parametrize(("nodes", "each"), [(1, 2), (2, 1)])
def test_slurm_with_a_stand_in(place: Path, nodes: int, each: int) -> None:
    out, bins = f"slurm{nodes}", place / f"bin{nodes}"
    words = [
        *SMALL,
        "--out",
        out,
        "--slurm",
        f"{out}.sbatch",
        "--nodes",
        str(nodes),
        "--per-node",
        str(each),
        "--train",
    ]
    code, said = end(start("launch", *words, cwd=place))
    assert code == 0, said
    bins.mkdir()
    for name, text in STANDINS.items():
        (bins / name).write_text(text)
        (bins / name).chmod(0o755)
    path = os.pathsep.join([str(bins), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "SLURM_JOB_ID": str(os.getpid()), "STANDIN_NODES": str(nodes)}
    done = subprocess.run(
        ["bash", f"{out}.sbatch"], cwd=place, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert losses(place / out) == losses(place / "nproc")
    where = "2 ranks on 1 machine: dp 2" if nodes == 1 else "2 ranks on 2 machines: dp 2 across machines"
    assert where in done.stderr
