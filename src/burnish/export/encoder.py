"""Encoder folders as Hugging Face reads them: config.json, safetensors (or shards), tokenizer files."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import Tensor, nn

from burnish.encoders.config import EncoderConfig
from burnish.encoders.tensors import encoder_links, encoder_shapes
from burnish.errors import UserError
from burnish.export.safetensors import SHARD_BYTES, refuse_overlap, writing_model
from burnish.export.tokenizer import write_files
from burnish.load.checkpoint import TokenizerFiles
from burnish.load.sentence_folder import Pooling, sentence_files

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def save_encoder(
    model: nn.Module,
    config: EncoderConfig,
    folder: str | Path,
    *,
    dtype: str = "float32",
    tokenizer: str | Path | TokenizerFiles | None = None,
    pooling: Pooling | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Write `model` into `folder`, whole or not at all; returns the files written. `tokenizer`: a folder whose tokenizer
    files go along as they are, or the content. `pooling`: how vectors are made, written as sentence-transformers reads it.

    Raises UserError for an unknown dtype, a model that is not of this config, two tensors on the same memory, a tokenizer
    folder without tokenizer.json, a place that cannot be written.
    """
    tensors = encoder_for_file(model, config)
    settings = {"config.json": config.to_hf() | {"torch_dtype": dtype}}
    settings |= sentence_files(pooling, config.hidden) if pooling is not None else {}
    copied: list[Path] = []
    if isinstance(tokenizer, str | Path):
        copied = [path for name in TOKENIZER_FILES if (path := Path(tokenizer) / name).is_file()]
        if Path(tokenizer) / TOKENIZER_FILES[0] not in copied:
            raise UserError(
                f"{Path(tokenizer) / TOKENIZER_FILES[0]}: no such file; the encoder's own tokenizer is needed"
            )
    with writing_model(Path(folder), settings, tensors, dtype, shard_bytes, {"format": "pt"}) as fresh:
        for path in copied:
            shutil.copyfile(path, fresh / path.name)
        if isinstance(tokenizer, TokenizerFiles):
            write_files(tokenizer, fresh)
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def encoder_for_file(model: nn.Module, config: EncoderConfig) -> dict[str, Tensor]:
    """Checkpoint name -> tensor. Raises UserError for a model that is not of this config."""
    plain = getattr(model, "_orig_mod", model)  # a compiled module keeps the plain one here
    state: dict[str, Tensor] = {name: tensor.detach() for name, tensor in plain.state_dict().items()}
    shapes = encoder_shapes(config)
    for name in sorted(shapes.keys() | state.keys()):
        if name not in state:
            raise UserError(f"model: {name} is missing, which the config says is there")
        if tuple(state[name].shape) != shapes.get(name):
            raise UserError(f"model: {name} has shape {tuple(state[name].shape)}, the config {shapes.get(name)}")
    refuse_overlap(state)
    return {link.theirs[0]: state[link.ours[0]] for link in encoder_links(config)}
