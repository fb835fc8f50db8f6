"""Small models with matrices of integers for ONNX tests, and their files run in onnxruntime."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from burnish.compress.rtn import integers
from burnish.config import ModelConfig
from burnish.export.onnx_decoder import decoder_graph
from burnish.export.onnx_file import writing
from burnish.export.onnx_graph import Graph
from burnish.export.onnx_linear import Form
from burnish.export.onnx_matrix import Matrix
from burnish.models.decoder import Decoder
from burnish.ops.int4_linear import Int4Linear
from burnish.ops.int8_linear import of_weight
from burnish.weight_format import IntWeights

SIZES = {"vocab": 101, "hidden": 96, "ffn": 160, "layers": 2, "heads": 6, "head_dim": 16, "max_positions": 96}
WEIGHTS = {"init_std": 0.1}
PORTABLE, FUSED = Form(), Form(fused=True)
FLAT = Form(fused=True, flat=True, unsigned=True)


def config_of(**changes: Any) -> ModelConfig:
    return ModelConfig(**SIZES | WEIGHTS | {"kv_heads": 2} | changes)


def random_model(model: Any, seed: int = 0) -> Any:
    """Norm weights differ from 1 and biases from 0, so that leaving one out shows."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.1)
    return model.eval()


def decoder(config: ModelConfig, seed: int = 0) -> Decoder:
    return random_model(Decoder(config, torch.Generator().manual_seed(seed)), seed)


def compressed(model: Any, scheme: IntWeights, largest: float = 6.0) -> Any:
    """A copy whose matrices of the layers are integers, rounded to nearest; `largest`: input that 127 stands for."""
    made = copy.deepcopy(model)
    for name, module in list(made.named_modules()):
        if name.startswith("layers.") and isinstance(module, nn.Linear):
            if scheme.bits == 4:
                own = integers(module.weight, scheme)
                put: nn.Module = Int4Linear(scheme, module.in_features, own, module.bias)
            else:
                put = of_weight(scheme, module.weight, largest if scheme.inputs == "tensor" else None, module.bias)
            made.set_submodule(name, put)
    return made.eval()


def written(graph: Graph, folder: Path, name: str = "m.onnx") -> Path:
    path = folder / name
    with writing(graph, path):
        pass
    return path


def file_of(model: Decoder, form: Form, folder: Path, words: Matrix | None = None) -> Path:
    return written(decoder_graph(model, form, words), folder)
