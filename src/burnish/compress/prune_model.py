"""Cut a model: choose what stays by its importance, and make the smaller model from the config and the weights that stay.

The smaller model is built anew from its own config, so that no count of heads or layers of the old one can be left in it; the
old one stays as it is. Letters: D size of a head, Q query heads of a group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.compress.fingerprint import model_fingerprint
from burnish.compress.importance import Importance, importance
from burnish.compress.prune_table import Kept, Table
from burnish.compress.samples import Samples
from burnish.compress.table_key import Key
from burnish.config import ModelConfig
from burnish.encoders.config import EncoderConfig
from burnish.encoders.tensors import encoder_shapes
from burnish.errors import UserError
from burnish.load.model import empty, materialise
from burnish.models.decoder import Decoder
from burnish.models.encoder import Encoder
from burnish.pruned_sizes import Sizes, pruned_config, sizes_of_config
from burnish.tensors import tensor_shapes

Model = Decoder | Encoder
LAYER = "layers."
GROUPS, CHANNELS = "groups", "channels"
# Ending of a tensor's name -> (of which part it holds a run for each, the dimension of the runs).
RUNS = {
    **{f"attention.{name}.{kind}": (GROUPS, 0) for name in ("q", "k", "v") for kind in ("weight", "bias")},
    "attention.o.weight": (GROUPS, 1),
    **{f"mlp.{name}.{kind}": (CHANNELS, 0) for name in ("gate", "up") for kind in ("weight", "bias")},
    "mlp.down.weight": (CHANNELS, 1),
}


def choose(
    model: Model, samples: Samples | None, sizes: Sizes, kind: str, rows: int, settings: dict[str, Any]
) -> Table:
    """The table of what stays when the model is cut to `sizes` by importance of `kind`.

    Groups and channels are ranked within their layer, layers among all; of equals the first stay. Raises UserError as
    `importance` does, and for a model that is not plain.
    """
    refuse_others(model)
    found = importance(kind, model, samples, rows)
    whole = found.layers / found.layers.sum().clamp(min=torch.finfo(torch.float64).tiny)
    staying = set(largest(found.layers, sizes.layers))
    key = Key(model=model_fingerprint(model), samples=samples.fingerprint if samples else "", config=settings)
    return Table(
        key=key,
        layers=tuple(
            _row(number, found, sizes, number in staying, float(whole[number])) for number in range(len(found.layers))
        ),
    )


def _row(number: int, found: Importance, sizes: Sizes, stays: bool, whole: float) -> Kept:
    if not stays:
        return Kept(layer=number, stays=False, importance=whole)
    groups, channels = found.groups[number], found.channels[number]
    kept_groups, kept_channels = largest(groups, sizes.groups), largest(channels, sizes.channels)
    return Kept(
        layer=number,
        stays=True,
        importance=whole,
        groups_share=_share(groups, kept_groups),
        channels_share=_share(channels, kept_channels),
        groups=kept_groups,
        channels=kept_channels,
    )


def largest(values: Tensor, count: int) -> tuple[int, ...]:
    """The places of the `count` largest values, in their order; of equals the first."""
    ranked = torch.sort(values, descending=True, stable=True).indices[:count]
    return tuple(sorted(ranked.tolist()))


def _share(values: Tensor, kept: tuple[int, ...]) -> float:
    total = float(values.sum())
    return float(values[list(kept)].sum()) / total if total else 0.0


@torch.no_grad()
def cut(model: Any, table: Table) -> Any:
    """The model with only what the table keeps; its `shape` is the new config, its weights are copies.

    Raises UserError for a model that is not plain, and where the family's config cannot say the new sizes.
    """
    config = refuse_others(model)
    before, kept = sizes_of_config(config), table.kept
    sizes = Sizes(len(kept), len(kept[0].groups), len(kept[0].channels), before.queries, before.hidden)
    try:
        smaller = pruned_config(config, sizes, table.numbers)
    except ValueError as error:
        said = str(error).splitlines()
        raise UserError(f"techniques.prune: {' '.join(said[-2:] if len(said) > 1 else said).strip()}") from None
    old = model.state_dict()
    state: dict[str, Tensor] = {}
    for name in shapes_of(smaller):
        if not name.startswith(LAYER):
            state[name] = old[name].clone()
            continue
        number, _, inside = name.removeprefix(LAYER).partition(".")
        row = kept[int(number)]
        state[name] = sliced(old[f"{LAYER}{row.layer}.{inside}"], inside, row, before)
    return built(smaller, state).train(model.training)


def shapes_of(config: ModelConfig | EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Our name -> shape of every tensor that has memory of its own."""
    if isinstance(config, EncoderConfig):
        return encoder_shapes(config)
    return {name: shape for name, shape in tensor_shapes(config).items() if not (config.tied and name == "head.weight")}


def built(config: ModelConfig | EncoderConfig, state: dict[str, Tensor]) -> Model:
    """The network of a config with these weights."""
    if isinstance(config, ModelConfig):
        return materialise(empty(config), state)
    with torch.device("meta"):
        made = Encoder(config)
    made.load_state_dict(state, assign=True)
    return made


def sliced(tensor: Tensor, inside: str, row: Kept, before: Sizes) -> Tensor:
    """What stays of a layer's tensor; `inside` is its name within the layer."""
    rule = RUNS.get(inside)
    part, dim = rule if rule else ("", 0)
    if part == GROUPS:
        return taken(tensor, row.groups, before.groups, dim)
    if part == CHANNELS and before.channels:
        return taken(tensor, row.channels, before.channels, dim)
    return tensor.clone()


def taken(tensor: Tensor, runs: tuple[int, ...], count: int, dim: int) -> Tensor:
    """The named ones of `count` equal runs along a dimension: of q a group's run is its Q D rows, of k its D."""
    split = tensor.unflatten(dim, (count, -1))
    wanted = torch.tensor(runs, dtype=torch.int64, device=tensor.device)
    return split.index_select(dim, wanted).flatten(dim, dim + 1)


def refuse_others(model: Any) -> ModelConfig | EncoderConfig:
    """The config of a plain model. Raises UserError for anything else, naming what is not plain."""
    config = getattr(model, "shape", None)
    if not isinstance(model, Model) or not isinstance(config, ModelConfig | EncoderConfig):
        raise UserError(f"techniques.prune: a {type(model).__name__} is not pruned here; a decoder or encoder is")
    state, shapes = model.state_dict(), shapes_of(config)
    state.pop("head.weight" if isinstance(config, ModelConfig) and config.tied else "", None)
    for name in sorted(shapes.keys() ^ state.keys()):
        raise UserError(
            f"techniques.prune: {name} is {'missing' if name in shapes else 'no tensor of a plain model'}; prune first, "
            "then put on adapters or integers"
        )
    return config
