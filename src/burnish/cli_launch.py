"""The command line of many ranks: start them here, or write the script that a cluster starts them by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Nproc = Annotated[int | None, typer.Option("--nproc", min=1, help="Start this many ranks on this machine.")]
Restarts = Annotated[int, typer.Option("--restarts", min=0, help="With --nproc: start again this often after a crash.")]


def run_words(out: Path | None, fresh: bool) -> list[str]:
    """The options of `run` and `train` that every rank is given."""
    return [*(["--out", str(out)] if out is not None else []), *(["--fresh"] if fresh else [])]


def start_here(verb: str, recipe: str, overrides: list[str], words: list[str], count: int, restarts: int) -> int:
    """Run a verb on `count` ranks of this machine; gives the exit code."""
    from burnish.finished import require_torch
    from burnish.launch.elastic import start_ranks
    from burnish.launch.environment import rank_place
    from burnish.launch.world import load_for

    rank_place().refuse_another("--nproc")
    load_for(count, recipe, overrides)  # what is wrong with it is said once, before any rank starts
    require_torch(f"burnish {verb} --nproc")
    return start_ranks(count, [verb, recipe, *overrides, *words], restarts)


def launch(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe, or a .yaml, .py or .py:function file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes such as train.steps=100.")] = None,
    slurm: Annotated[Path, typer.Option("--slurm", help="The script to write.")] = Path("burnish.sbatch"),
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines.")] = 1,
    per_node: Annotated[int, typer.Option("--per-node", min=1, help="Ranks on each machine.")] = 8,
    time: Annotated[str, typer.Option("--time", help="Time limit, as Slurm writes it.")] = "24:00:00",
    out: Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/NAME.")] = None,
    train_only: Annotated[bool, typer.Option("--train", help="Train only, without export.")] = False,
) -> None:
    """Write a Slurm script that runs a recipe on many machines; nothing is started."""
    from burnish.launch.slurm import Wish, write_script

    wish = Wish(recipe, tuple(overrides or ()), nodes, per_node, time, out, "train" if train_only else "run")
    for line in write_script(wish, slurm):
        print(line)
