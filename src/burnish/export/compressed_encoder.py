"""Encoder folders with integer weights, in the format of compressed-tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from burnish.encoders.config import EncoderConfig
from burnish.encoders.tensors import encoder_links
from burnish.encoders.weight_files import ABOUT, encoder_ignored
from burnish.export.compressed_tensors import scheme_of
from burnish.export.safetensors import SHARD_BYTES, writing_model
from burnish.export.tokenizer import write_files
from burnish.load.checkpoint import TokenizerFiles
from burnish.load.sentence_folder import Pooling, sentence_files
from burnish.weight_format import IntWeights, module_of, quantization_config


def save_compressed_encoder(
    model: nn.Module,
    config: EncoderConfig,
    folder: str | Path,
    *,
    tokenizer: TokenizerFiles | None = None,
    pooling: Pooling | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write an encoder whose matrices are modules of integers into `folder`, whole or not at all.

    What is no integer is cast to the format of the scales; `pooling`: how vectors are made of its states. Raises UserError as
    `export.compressed_tensors.save_compressed` does.
    """
    scheme = scheme_of(model)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors: dict[str, Tensor] = {}
    kept = set()
    for link in encoder_links(config):
        (theirs,), module = link.theirs, module_of(link)
        made: Any = model.get_submodule(module) if module else None
        if module and isinstance(getattr(made, "scheme", None), IntWeights):
            (part,) = made.stored()
            tensors |= {f"{theirs.removesuffix('.weight')}.{ending}": tensor for ending, tensor in part.items()}
        else:
            tensors[theirs] = state[link.ours[0]]
            kept |= {module} if module else set()
    said = quantization_config(scheme, encoder_ignored(config, frozenset(kept)))
    settings: dict[str, Any] = {
        "config.json": config.to_hf() | {"torch_dtype": scheme.dtype, "quantization_config": said}
    }
    settings |= sentence_files(pooling, config.hidden) if pooling is not None else {}
    with writing_model(Path(folder), settings, tensors, scheme.dtype, shard_bytes, ABOUT) as fresh:
        if tokenizer is not None:
            write_files(tokenizer, fresh)
