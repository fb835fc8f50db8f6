"""Memory of test runs: how their arguments are read, and what is predicted for known ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.ci_arguments import Arguments, arguments_of, expanded, last_layers
from burnish.ci_rows import Prediction, engine_lines, predict, within
from burnish.errors import UserError
from burnish.rows.cells import Cells, NotExpressed

ROWS = Path(__file__).parents[3] / "shared" / "data" / "planner" / "rows_memory_ci.csv"
COLUMNS = [
    *("id", "source", "family", "test_case", "environment", "gpu", "gpu_mem_gb", "n_gpus", "vocab", "padded_vocab"),
    *("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "transformer_impl", "config_commit_note", "args_json"),
    *("mem_allocated_bytes", "mem_max_allocated_bytes"),
]
BASE = {
    "num-layers": 12,
    "hidden-size": 512,
    "num-attention-heads": 8,
    "micro-batch-size": 4,
    "global-batch-size": 32,
    "seq-length": 1024,
    "max-position-embeddings": 1024,
    "transformer-impl": "transformer_engine",
    "bf16": True,
    "deterministic-mode": True,
    "attention-backend": "unfused",
}
CELLS = {
    "id": "a",
    "source": "s",
    "family": "gpt",
    "gpu": "A100 SXM",
    "gpu_mem_gb": "80",
    "n_gpus": "8",
    "vocab": "50257",
}


def line(cells: dict[str, str] | None = None, **arguments: object) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return {**CELLS, **(cells or {}), "args_json": json.dumps({**BASE, **named})}


def predicted(tmp_path: Path, *lines: dict[str, str]) -> list[Prediction]:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(lines)
    return predict(path)


def allocated(made: Prediction) -> float:
    """Predicted bytes between steps."""
    assert made.predicted_allocated is not None
    return made.predicted_allocated


def arguments(cells: dict[str, str] | None = None, **values: object) -> Arguments:
    return arguments_of(Cells(line(cells, **values)))


def test_bytes_between_steps_are_a_sum_of_known_parts(tmp_path: Path) -> None:
    """Two stages of two tensor-parallel ranks: 18 bytes a parameter, workspaces, three boundary tensors."""
    made = predicted(tmp_path, line({"tp": "2", "pp": "2", "dp": "2", "padded_vocab": "50432"}))[0]
    layer = (3 * 512 * 512 + 512 * 512 + 8 * 512 * 512) // 2 + (3 * 512 + 4 * 512) // 2 + 2 * 512 + 4 * 512
    states = 18 * (6 * layer + 50432 // 2 * 512 + 2 * 512)
    workspaces = 2 * 32 * 2**20 + 4 * 2**20
    assert made.predicted_allocated == pytest.approx(states + workspaces + 3 * 4 * 1024 * 512 * 2, abs=1)
    assert made.predicted_allocated == pytest.approx(487_096_832, abs=1e6)  # as measured


def test_the_peak_has_layers_in_flight_and_logits(tmp_path: Path) -> None:
    """Four stages of three chunks of one layer: nine chunks on the last stage, six bytes a logit."""
    cells = {"pp": "4", "vpp": "3", "dp": "2", "padded_vocab": "50304"}
    made = predicted(tmp_path, line(cells, num_layers_per_virtual_pipeline_stage=1))[0]
    assert made.predicted_peak == pytest.approx(4_122_700_000, rel=0.004)  # as measured
    grouped = predicted(
        tmp_path,
        line(
            cells,
            num_layers_per_virtual_pipeline_stage=1,
            microbatch_group_size_per_virtual_pipeline_stage=5,
            global_batch_size=40,
        ),
    )[0]
    assert grouped.predicted_peak == pytest.approx(4_596_800_000, rel=0.004)


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"deterministic-mode": False}, -2 * (32 - 8.125) * 2**20),
        ({"moe-grouped-gemm": True}, 4 * 4 * 2**20),
        ({"transformer-impl": "local"}, (2 * 32 - 4) * 2**20),
    ],
)
def test_workspaces(tmp_path: Path, changes: dict[str, object], more: float) -> None:
    base, changed = predicted(tmp_path, line(), line(None, **{k.replace("-", "_"): v for k, v in changes.items()}))
    assert allocated(changed) == pytest.approx(allocated(base) + more, abs=1)


def test_states_split_over_ranks(tmp_path: Path) -> None:
    plain, split, halves, sharded = predicted(
        tmp_path,
        line({"dp": "8"}),
        line({"dp": "8"}, use_distributed_optimizer=True),
        line({"dp": "8"}, use_distributed_optimizer=True, num_distributed_optimizer_instances=2),
        line({"dp": "8"}, use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params"),
    )
    count = 12 * (12 * 512 * 512 + 13 * 512) + 2 * 512 + 50304 * 512 + 1024 * 512
    assert allocated(plain) - allocated(split) == pytest.approx(count * 12 * 7 / 8)
    assert allocated(plain) - allocated(halves) == pytest.approx(count * 12 * 3 / 4)
    assert allocated(plain) - allocated(sharded) == pytest.approx(count * 18 * 7 / 8)


def test_layouts_of_stages() -> None:
    assert expanded("Et*3|(tt|)*2L") == ["Ettt", "tt", "tt", "L"]
    layout = arguments({"pp": "2"}, num_layers=7, pipeline_model_parallel_layout="Et*3|(tt|)*2L")
    assert last_layers(layout) == [0, 0]
    uneven = arguments({"pp": "4"}, decoder_first_pipeline_num_layers=2, decoder_last_pipeline_num_layers=2)
    assert len(last_layers(uneven)) == 2
    counted = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    assert len(last_layers(arguments({"pp": "4", "vpp": "2"}, num_layers=6, **counted))) == 1
    mixed = arguments({"pp": "2"}, num_layers=4, num_experts=8, moe_layer_freq="([0]*1+[1]*3)")
    assert last_layers(mixed) == [1, 1]
    assert mixed.routed == [0, 1, 1, 1]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_written_out_layouts_are_their_own_expansion(counts: list[int]) -> None:
    text = "|".join("t" * count for count in counts)
    assert expanded(text) == ["t" * count for count in counts]
    short = "|".join(f"t*{count}" if count else "" for count in counts)
    assert expanded(short) == expanded(text)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"family": "t5"}, "encoder"),
        ({"gpu": "abacus"}, "gpu"),
        ({"vocab": ""}, "vocab"),
    ],
)
def test_what_is_not_expressed_says_why(tmp_path: Path, cells: dict[str, str], said: str) -> None:
    made = predicted(tmp_path, line(cells))[0]
    assert said in made.reason
    assert made.predicted_allocated is None
    assert not within(made, 40, 0.03)


def test_arguments_that_cannot_be_read() -> None:
    for text in ("", "[]", "{", '{"hidden-size": 4}'):
        with pytest.raises(NotExpressed, match="args_json"):
            arguments_of(Cells({"args_json": text}))


def test_another_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,source\n1,2\n")
    with pytest.raises(UserError, match="args_json"):
        predict(tmp_path / "rows.csv")


@pytest.mark.skipif(not ROWS.exists(), reason="the table of published test runs is not beside this package")
def test_published_runs() -> None:
    lines = [(made, engine) for made, engine in engine_lines(ROWS) if not made.reason]
    dense = [made for made, engine in lines if made.family == "gpt" and engine]
    routed = [made for made, _ in lines if made.family == "moe"]
    assert sum(within(made, 40, 0.03) for made in dense) >= 0.95 * len(dense)
    assert sum(within(made, 80, 0.06) for made in routed) >= 0.92 * len(routed)
    off = [abs((made.predicted_peak or 0) / (made.measured_peak or 1) - 1) for made, _ in lines]
    assert sum(off) / len(off) <= 0.1
