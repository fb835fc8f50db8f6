"""llm-compressor's AWQ on a folder and rows of tokens: written as a folder, with time and memory as JSON on the last line.

Runs in the peer's own environment, which `awq_vs_llmcompressor.py` makes.
"""

from __future__ import annotations

import json
import sys

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from transformers import AutoModelForCausalLM

from watched import watched


def main(folder: str, rows: str, out: str, grid: int, group: int) -> None:
    """Compress all linear layers but the head to asymmetric 4-bit integers."""
    torch.set_num_threads(int(sys.argv[6]))
    # Without a CUDA driver its CUDA build of torch refuses to pin memory, which a CPU has no use for.
    IntermediatesCache.pin_memory = lambda *given, **more: None
    with open(rows) as file:
        ids = json.load(file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    data = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]})
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    recipe = [
        AWQModifier(n_grid=grid, duo_scaling="both"),
        QuantizationModifier(config_groups=groups, ignore=["lm_head"]),
    ]
    found: dict[str, float] = {}
    with watched(found):
        oneshot(
            model=model,
            dataset=data,
            recipe=recipe,
            max_seq_length=max(map(len, ids)),
            num_calibration_samples=len(ids),
        )
    model.save_pretrained(out, save_compressed=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:6]))
