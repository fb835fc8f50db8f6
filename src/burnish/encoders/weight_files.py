"""Weight files of an encoder whose matrices are integers: which tensors, and how many bytes; no torch."""

from __future__ import annotations

from burnish.encoders.config import EncoderConfig
from burnish.encoders.tensors import encoder_file_shapes, encoder_links
from burnish.layout import shards
from burnish.weight_format import IntWeights, Stored, module_of, one_file, size_of, stored

ABOUT = {"format": "pt"}  # what a weight file says of itself


def encoder_file_tensors(config: EncoderConfig, scheme: IntWeights | None, dtype: str, kept: frozenset[str]) -> Stored:
    """All tensors of the files, in their order; `kept` modules, and without a scheme all, stay in `dtype`."""
    found: Stored = {}
    shapes = encoder_file_shapes(config)
    for link in encoder_links(config):
        (name,) = link.theirs
        small = scheme is not None and bool(module_of(link)) and module_of(link) not in kept
        if scheme is not None and small:
            found |= stored(scheme, name.removesuffix(".weight"), shapes[name])
        else:
            found[name] = dtype, shapes[name]
    return found


def encoder_file_bytes(
    config: EncoderConfig, scheme: IntWeights | None, dtype: str, limit: int, kept: frozenset[str] = frozenset()
) -> int:
    """Bytes of all weight files, headers included."""
    tensors = encoder_file_tensors(config, scheme, dtype, kept)
    sizes = {name: size_of(*tensor) for name, tensor in tensors.items()}
    return sum(one_file({name: tensors[name] for name in names}, ABOUT) for names in shards(sizes, limit))


def encoder_ignored(config: EncoderConfig, kept: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """A file's modules that hold matrices and are not compressed: pooler, head, and those kept; not embeddings."""
    found = []
    for link in encoder_links(config):
        ours, theirs = link.ours[0], link.theirs[0]
        matrix = theirs.endswith(".weight") and len(encoder_file_shapes(config)[theirs]) == 2
        if (
            matrix
            and not ours.startswith(("embed", "positions", "types"))
            and (not module_of(link) or module_of(link) in kept)
        ):
            found.append(theirs.removesuffix(".weight"))
    return tuple(found)
