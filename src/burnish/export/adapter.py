"""Adapters alone, as PEFT reads them: adapter_config.json and adapter_model.safetensors.

PEFT puts an adapter on a module of the family's own implementation. Where that holds several of our matrices in one (queries,
keys and values of GPT-2), their adapters become one of the summed rank, whose B has a block of rows for each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from burnish.config import ModelConfig
from burnish.export.folder import replacing_folder
from burnish.ops.lora import Adapter
from burnish.tables.families import Link
from burnish.tensors import links, tensor_shapes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def save_adapter(adapters: Mapping[str, Adapter], config: ModelConfig, folder: Path, base: str | None) -> list[Path]:
    """Write `adapters`, by our names of their layers, into `folder`, whole or not at all; returns the files written.

    `base` is what the model they are for is called. Raises UserError for a place that cannot be written.
    """
    joined = {link: _joined(link, adapters, config) for link in links(config) if _named(link, adapters)}
    tensors: dict[str, Tensor] = {}
    for link, adapter in joined.items():
        module = link.theirs[0].removesuffix(".weight")
        tensors[f"base_model.model.{module}.lora_A.weight"] = adapter.a.float().contiguous()
        tensors[f"base_model.model.{module}.lora_B.weight"] = adapter.b.float().contiguous()
    settings = _settings(joined, base)
    with replacing_folder(folder, lambda name: name in (CONFIG, WEIGHTS)) as fresh:
        (fresh / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, fresh / WEIGHTS, metadata={"format": "pt"})
        (fresh / WEIGHTS).chmod((fresh / CONFIG).stat().st_mode)
    return sorted(folder.iterdir())


def _named(link: Link, adapters: Mapping[str, Adapter]) -> list[str]:
    """Our layers of a link that have an adapter."""
    names = (name.removesuffix(".weight") for name in link.ours if name.endswith(".weight"))
    return [name for name in names if name in adapters]


def _joined(link: Link, adapters: Mapping[str, Adapter], config: ModelConfig) -> Adapter:
    """One adapter for a module of theirs."""
    names = _named(link, adapters)
    own = [adapters[name] for name in names]
    if len(link.ours) == 1:
        return own[0]
    rows = [tensor_shapes(config)[name][0] for name in link.ours]
    b_OR = own[0].b.new_zeros(sum(rows), sum(adapter.b.shape[1] for adapter in own))
    start = column = 0
    for name, height in zip(link.ours, rows, strict=True):
        if (adapter := adapters.get(name.removesuffix(".weight"))) is not None:
            width = adapter.b.shape[1]
            b_OR[start : start + height, column : column + width] = adapter.b
            column += width
        start += height
    return Adapter(torch.cat([adapter.a for adapter in own]), b_OR, own[0].scale)


def _settings(joined: Mapping[Link, Adapter], base: str | None) -> dict[str, Any]:
    """PEFT's settings. A module is named by its last two parts, which no other has; `alpha` is scale times rank there."""
    modules = {".".join(link.theirs[0].split(".")[-3:-1]): adapter for link, adapter in joined.items()}
    ranks = {name: adapter.a.shape[0] for name, adapter in modules.items()}
    alphas = {name: _plain(adapter.scale * ranks[name]) for name, adapter in modules.items()}
    rank = min(ranks.values())
    alpha = next(alphas[name] for name in ranks if ranks[name] == rank)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {name: r for name, r in ranks.items() if r != rank},
        "alpha_pattern": {name: alphas[name] for name, r in ranks.items() if r != rank},
        "lora_dropout": 0.0,
        "use_rslora": False,
        "bias": "none",
        "fan_in_fan_out": any(link.transposed for link in joined),
        "inference_mode": True,
        "target_modules": sorted(modules),
    }


def _plain(number: float) -> float | int:
    """An integer where it is one within rounding, as most readers write it."""
    return round(number) if math.isclose(number, round(number), rel_tol=1e-12) else number
