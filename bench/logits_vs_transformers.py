"""Logits and files beside transformers, over every shape and padding of the tests: bench/results/logits_vs_transformers.json."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from burnish.export.safetensors import save_folder
from burnish.load.model import load_folder
from record import record

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
from llama_pair import SHAPES, batch, pair, their_logits


@torch.no_grad()
def largest_difference() -> float:
    """Over real tokens only, padded left and right and not at all."""
    worst = 0.0
    for config in SHAPES.values():
        ours, theirs = pair(config)
        for side in ("left", "right"):
            ids, mask = batch(config, side)
            gap = ours.logits(ours(ids, mask_BS=mask))[mask] - their_logits(theirs, ids, mask)[mask]
            worst = max(worst, gap.abs().max().item())
        worst = max(worst, (ours.logits(ours(ids)) - their_logits(theirs, ids)).abs().max().item())
    return worst


def different_weights() -> int:
    """Tensors that are missing, extra or not equal bit for bit: ours -> transformers -> ours, whole and in shards."""
    wrong = 0
    for config in SHAPES.values():
        for limit in (2**30, 20_000):
            with tempfile.TemporaryDirectory() as scratch:
                ours, _ = pair(config)
                save_folder(ours, config, f"{scratch}/ours", shard_bytes=limit)
                theirs, info = LlamaForCausalLM.from_pretrained(f"{scratch}/ours", output_loading_info=True)
                wrong += sum(len(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
                theirs.save_pretrained(f"{scratch}/theirs", max_shard_size=limit)
                back, _ = load_folder(f"{scratch}/theirs")
                pairs = zip(ours.state_dict().values(), back.state_dict().values(), strict=True)
                wrong += sum(not torch.equal(a, b) for a, b in pairs)
    return wrong


if __name__ == "__main__":
    values = {"max_difference": largest_difference(), "weights_different": different_weights(), "shapes": len(SHAPES)}
    print(record("logits_vs_transformers", values), values)
