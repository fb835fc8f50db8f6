"""Bars: every claim with a bar, what was measured against it, and the command that measures it again."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bar import Bar, number, rows
from bars_awq import AWQ
from bars_compress import COMPRESSION
from bars_detection import DETECTION
from bars_engine import ENGINE
from bars_fp8 import FP8
from bars_models import MODELS
from bars_practice import PRACTICE
from bars_serving import ATTENTION, DRAFTING, SERVING
from bars_speculation import SPECULATION
from bars_vision import VISION

RESULTS = Path(__file__).parent / "results"
BARS = (
    *rows(
        "ranks",
        "many_ranks",
        "bench/many_ranks.py",
        (
            "losses on 2 to 4 ranks of seven mappings, and of a run moved between three",
            "apart.largest",
            None,
            1e-6,
            "from one process",
        ),
        ("one rank killed: all have ended", "seconds.killed", None, 60, "s"),
        ("one rank frozen: all have ended", "seconds.frozen", None, 60, "s"),
    ),
    *rows(
        "spine",
        "quickstart",
        "bench/quickstart.py",
        ("quickstart: the demo's own work", "seconds", None, 240, "s"),
        ("quickstart: bits per byte below a Kneser-Ney bigram's", "gain_percent", 5, None, "%"),
        ("quickstart: reloaded model equal", "reload_equal", 1, 1, ""),
    ),
    *rows(
        "spine",
        "kill_resume",
        "bench/kill_resume.py",
        ("kill -9 and resume: runs of 5 with all losses equal", "equal_runs", 5, None, ""),
    ),
    *rows(
        "spine",
        "logits_vs_transformers",
        "bench/logits_vs_transformers.py",
        ("logits against transformers: largest difference", "max_difference", None, 1e-4, ""),
        ("weights after a round trip: different or missing", "weights_different", 0, 0, ""),
    ),
    *rows(
        "spine",
        "train_vs_transformers",
        "bench/train_vs_transformers.py",
        ("training against the Hugging Face Trainer: peak memory", "memory_ratio", None, 0.7, "x"),
        ("training against the Hugging Face Trainer: tokens/s", "speed_ratio", 1.0, None, "x"),
    ),
    *rows(
        "spine",
        "train_vs_transformers_compiled",
        "bench/train_vs_transformers.py --compile --batch 4",
        ("the same with compiled layers: tokens/s", "speed_ratio_compiled", None, None, "x"),
    ),
    *rows(
        "spine",
        "command_line",
        "bench/command_line.py",
        ("burnish --help", "help_seconds", None, 0.4, "s"),
        ("burnish recipe list", "recipe_list_seconds", None, 0.4, "s"),
        ("torch, numpy or pydantic loaded by --help", "heavy_imports", 0, 0, ""),
    ),
    *rows(
        "spine",
        "bad_inputs",
        "bench/bad_inputs.py",
        ("bad inputs answered with one line and exit 2", "answered", 30, None, ""),
    ),
    *rows(
        "law",
        "law",
        "bench/law.py",
        ("predicted = observed: quantities that differ", "different", 0, 0, ""),
        ("predicted = observed: bytes saved for backward, error", "saved_error_percent", None, 2, "%"),
        ("breaks that the tests missed", "sabotage_missed", 0, 0, ""),
    ),
    *rows(
        "law",
        "parity",
        "bench/parity.py",
        ("ranks against one process: loss, largest difference", "loss_difference", None, 1e-5, ""),
        ("ranks against one process: gradient norm", "norm_difference", None, 1e-5, ""),
    ),
    *rows(
        "law",
        "zero_memory",
        "bench/zero_memory.py",
        ("ZeRO-1 peak per rank against the better peer", "stage1_ratio", None, 1.02, "x"),
        ("ZeRO-2 peak per rank against the better peer", "stage2_ratio", None, 1.02, "x"),
        ("ZeRO-3 peak per rank against the better peer", "stage3_ratio", None, 1.02, "x"),
        ("ZeRO-2: all-gathers in forward", "stage2_forward_gathers", 0, 0, ""),
        ("ZeRO: published byte formulas missed", "formulas_missed", 0, 0, ""),
    ),
    *rows(
        "law",
        "checkpointing",
        "bench/checkpointing.py",
        ("full checkpointing: FLOPs", "flops_ratio", None, 4 / 3, "x"),
        ("full checkpointing: bytes saved", "saved_ratio", None, 0.15, "x"),
        ("full checkpointing: time (published 1.2 to 1.3)", "time_ratio", 1.15, 1.40, "x"),
    ),
    *rows(
        "law",
        "predict",
        "bench/predict.py",
        ("predict 60,000 candidate stages", "seconds", None, 0.3, "s"),
        ("torch loaded by a prediction", "torch_loaded", 0, 0, ""),
    ),
    *rows(
        "law",
        "new_technique",
        "bench/new_technique.py",
        ("a technique added from the docs alone: files, rows and tests", "pieces", None, 3, ""),
    ),
    *MODELS,
    *rows(
        "ranks",
        "parallel",
        "bench/parallel.py",
        (
            "tensor parallelism against one process: loss or norm, largest difference",
            "tensor_difference",
            None,
            1e-5,
            "",
        ),
        ("ranks against one process: parity tests failed", "parity_failed", 0, 0, ""),
        ("the law on ranks and with adapters: tests failed", "law_failed", 0, 0, ""),
    ),
    *rows(
        "kernels",
        "flash",
        "bench/flash.py",
        ("attention by tiles: error, times plain attention's in the same format", "tiled_error", None, 2, "x"),
        ("Triton kernels, interpreted: the same", "triton_error", None, 2, "x"),
        ("peak memory over 1k to 16k tokens, plain: power of the length", "plain_slope", 1.9, 2.1, ""),
        ("... torch's flash attention", "sdpa_slope", 0.9, 1.1, ""),
        ("... by tiles", "tiled_slope", 0.9, 1.1, ""),
        ("Triton kernels compiled for sm_90, of 18", "compiled", 18, None, ""),
        ("... most registers a thread, bfloat16", "most_registers", None, 255, ""),
        ("... most bytes a thread spilled, bfloat16", "spilled_bytes", None, 0, "B"),
        ("... float32, one head size", "spilled_bytes_float32", None, None, "B"),
    ),
    *rows(
        "planner",
        "score_rows",
        "bench/score_rows.py",
        ("step time of published runs: median error", "median_percent", None, 5, "%"),
        ("step time: mean error", "mean_percent", None, 7, "%"),
        ("step time: mean over sources of 9 rows and more", "mean_over_sources_percent", None, 6, "%"),
        ("step time: the worst such source", "worst_source_percent", None, 12, "%"),
        ("step time: mixture of experts", "experts_percent", None, 15, "%"),
        ("published runs that can be expressed", "expressed_percent", 98, None, "%"),
        ("step time: vTrain, one node", "vtrain_percent", None, 6, "%"),
        ("step time: Korthikanti et al., table 5", "korthikanti_percent", None, 4, "%"),
        ("step time: llm-foundry", "llm_foundry_percent", None, 5, "%"),
        ("step time: dgxc", "dgxc_percent", None, 4.5, "%"),
        ("step time: Aleph Alpha", "aleph_percent", None, 6.5, "%"),
        ("step time: NeMo", "nemo_percent", None, 5, "%"),
        ("Aleph Alpha's sheets: regret of the pick, a job", "aleph_regret_percent", None, 1.5, "%"),
        ("rows quoted second-hand: mean error", "second_hand_mean_percent", None, None, "%"),
        ("rows that are distrusted: mean error", "distrusted_mean_percent", None, None, "%"),
    ),
    *rows(
        "planner",
        "memory_rows",
        "bench/memory_rows.py ../shared/data",
        ("memory of test runs, dense: within 40 MB or 3 %", "dense_within_percent", 95, None, "%"),
        ("memory of test runs, experts: within 80 MB or 6 %", "routed_within_percent", 92, None, "%"),
        ("memory of test runs: peak, mean error", "peak_mean_percent", None, 10, "%"),
        ("Aleph Alpha's sheets: fits or not, right", "sheets_right_percent", 97, None, "%"),
        ("users' complete reports: fits or not, right", "reports_right_percent", 90, None, "%"),
    ),
    *rows(
        "planner",
        "fit_memory",
        "bench/fit_memory.py ../shared/data/planner/rows_training.csv --halves",
        *(
            (f"the same, fitted on {half}: right on the others", f"right_percent_other_than_{key}", 95, None, "%")
            for key, half in (
                ("small_model", "the smallest model"),
                ("large_model", "the larger models"),
                ("small_length", "the shortest rows"),
                ("large_length", "the longer rows"),
            )
        ),
    ),
    *rows(
        "planner",
        "folds",
        "bench/fit_hardware.py ../shared/data/planner/rows_training.csv --folds",
        ("step time of sources left out of the fit, mean", "mean_percent", None, 14, "%"),
    ),
    *rows(
        "planner",
        "classic_plans",
        "bench/classic_plans.py",
        ("70B on 8 x 8: the pick keeps tensor parallel in a node", "tensor_inside_node", 1, 1, ""),
        ("... and one domain of 64 changes the pick", "domain_changes_pick", 1, 1, ""),
        ("... GiB between nodes of tp 64", "cross_node_gib_tp64", None, None, ""),
        ("... of dp 64", "cross_node_gib_dp64", None, None, ""),
        ("... of tp 8 x dp 8", "cross_node_gib_tp8xdp8", None, None, ""),
        ("... of tp 8 x pp 8", "cross_node_gib_tp8xpp8", None, None, ""),
        ("gradients and optimizer must shrink, no gather: ZeRO-2", "zero2", 1, 1, ""),
    ),
    *rows(
        "planner",
        "plan_speed",
        "bench/plan_speed.py",
        ("search: 70B on 64 GPUs", "search_seconds_70b_64", None, 0.2, "s"),
        ("search: 405B on 16,384 GPUs", "search_seconds_405b_16384", None, 1.0, "s"),
        ("search: 671B, mixture of experts, on 2,048 GPUs", "search_seconds_671b_2048", None, 1.0, "s"),
        ("burnish plan: 70B on 64 GPUs, a fresh process", "command_seconds_70b_64", None, 1.0, "s"),
    ),
    *rows(
        "planner",
        "bad_inputs",
        "bench/bad_inputs.py",
        ("bad inputs of the planner: one line and exit 2", "planner_answered", 50, None, ""),
        ("... answered otherwise", "planner_wrong", 0, 0, ""),
    ),
    *COMPRESSION,
    *ENGINE,
    *AWQ,
    *FP8,
    *VISION,
    *DETECTION,
    *PRACTICE,
    *SERVING,
    *ATTENTION,
    *DRAFTING,
    *SPECULATION,
)


def read(bar: Bar, folder: Path = RESULTS) -> float | None:
    """The measured value, None when there is none."""
    path = folder / f"{bar.result}.json"
    if not path.is_file():
        return None
    value = json.loads(path.read_text(encoding="utf-8"))["values"].get(bar.value)
    return None if value is None else float(value)


def lines(group: str | None, folder: Path = RESULTS) -> tuple[list[str], int]:
    """The table as text, and how many measured values miss their bar."""
    bars = [bar for bar in BARS if group in (None, bar.group)]
    width = max(len(bar.title) for bar in bars)
    out, missed = [], 0
    for k, bar in enumerate(bars):
        if k == 0 or bars[k - 1].group != bar.group:
            out += ["", f"{bar.group:<{width}} | {'measured':>13} | {'bar':<12} | command"]
        measured = read(bar, folder)
        shown = "not measured" if measured is None else f"{number(measured)} {bar.unit}".rstrip()
        mark = "" if measured is None or bar.met_by(measured) else "  MISSED"
        missed += bool(mark)
        out.append(f"{bar.title:<{width}} | {shown:>13} | {bar.bar:<12} | {bar.command}{mark}")
    return out[1:], missed


def main() -> int:
    """Print the table; exit code 1 when a measured value misses its bar."""
    parser = argparse.ArgumentParser(prog="bench/bars", description=__doc__)
    parser.add_argument("group", nargs="?", choices=sorted({bar.group for bar in BARS}), help="only this group")
    table, missed = lines(parser.parse_args().group)
    print("\n".join(table))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
