"""What published peaks of memory count, and what rows of fine-tuning tools mean where they say little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from published_row import published

from burnish.hardware import GIB
from burnish.mapping import OFFLOAD, RECOMPUTE
from burnish.rows.training import Row, Setting, row_of
from burnish.score import score
from burnish.score.prices import prices

ROWS = Path(__file__).parents[3] / "shared" / "data" / "planner" / "rows_training.csv"
BLANK = ("tp", "pp", "dp", "cp", "global_batch", "iter_time_s", "gpus_per_node")
SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")
TUNED: dict[str, object] = {
    **dict.fromkeys((*BLANK, *SIZES), ""),
    "model": "Llama-3.1-8B",
    "n_gpus": 1,
    "seq_len": 2048,
    "micro_batch": 2,
    "workload": "finetune-lora",
    "stack": "fsdp2-torchtune",
}


def row(**changes: object) -> Row:
    return row_of(published(**{**TUNED, **changes}))


def setting(**changes: object) -> Setting:
    made = row(**changes)
    assert made.setting is not None, made.why_not
    return made.setting


@pytest.mark.parametrize(
    ("cells", "meter"),
    [
        ({"stack": "litgpt-2023"}, "allocated"),
        ({"stack": "fsdp2-torchtune"}, "allocated"),
        ({"stack": "fsdp2-torchao"}, "reserved"),
        ({"stack": "hf-trainer", "notes": "peak allocated GiB"}, "allocated"),
        ({"stack": "hf-trainer"}, "process"),
    ],
)
def test_what_a_peak_counts(cells: dict[str, str], meter: str) -> None:
    assert row(**cells).measured.meter == meter


def test_meters_show_parts_of_the_same_peak() -> None:
    made = prices([setting()])
    process, reserved, allocated = (made.metered(meter, 0) for meter in ("process", "reserved", "allocated"))
    assert process == made.peak[0]
    assert process - reserved == pytest.approx(1.5 * GIB)
    assert 0 < allocated < reserved
    assert np.all(made.capacity > process)


def test_layers_run_again_only_where_memory_is_short() -> None:
    def recompute(**changes: object) -> str:
        return RECOMPUTE[int(setting(**changes).mapping.recompute)]

    assert recompute(gpu="RTX 4090", gpu_mem_gb=24) == "full"
    assert recompute(gpu="RTX A6000", gpu_mem_gb=48) == "none"
    assert recompute(gpu="RTX A6000", gpu_mem_gb=48, recompute="full") == "full"
    assert recompute(gpu="RTX A6000", gpu_mem_gb=48, stack="hf-trainer") == "none"


def test_notes_on_each_line_that_speak_of_one_row() -> None:
    notes = "GiB except the 405B row; the 70B full row uses CPU offload with fused optimizer"
    eight = {"n_gpus": 8, "gpus_per_node": 8, "notes": notes, "peak_mem_gb": 10, "gpu": "A100 SXM"}
    full, lora, large = (
        row(**eight, model=f"Llama-3.1-{size}", workload=f"finetune-{kind}")
        for size, kind in (("70B", "full"), ("70B", "lora"), ("405B", "qlora"))
    )
    offloads = [OFFLOAD[int(made.setting.mapping.offload)] for made in (full, lora, large) if made.setting]
    assert offloads == ["states", "none", "none"]
    assert [made.measured.memory for made in (full, lora, large)] == [10 * GIB, 10 * GIB, 10e9]


@pytest.mark.parametrize(
    ("precision", "double"), [("bf16 + bnb.nf4", 0), ("bf16 + bnb.nf4-dq", 1), ("4-bit nf4, fp16", 0), ("bf16", 1)]
)
def test_constants_of_4_bit_blocks_are_in_32_bits_where_a_row_says_plain_nf4(precision: str, double: int) -> None:
    assert setting(precision=precision).stack.double_quantized == double


def test_peaks_of_fine_tuning_tools_are_predicted() -> None:
    if not ROWS.is_file():
        pytest.skip("the table of published training rows is not beside this checkout")
    sources = score(ROWS)["sources"]
    means = {name.split()[0]: made["memory_mean_pct"] for name, made in sources.items() if made["memory_mean_pct"]}
    assert means["pytorch/torchtune"] < 15
    assert means["Lightning-AI/litgpt"] < 10
    assert sources["pytorch/ao docs/source"]["memory_mean_pct"] < 15
