"""Looking into a checkpoint: what model it is, how large, in which formats, what it lacks, what it needs; reads no weights.

Everything is a plain value under a stable key, so that the JSON a script reads and the table a person reads are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.load.checkpoint import Checkpoint, StoredTensor
from burnish.load.inspect_tokenizer import tokenizer_of
from burnish.load.known_family import Known, known_family
from burnish.load.torch_needed import torch_here
from burnish.tables.tensor_parts import CAUSAL, CONTEXT_KEYS, DERIVED, ORDER, SIZE_KEYS, part_of

CHEAP = 2**26  # bytes of an embedding that are read to see whether the head equals it
TOKENS = 1000  # of a text whose cache is counted
WIDTHS = {"float32": 4, "bfloat16": 2}  # bytes an element of what a model is held in


def inspect_model(checkpoint: Checkpoint) -> dict[str, Any]:
    """What can be said of a checkpoint without its weights; an embedding up to CHEAP bytes is compared with its head.

    Sizes are elements, `bytes` are bytes; what does not apply or is not known is None. A model of an unknown family is
    described as far as its settings go; `known` is then false and `refused` says why it cannot be loaded.
    """
    known, refused = _known(checkpoint)
    config = known.decoder if known is not None else None
    weights = {n: t for n, t in checkpoint.tensors.items() if not DERIVED.search(n) and not _integers(t)}
    sizes = _sizes(checkpoint.config, known)
    tie = _tie(checkpoint, config, weights)
    counted = {n: t for n, t in weights.items() if not (tie["declared"] and part_of(n) == "head" and n == tie["head"])}
    parts = _parts(counted)
    context = _first(checkpoint.config, CONTEXT_KEYS)
    return {
        "where": checkpoint.where,
        "format": checkpoint.format,
        "family": checkpoint.config.get("model_type"),
        "architecture": next(iter(_list(checkpoint.config.get("architectures"))), None),
        "known": known is not None,
        "refused": refused,
        "parameters": {"total": sum(parts.values()), "active": _active(parts, sizes), **parts},
        "sizes": sizes,
        "context": context if known is None else known.config.max_positions,
        "rope": _rope(checkpoint.config, known),
        "window": _window(checkpoint.config, known),
        "tie": tie,
        "files": sorted({tensor.file.name for tensor in checkpoint.tensors.values()}),
        "bytes": sum(tensor.bytes for tensor in checkpoint.tensors.values()),
        "formats": _formats(checkpoint.tensors),
        "tokenizer": tokenizer_of(checkpoint),
        "ends": _list(checkpoint.generation.get("eos_token_id", checkpoint.config.get("eos_token_id"))),
        "code": bool(checkpoint.config.get("auto_map")),
        "compared": _compared(known),
        "memory": _memory(sum(parts.values()), sizes, known, checkpoint.config),
        "tensors": {
            name: {
                "shape": list(t.shape),
                "format": t.format,
                "bytes": t.bytes,
                "file": t.file.name,
                "part": part_of(name),
            }
            for name, t in checkpoint.tensors.items()
        },
    }


def _known(checkpoint: Checkpoint) -> tuple[Known | None, str | None]:
    try:
        return known_family(checkpoint), None
    except UserError as error:
        return None, str(error).removeprefix(f"{checkpoint.where}: ")


def _sizes(settings: Mapping[str, Any], known: Known | None) -> dict[str, int | None]:
    if known is not None:
        return {name: getattr(known.config, name, None) or None for name in SIZE_KEYS}
    found = {name: _first(settings, keys) for name, keys in SIZE_KEYS.items()}
    if not found["head_dim"] and found["hidden"] and found["heads"]:
        found["head_dim"] = found["hidden"] // found["heads"]
    return found


def _first(settings: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """The first key that has a count."""
    return next((settings[key] for key in keys if type(settings.get(key)) is int and settings[key] > 0), None)


def _list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _integers(tensor: StoredTensor) -> bool:
    return tensor.format.startswith(("int", "uint", "bool"))


def _parts(weights: Mapping[str, StoredTensor]) -> dict[str, int]:
    """Part -> elements; parts that the model does not have are left out."""
    made = dict.fromkeys(ORDER, 0)
    for name, tensor in weights.items():
        made[part_of(name)] += prod(tensor.shape)
    return {part: count for part, count in made.items() if count}


def _active(parts: Mapping[str, int], sizes: Mapping[str, int | None]) -> int | None:
    """Parameters that one token passes; None where all do."""
    experts, topk = sizes["experts"], sizes["topk"]
    if not experts or not topk or "experts" not in parts:
        return None
    return sum(parts.values()) - parts["experts"] + parts["experts"] * min(topk, experts) // experts


def _rope(settings: Mapping[str, Any], known: Known | None) -> dict[str, Any] | None:
    """Base and stretching of the rotary embedding; None for a model that has none."""
    if known is not None:
        config = known.decoder
        if config is None or config.traits.learned_positions:
            return None
        scaling = config.rope_scaling
        return {"theta": config.rope_theta, "scaling": None if scaling is None else scaling.to_hf()}
    nested = settings.get("rope_parameters")
    theta = settings.get("rope_theta", nested.get("rope_theta") if isinstance(nested, dict) else None)
    return None if theta is None else {"theta": theta, "scaling": settings.get("rope_scaling")}


def _window(settings: Mapping[str, Any], known: Known | None) -> dict[str, Any] | None:
    """How many positions a token sees where that is not all, and from which layer on."""
    if known is None:
        size = settings.get("sliding_window")
        return {"tokens": size, "from_layer": None} if type(size) is int and size > 0 else None
    config = known.decoder
    return {"tokens": config.window, "from_layer": config.window_from} if config and config.window else None


def _tie(checkpoint: Checkpoint, config: ModelConfig | None, weights: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Whether head and embedding are one: as the settings say, as the files have it, and in fact where that is cheap."""
    if config is not None:
        from burnish.tensors import head_names

        names = head_names(config)
        declared: bool | None = config.tied
    else:
        matrices = [name for name, tensor in weights.items() if len(tensor.shape) == 2]
        heads, tables = ([n for n in matrices if part_of(n) == part] for part in ("head", "embedding"))
        largest = max(tables, key=lambda name: prod(weights[name].shape), default="")
        names = largest, next((n for n in heads if largest and weights[n].shape == weights[largest].shape), "")
        declared = checkpoint.config.get("tie_word_embeddings")
    embedding, head = (_stored_name(name, weights) for name in names)
    both = head is not None and embedding is not None
    return {
        "declared": declared if isinstance(declared, bool) else None,
        "written": head is not None,
        "equal": _equal(weights[embedding], weights[head]) if both and embedding and head else None,
        "embedding": embedding,
        "head": head,
    }


