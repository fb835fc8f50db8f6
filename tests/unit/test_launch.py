"""Launching: the environment, the world, where axes lie, the Slurm script, and what a rank waits for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import UserError
from burnish.launch.environment import RankPlace, rank_place
from burnish.launch.slurm import Wish, script, write_script
from burnish.launch.waiting import broken_collective, waiting_in
from burnish.launch.watch import outward
from burnish.launch.world import axes_of, load_for, node_map

STARTED = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "29500",
}


def test_the_environment_of_a_rank():
    assert rank_place({}) == rank_place({"WORLD_SIZE": "1", "RANK": "0"}) == RankPlace()
    assert rank_place(STARTED) == RankPlace(3, 4, 1, 2, "first", 29500, "/0")
    assert rank_place(STARTED | {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "2"}).attempt == "a/2"
    with pytest.raises(UserError, match="MASTER_ADDR is not set; start ranks with --nproc or torchrun"):
        rank_place({key: value for key, value in STARTED.items() if key != "MASTER_ADDR"})
    with pytest.raises(UserError, match="whole numbers"):
        rank_place(STARTED | {"RANK": "one"})
    with pytest.raises(UserError, match="rank 3 of 4 that were started already"):
        rank_place(STARTED).refuse_another("--nproc")


@pytest.mark.parametrize(
    ("world", "overrides", "dp", "shard"),
    [
        (1, [], 1, 0),
        (4, [], 4, 0),
        (4, ["parallel.dp=4"], 4, 0),
        (4, ["parallel.shard=2", "parallel.zero=2"], 4, 2),
        (4, ["parallel.tp=2"], 2, 0),
        (4, ["parallel.tp=2", "parallel.pp=2"], 1, 0),
    ],
)
def test_data_parallelism_takes_the_ranks_that_are_left(world, overrides, dp, shard):
    rows = ["train.global_batch=32", "train.micro_batch=2"]
    made, _ = load_for(world, "quickstart", [*rows, *overrides])
    assert (made.parallel.dp, made.parallel.shard, made.parallel.world) == (dp, shard, world)


@pytest.mark.parametrize(
    ("axes", "per_node", "said"),
    [
        ([("pp", 1), ("dp", 4), ("tp", 1)], 8, "4 ranks on 1 machine: dp 4"),
        ([("pp", 1), ("dp", 2), ("tp", 8)], 8, "16 ranks on 2 machines: dp 2 across machines, tp 8 inside each"),
        ([("pp", 2), ("dp", 2), ("tp", 4)], 8, "16 ranks on 2 machines: pp 2 across machines, dp 2 x tp 4 inside each"),
        ([("pp", 1), ("dp", 2), ("tp", 4)], 2, "8 ranks on 4 machines: dp 2 x tp 4 across machines"),
        (
            [("dp copies", 2), ("dp shards", 8)],
            8,
            "16 ranks on 2 machines: dp copies 2 across machines, dp shards 8 inside each",
        ),
    ],
)
def test_which_axes_cross_machines(axes, per_node, said):
    assert node_map(axes, per_node) == said


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), per_node=st.integers(1, 9))
def test_crossing_is_what_the_ranks_coordinates_say(sizes, per_node):
    """Against every pair of ranks that differ along one axis alone."""
    import itertools

    axes = [(f"a{number}", size) for number, size in enumerate(sizes)]
    places = list(itertools.product(*(range(size) for size in sizes)))
    node = {place: rank // per_node for rank, place in enumerate(places)}
    head = node_map(axes, per_node).partition(": ")[2].partition(" across machines")[0]
    for number, (name, size) in enumerate(axes):
        lines: dict[tuple, set[int]] = {}
        for place in places:
            lines.setdefault(place[:number] + place[number + 1 :], set()).add(node[place])
        crosses = any(len(nodes) > 1 for nodes in lines.values())
        said = f"{name} {size}" in head.split(" x ") and " across machines" in node_map(axes, per_node)
        assert said == crosses, name


def test_axes_of_a_recipe():
    made, _ = load_for(4, "quickstart", ["parallel.shard=2", "parallel.zero=3", "train.micro_batch=1"])
    assert node_map(axes_of(made), 2) == "4 ranks on 2 machines: dp copies 2 across machines, dp shards 2 inside each"


WISH = Wish(
    "quickstart",
    ("train.global_batch=16", "train.micro_batch=1", "data.train=it's here.txt"),
    2,
    4,
    "1-12:00:00",
    Path("my runs/x"),
)


def test_the_script_is_a_shell_script_with_the_users_words_whole(tmp_path):
    path = tmp_path / "job.sbatch"
    said = write_script(WISH, path)
    assert said[0] == "8 ranks on 2 machines: dp 8 across machines"
    text = path.read_text()
    assert "#SBATCH --nodes=2" in text
    assert "#SBATCH --gres=gpu:4" in text
    assert "#SBATCH --time=1-12:00:00" in text
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0
    last = next(line for line in text.splitlines() if line.lstrip().startswith("-m burnish"))
    words = subprocess.run(["bash", "-c", f"printf '%s\\n' {last.strip()}"], capture_output=True, text=True).stdout
    assert words.splitlines() == ["-m", "burnish", "run", *("quickstart", *WISH.overrides), "--out", "my runs/x"]
    on_cpu, _ = script(Wish("quickstart", ("machine.device=cpu", "train.micro_batch=1"), 1, 2, "30"))
    assert "gres" not in on_cpu


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say(tmp_path):
    write_script(WISH, tmp_path / "job.sbatch")
    found = subprocess.run(["shellcheck", str(tmp_path / "job.sbatch")], capture_output=True, text=True)
    assert found.stdout == ""
    assert found.returncode == 0


@pytest.mark.parametrize("time", ["tomorrow", "1:2:3", "", "10; rm -rf /"])
def test_a_time_that_slurm_would_not_read_is_refused(time, tmp_path):
    with pytest.raises(UserError, match="--time"):
        write_script(Wish("quickstart", ("train.micro_batch=1",), 1, 2, time), tmp_path / "job")
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:46322"), True),
        (RuntimeError("NCCL communicator was aborted on rank 1"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
    ],
)
def test_errors_of_broken_collectives(error, broken):
    assert broken_collective(error) == broken


def test_what_is_waited_for_is_named_by_the_stack_or_the_recorder():
    import sys

    from burnish.crew import Crew

    seen = []

    class Here(Crew):
        def look(self):
            seen.append(outward(sys._getframe()))

    Here().look()
    # The frames are those of a test, none of them ours or torch's: nothing is known but what the recorder says.
    assert waiting_in(seen[0]) == "a collective"
    assert waiting_in(seen[0], "all_reduce") == "all_reduce"
