"""A decoder from a checkpoint of any format: every tensor in its place, or one line saying which is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.load.arrange import to_ours
from burnish.load.checkpoint import Checkpoint, StoredTensor
from burnish.load.folder import open_folder
from burnish.load.integer_weights import integer_module
from burnish.models.decoder import Decoder
from burnish.tables.encoders import ENCODERS
from burnish.tables.families import FAMILIES
from burnish.tensors import file_shapes, head_names, links, tensor_shapes

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}

TRAINED_LENGTH = "trained_length"  # key of config.json for the longest row trained on; other readers leave it alone


@dataclass(frozen=True)
class Comparison:
    """What a family's decoder of a config needs beside what a checkpoint holds, by the family's names."""

    found: dict[str, StoredTensor]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: dict[str, tuple[int, ...]]  # name -> the shape that the config says


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    integers: bool = True,
) -> tuple[Decoder, ModelConfig]:
    """The decoder of a checkpoint; weights keep its format (the widest, if several; float32 for blocks of integers) unless
    `dtype` is given. Matrices that a folder keeps as integers stay so, unless `integers` is false.

    One copy of the weights is held: the model is built on the meta device and takes each tensor as it is read. Raises
    UserError naming file and key for whatever is missing, unexpected, of a wrong shape, or does not follow its tie.
    """
    if (kind := checkpoint.config.get("model_type")) in ENCODERS:
        raise UserError(f"{config_file(checkpoint)}: model_type {kind!r} is an encoder; a decoder is needed here")
    config = config_of(checkpoint)
    compared = compare(checkpoint, config)
    refuse_gaps(checkpoint, compared)
    wanted = dtype or widest(compared.found)

    def read(name: str) -> Tensor:
        return compared.found[name].read().to(device=device, dtype=wanted)

    embedding, head = head_names(config)
    shapes = tensor_shapes(config)
    state: dict[str, Tensor] = {}
    modules: dict[str, nn.Module] = {}
    for link in links(config):
        if integers and all(name in compared.found and compared.found[name].integers for name in link.theirs):
            module = link.ours[0].removesuffix(".weight")
            modules[module] = integer_module(link, compared.found, f"{module}.bias" in shapes).to(device)
        elif link.theirs != (head,) or not config.tied:
            state |= to_ours(link, read, {name: shape[0] for name, shape in shapes.items()})
    if config.tied and head in compared.found and not torch.equal(read(head), state["embed.weight"]):
        raise UserError(
            f"{compared.found[head].file}: {head} differs from {embedding}, but config.json says they are tied"
        )
    model = empty(config)
    for name, made in modules.items():
        model.set_submodule(name, made)
        state |= {f"{name}.{part}": tensor for part, tensor in made.state_dict().items() if part != "bias"}
    return materialise(model, state), config


def config_of(checkpoint: Checkpoint) -> ModelConfig:
    """The shape that a checkpoint's settings describe. Raises UserError naming the key where they describe none of ours."""
    return ModelConfig.from_hf(checkpoint.config, config_file(checkpoint))


def load_folder(
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    integers: bool = True,
) -> tuple[Decoder, ModelConfig]:
    """The decoder of a model folder, as `load_model`."""
    return load_model(open_folder(folder), dtype=dtype, device=device, integers=integers)


def compare(checkpoint: Checkpoint, config: ModelConfig) -> Comparison:
    """Hold a checkpoint's tensors against what its config asks for; reads no weight.

    A body saved without its head's wrapper leaves out the first part of every name; a tied head may be there or not.
    """
    family = FAMILIES[config.family]
    wanted = file_shapes(config, write_tied=True)
    bare = {name.removeprefix(family.prefix): name for name in wanted}
    found: dict[str, StoredTensor] = {}
    unexpected = []
    for name, tensor in checkpoint.tensors.items():
        known = name if name in wanted else bare.get(name)
        if known is not None and known not in found:
            found[known] = tensor
        elif not name.endswith(family.derived or ("\0",)):
            unexpected.append(name)
    _, head = head_names(config)
    missing = tuple(name for name in wanted if name not in found and not (config.tied and name == head))
    misshapen = {name: wanted[name] for name, tensor in found.items() if tuple(tensor.shape) != wanted[name]}
    return Comparison(found, missing, tuple(unexpected), misshapen)


def refuse_gaps(checkpoint: Checkpoint, compared: Comparison) -> None:
    """Raises UserError for the first tensor that is unexpected, of a wrong shape, or missing."""
    for name in compared.unexpected:
        raise UserError(f"{checkpoint.tensors[name].file}: unexpected {name}; config.json describes no such weight")
    for name, shape in compared.misshapen.items():
        stored = compared.found[name]
        raise UserError(f"{stored.file}: {name} has shape {tuple(stored.shape)}, config.json says {shape}")
    for name in compared.missing:
        raise UserError(f"{checkpoint.where}: {name} is missing from the weights")


def config_file(checkpoint: Checkpoint) -> str:
    """What messages call the place of a checkpoint's settings."""
    folder = Path(checkpoint.where)
    return str(folder / "config.json") if folder.is_dir() else checkpoint.where


def widest(tensors: Mapping[str, StoredTensor]) -> torch.dtype:
    """The widest format that the weights are stored in; float32 for blocks of integers."""
    return max((DTYPES.get(t.format, torch.float32) for t in tensors.values()), key=lambda dtype: dtype.itemsize)


def empty(config: ModelConfig) -> Decoder:
    """The decoder without memory."""
    with torch.device("meta"):
        return Decoder(config)


def materialise(model: Decoder, state: Mapping[str, Tensor]) -> Decoder:
    """Give a model built on the meta device its weights, by our names, without a copy, and tie the head again.

    A plain `load_state_dict(assign=True)` would leave head and embedding as two parameters. For a tied model
    `head.weight` may be left out. Raises UserError naming a key that is missing, unknown or of a wrong shape.
    """
    given = dict(state)
    if model.shape.tied and "embed.weight" in given:
        given["head.weight"] = given["embed.weight"]
    wanted = model.state_dict()
    for name in sorted(wanted.keys() ^ given.keys()):
        raise UserError(f"weights: {name} is {'missing' if name in wanted else 'unknown to this model'}")
    for name, tensor in given.items():
        if tensor.shape != wanted[name].shape:
            raise UserError(f"weights: {name} has shape {tuple(tensor.shape)}, the model {tuple(wanted[name].shape)}")
    model.load_state_dict(given, assign=True)
    model.tie()
    return model


def count(config: ModelConfig) -> int:
    """Parameters of the tensors that a decoder of this config has; a tied head counts once."""
    return sum(prod(shape) for name, shape in tensor_shapes(config).items() if name != "head.weight" or not config.tied)