def _stored_name(name: str, weights: Mapping[str, StoredTensor]) -> str | None:
    """A name as the files have it: a body saved alone lacks the first part."""
    return next((known for known in (name, name.partition(".")[2]) if known and known in weights), None)


def _equal(one: StoredTensor, two: StoredTensor) -> bool | None:
    if one.shape != two.shape or one.format != two.format:
        return False
    if one.bytes > CHEAP or not torch_here():
        return None
    import torch

    try:
        return torch.equal(one.read(), two.read())
    except UserError:  # formats that are not read
        return None


def _formats(tensors: Mapping[str, StoredTensor]) -> list[dict[str, Any]]:
    """For each format how many tensors, elements and bytes it has; the largest first."""
    made: dict[str, dict[str, Any]] = {}
    for tensor in tensors.values():
        row = made.setdefault(tensor.format, {"format": tensor.format, "tensors": 0, "elements": 0, "bytes": 0})
        row["tensors"] += 1
        row["elements"] += prod(tensor.shape)
        row["bytes"] += tensor.bytes
    for row in made.values():
        row["bits"] = 8 * row["bytes"] / row["elements"] if row["elements"] else 0.0
    return sorted(made.values(), key=lambda row: -row["bytes"])


def _compared(known: Known | None) -> dict[str, Any] | None:
    """What the family needs and is not there, and the reverse; None for a family that is not known, or without torch."""
    if known is None or not torch_here():
        return None
    found = known.compare()
    shapes = {name: [list(found.found[name].shape), list(wanted)] for name, wanted in found.misshapen.items()}
    return {"missing": list(found.missing), "unexpected": list(found.unexpected), "misshapen": shapes}


def _memory(
    parameters: int, sizes: Mapping[str, int | None], known: Known | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Bytes of the weights, and of keys and values of TOKENS tokens (2 * layers * kv_heads * head_dim a token)."""
    layers, kv_heads, head_dim = (sizes[name] for name in ("layers", "kv_heads", "head_dim"))
    config = known.decoder if known is not None else None
    causal = config is not None or (known is None and CAUSAL.search(str(settings.get("architectures"))))
    elements = None
    if causal and layers and kv_heads and head_dim:
        window = min(config.window or TOKENS, TOKENS) if config is not None else TOKENS
        whole = config.window_from if config is not None and config.window else 0
        elements = 2 * kv_heads * head_dim * (whole * TOKENS + (layers - whole) * window)
    return {
        name: {"weights": parameters * width, "cache": None if elements is None else elements * width}
        for name, width in WIDTHS.items()
    }
