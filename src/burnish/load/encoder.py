"""An encoder from a checkpoint of any format: every tensor in its place, or one line saying which is not."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.encoders.config import EncoderConfig
from burnish.encoders.tensors import encoder_file_shapes, encoder_links, encoder_shapes
from burnish.errors import UserError
from burnish.load.arrange import to_ours
from burnish.load.checkpoint import Checkpoint, StoredTensor
from burnish.load.integer_weights import integer_module
from burnish.load.model import Comparison, config_file, refuse_gaps, widest
from burnish.models.encoder import Encoder
from burnish.tables.encoders import ALSO, ENCODERS, NONE, POOLER


def load_encoder(
    checkpoint: Checkpoint, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> tuple[Encoder, EncoderConfig]:
    """The encoder of a checkpoint, with the head it has; weights keep its format (the widest, if several) unless `dtype`
    is given. Matrices that a folder keeps as integers stay so.

    A head for pre-training is left out. Raises UserError naming file and key for whatever is missing, unexpected or of a
    wrong shape.
    """
    config = load_encoder_config(checkpoint)
    compared = compare_encoder(checkpoint, config)
    refuse_gaps(checkpoint, compared)
    wanted = dtype or widest(compared.found)

    def read(name: str) -> Tensor:
        return compared.found[name].read().to(device=device, dtype=wanted)

    rows = {name: shape[0] for name, shape in encoder_shapes(config).items()}
    with torch.device("meta"):
        model = Encoder(config)
    state: dict[str, Tensor] = {}
    for link in encoder_links(config):
        if compared.found[link.theirs[0]].integers is None:
            state |= to_ours(link, read, rows)
            continue
        name = link.ours[0].removesuffix(".weight")
        made = integer_module(link, compared.found, f"{name}.bias" in rows).to(device)
        model.set_submodule(name, made)
        state |= {f"{name}.{part}": tensor for part, tensor in made.state_dict().items() if part != "bias"}
    model.load_state_dict(state, assign=True)
    return model, config


def load_encoder_config(checkpoint: Checkpoint) -> EncoderConfig:
    """The settings of an encoder's checkpoint, and from its weights whether it has a pooler."""
    pooler = any(name.endswith(f"{POOLER}weight") for name in checkpoint.tensors)
    return EncoderConfig.from_hf(checkpoint.config, config_file(checkpoint), pooler)


def is_encoder(checkpoint: Checkpoint) -> bool:
    """Whether it holds a network of one of the encoder families."""
    return checkpoint.config.get("model_type") in ENCODERS


def compare_encoder(checkpoint: Checkpoint, config: EncoderConfig) -> Comparison:
    """Hold a checkpoint's tensors against what its config asks for; reads no weight.

    A body's names may have its family's prefix or not; a pooler that its head does not read is left out. Raises UserError
    for more layers than there are tensors.
    """
    if config.layers > len(checkpoint.tensors):  # before a name is made for each of a thousand million
        raise UserError(
            f"{config_file(checkpoint)}: num_hidden_layers is {config.layers:,}; the weights are {len(checkpoint.tensors)} tensors"
        )
    family = ENCODERS[config.family]
    wanted = encoder_file_shapes(config)
    prefix = f"{config.family}."
    bare = {name.removeprefix(prefix): name for name in wanted}
    found: dict[str, StoredTensor] = {}
    unexpected = []
    for stored, tensor in checkpoint.tensors.items():
        known = bare.get(_usual(stored).removeprefix(prefix))
        left_out = stored.endswith(family.derived) or stored.startswith(family.unread)
        left_out |= config.head != NONE and POOLER in stored
        if known is not None and known not in found:
            found[known] = tensor
        elif not left_out:
            unexpected.append(stored)
    missing = tuple(name for name in wanted if name not in found)
    misshapen = {name: wanted[name] for name, tensor in found.items() if tuple(tensor.shape) != wanted[name]}
    return Comparison(found, missing, tuple(unexpected), misshapen)


def _usual(name: str) -> str:
    """A name of the first checkpoints as later ones have it."""
    ending = next((ending for ending in ALSO if name.endswith(ending)), "")
    return name.removesuffix(ending) + ALSO.get(ending, "")
