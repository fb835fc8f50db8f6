"""Slurm: the script that starts a run on many machines, one line for each choice; written, never sent."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import UserError
from burnish.launch.world import axes_of, load_for, node_map
from burnish.records import write_text

TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
NOTICE_SECONDS = 300  # before the time limit, in which the ranks finish their step and save

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1        # one torchrun a machine, which starts {per_node} ranks
#SBATCH --gres={gres}
#SBATCH --exclusive                # the whole machine: ranks count on its cores and memory
#SBATCH --time={time}
#SBATCH --signal=TERM@{notice}         # this many seconds before the limit: ranks finish their step, save and leave
#SBATCH --requeue                  # after a failed machine the job runs again and goes on from its last checkpoint
#SBATCH --open-mode=append         # what it printed before stays
#SBATCH --output={name}-%j.log
set -u

export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"         # threads of each rank on the processor
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1               # a broken collective raises and does not hang
export TORCH_FR_BUFFER_SIZE=2000                       # collectives that are remembered, to be looked at after a hang
export TORCH_NCCL_DUMP_ON_TIMEOUT=1                    # and written to files when one does not end

# The first machine is where all ranks meet, at a port that follows from the job.
nodes="${{SLURM_JOB_NODELIST:-localhost}}"
head="$(scontrol show hostnames "$nodes" | head -n 1)"
port=$((20000 + ${{SLURM_JOB_ID:-0}} % 20000))

srun --kill-on-bad-exit=1 {python} -m torch.distributed.run \\
    --nnodes={nodes} \\
    --nproc-per-node={per_node} \\
    --max-restarts=0 \\
    --rdzv-backend=c10d \\
    --rdzv-id="${{SLURM_JOB_ID:-0}}-${{SLURM_RESTART_COUNT:-0}}" \\
    --rdzv-endpoint="$head:$port" \\
    -m burnish {command}
code=$?

# Stopped at the time limit: the same job again, which goes on from its checkpoint.
if [ "$code" -eq 143 ] && [ -n "${{SLURM_JOB_ID:-}}" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


@dataclass(frozen=True)
class Wish:
    """What is to run where. `time` is written as Slurm does: minutes, hours:minutes:seconds, days-hours:minutes:seconds."""

    recipe: str
    overrides: tuple[str, ...]
    nodes: int
    per_node: int
    time: str
    out: Path | None = None
    verb: str = "run"


def script(wish: Wish, python: str = "python") -> tuple[str, str]:
    """The script, and the line that says which axes cross machines. Raises UserError for a recipe or time that cannot be."""
    if TIME.fullmatch(wish.time) is None:
        raise UserError(f"--time {wish.time}: write minutes, HH:MM:SS or D-HH:MM:SS")
    recipe, _ = load_for(wish.nodes * wish.per_node, wish.recipe, wish.overrides)
    words = [wish.verb, wish.recipe, *wish.overrides, *(["--out", str(wish.out)] if wish.out is not None else [])]
    made = SCRIPT.format(
        name=re.sub(r"[^\w.-]", "-", recipe.name),
        nodes=wish.nodes,
        per_node=wish.per_node,
        gres=f"gpu:{wish.per_node}",
        time=wish.time,
        notice=NOTICE_SECONDS,
        python=python,
        command=shlex.join(words),
    )
    if recipe.machine.device == "cpu":
        made = "".join(line for line in made.splitlines(keepends=True) if not line.startswith("#SBATCH --gres"))
    return made, node_map(axes_of(recipe), wish.per_node)


def write_script(wish: Wish, path: Path) -> list[str]:
    """Write the script and give what to tell the user. Raises UserError as `script` does, and where it cannot be written."""
    made, places = script(wish)
    write_text(path, made)
    return [places, f"{path} written; send it with: sbatch {shlex.quote(str(path))}"]
