"""Model folders with integer weights, in the format of compressed-tensors, which transformers and vLLM read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.export.safetensors import SHARD_BYTES, refuse_overlap, settings_of, writing_model
from burnish.export.tokenizer import write_tokenizer
from burnish.layout import metadata
from burnish.load.arrange import to_theirs
from burnish.load.checkpoint import TokenizerFiles
from burnish.tensors import links
from burnish.weight_format import IntWeights, compressed_links, ignored, module_of, quantization_config


def save_compressed(
    model: nn.Module,
    config: ModelConfig,
    folder: str | Path,
    *,
    tokenizer: str | Path | TokenizerFiles | None = None,
    shard_bytes: int = SHARD_BYTES,
    trained_length: int | None = None,
) -> list[Path]:
    """Write a model whose matrices are modules of integers into `folder`, whole or not at all; returns the files written.

    What is no integer is cast to the format of the scales. Raises UserError for a model without such modules, or with some
    of several kinds, for a family whose files have no such names, and as `export.safetensors.save_folder` does.
    """
    scheme = scheme_of(model)
    kept = kept_modules(model, config)
    compressed = {link.theirs[0] for link in compressed_links(config, kept)}
    state: dict[str, Tensor] = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if config.tied:
        state.pop("head.weight")
    refuse_overlap(state)
    tensors: dict[str, Tensor] = {}
    for link in links(config):
        if link.theirs[0] in compressed:
            made: Any = model.get_submodule(module_of(link))
            for name, part in zip(link.theirs, made.stored(len(link.theirs)), strict=True):
                tensors |= {f"{name.removesuffix('.weight')}.{ending}": tensor for ending, tensor in part.items()}
        elif link.ours[0] in state:
            tensors |= to_theirs(link, state)
    _storable(tensors, scheme.dtype)
    settings = settings_of(config, scheme.dtype, trained_length)
    settings["config.json"]["quantization_config"] = quantization_config(scheme, ignored(config, kept))
    with writing_model(Path(folder), settings, tensors, scheme.dtype, shard_bytes, metadata(config)) as fresh:
        if tokenizer is not None:
            write_tokenizer(tokenizer, config, fresh)
    return sorted(Path(folder).iterdir())


def scheme_of(model: nn.Module) -> IntWeights:
    """How the integers of a model are kept. Raises UserError where there are none, or several kinds."""
    found = list(dict.fromkeys(own for module in model.modules() if isinstance(own := _scheme(module), IntWeights)))
    if not found:
        raise UserError("model: holds no matrix of integers; compress it first")
    if len(found) > 1:
        raise UserError(
            f"model: holds integers as {' and as '.join(own.label for own in found)}; a folder has one kind"
        )
    return found[0]


def _scheme(module: nn.Module) -> object:
    return getattr(module, "scheme", None)


def kept_modules(model: nn.Module, config: ModelConfig) -> frozenset[str]:
    """The modules that could be compressed and are not."""
    names = [module for link in links(config) if (module := module_of(link))]
    return frozenset(name for name in names if not isinstance(_scheme(model.get_submodule(name)), IntWeights))


def _storable(tensors: dict[str, Tensor], dtype: str) -> None:
    """Refuse a value that becomes infinite in the file's format."""
    most = torch.finfo(getattr(torch, dtype)).max
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and float(tensor.abs().max()) > most:
            raise UserError(f"model: {name} has a value beyond what {dtype} holds; dtype bfloat16 and float32 hold it")
