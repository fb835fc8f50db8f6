"""Tensors of a decoder: their names and shapes here, and in a checkpoint of its family; no torch."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config import ModelConfig
from burnish.tables.families import FAMILIES, Link

Shape = tuple[int, ...]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Our name -> shape of every tensor, layer by layer; a tied head is one of them."""
    matrices, vectors = _matrices(config), _vectors(config)

    def shape(name: str) -> Shape:
        *_, key, kind = name.split(".")
        return (vectors.get(key, config.hidden),) if kind == "bias" or key not in matrices else matrices[key]

    return {name: shape(name) for link in links(config) for name in link.ours}


def _matrices(config: ModelConfig) -> dict[str, Shape]:
    hidden, experts = config.hidden, config.experts
    query, value = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "embed": (config.vocab, hidden),
        "positions": (config.max_positions, hidden),
        "q": (query, hidden),
        "k": (value, hidden),
        "v": (value, hidden),
        "o": (hidden, query),
        "router": (experts, hidden),
        "gate": (config.ffn, hidden),
        "up": (experts * 2 * config.ffn if experts else config.ffn, hidden),
        "down": (experts * hidden if experts else hidden, config.ffn),
        "head": (config.vocab, hidden),
    }


def _vectors(config: ModelConfig) -> dict[str, int]:
    """Sizes of vectors that are not as long as the hidden state."""
    query, value = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {"q": query, "k": value, "v": value, "up": config.ffn} | dict.fromkeys(("q_norm", "k_norm"), config.head_dim)


def links(config: ModelConfig) -> list[Link]:
    """The family's links with layers and experts written out, in the order of a file."""
    return written_out(FAMILIES[config.family].links, config.layers, config.experts)


def written_out(family: tuple[Link, ...], layers: int, experts: int = 0) -> list[Link]:
    """Links with every layer and expert by its number."""
    expanded: list[Link] = []
    inside = [link for link in family if "{i}" in link.ours[0]]
    for link in family:
        if link not in inside:
            expanded.append(link)
        elif link == inside[0]:
            expanded += [_written(one, i, experts) for i in range(layers) for one in inside]
    return expanded


def _written(link: Link, layer: int, experts: int) -> Link:
    number = str(layer)
    ours = tuple(name.replace("{i}", number) for name in link.ours)
    theirs = tuple(name.replace("{i}", number) for name in link.theirs)
    if "{e}" in theirs[0]:
        theirs = tuple(name.replace("{e}", str(e)) for e in range(experts) for name in theirs)
    return Link(ours, theirs, link.transposed)


def file_shapes(config: ModelConfig, write_tied: bool = False) -> dict[str, Shape]:
    """Checkpoint name -> shape of every tensor in the files; a tied head only with `write_tied`."""
    ours = tensor_shapes(config)
    return {
        name: shape
        for link in links(config)
        if link.ours != ("head.weight",) or not config.tied or write_tied
        for name, shape in _stored(link, ours)
    }


def _stored(link: Link, ours: dict[str, Shape]) -> Iterator[tuple[str, Shape]]:
    rows = sum(ours[name][0] for name in link.ours)
    rest = ours[link.ours[0]][1:]
    for name in link.theirs:
        shape = (rows // len(link.theirs), *rest)
        yield name, shape[::-1] if link.transposed else shape


def head_names(config: ModelConfig) -> tuple[str, str]:
    """What a checkpoint calls the embedding and the head, which may be one."""
    named = {link.ours[0]: link.theirs[0] for link in FAMILIES[config.family].links}
    return named["embed.weight"], named["head.weight"]
