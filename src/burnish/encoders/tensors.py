"""Tensors of an encoder: their names and shapes here, and in a checkpoint of its family; no torch."""

from __future__ import annotations

from dataclasses import replace

from burnish.encoders.config import EncoderConfig
from burnish.tables.encoders import BODY, ENCODERS
from burnish.tables.families import Link, linear
from burnish.tensors import Shape, written_out


def encoder_links(config: EncoderConfig) -> list[Link]:
    """Every tensor with its name in a file, layers written out, in the order of a file."""
    head = ENCODERS[config.family].heads[config.head]
    own = [replace(link, theirs=tuple(head.prefix + name for name in link.theirs)) for link in BODY]
    pooler = linear("pooler", head.pooler, True) if config.pooler and head.pooler is not None else ()
    return written_out((*own, *pooler, *head.links), config.layers)


def encoder_shapes(config: EncoderConfig) -> dict[str, Shape]:
    """Our name -> shape of every tensor."""
    hidden = config.hidden
    rows = {"embed": config.vocab, "positions": config.table, "types": config.types}
    rows |= {"up": config.ffn, "head": len(config.labels)}

    def shape(name: str) -> Shape:
        part, _, kind = name.rpartition(".")
        key = part.rpartition(".")[2]
        vector = kind == "bias" or key.endswith("norm")
        return (rows.get(key, hidden),) if vector else (rows.get(key, hidden), config.ffn if key == "down" else hidden)

    return {name: shape(name) for link in encoder_links(config) for name in link.ours}


def encoder_file_shapes(config: EncoderConfig) -> dict[str, Shape]:
    """Checkpoint name -> shape of every tensor; each is one of ours under another name."""
    shapes = encoder_shapes(config)
    return {link.theirs[0]: shapes[link.ours[0]] for link in encoder_links(config)}
