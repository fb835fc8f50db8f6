"""Row model: the decoder of a published row, from its cells, a preset of its name, or its size alone."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from burnish.architecture import Architecture
from burnish.presets import lookup, preset
from burnish.rows.cells import Cells, NotExpressed
from burnish.rows.rules import Facts, rule, table

COLUMNS = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "ffn_hidden": "ffn"}
HEAD = 128  # width of a head where neither heads nor a preset are known
MIXTURE = r"moe|\ba\d+b|\d+x\d+|expert"  # names of models with experts
GUESSED = "model of "  # begins what is said of a decoder of a size alone
NOTHING_BUT_LAYERS = "layer-microbench"  # a workload of layers without embedding, head and optimizer


def model_of(cells: Cells, facts: Facts, tp: int) -> Architecture:
    """The decoder of a line. Raises NotExpressed where its sizes are neither stated nor known nor guessable."""
    name = cells.text("model")
    known = _known(name)
    given = {field: cells.whole(column) for column, field in COLUMNS.items()}
    stated = {field: value for field, value in given.items() if value is not None}
    if known is not None:
        model = _changed(known, stated)
    elif {"layers", "hidden"} <= stated.keys():
        model = _with_experts(_from_sizes(name, stated, cells), cells)
    else:
        model = _typical(name, cells)
    if vocab := cells.whole("vocab"):
        model = replace(model, vocab=vocab)
    if facts.workload == NOTHING_BUT_LAYERS:
        return replace(model, vocab=0, positions=0)
    multiple = int(rule("vocab_multiple", facts)["value"]) * tp
    seq = cells.whole("seq_len") or 0
    return replace(
        model,
        vocab=math.ceil(int(model.vocab) / multiple) * multiple,
        positions=max(int(model.positions), seq) if model.positions else 0,
    )


def _known(name: str) -> Architecture | None:
    """The preset of a name; of one that also sees, the part that writes."""
    for written in (name, re.sub(r"single layer|-VL\b", "", name).strip()):
        if lookup(written) is not None:
            return preset(written)
    return None


def _changed(known: Architecture, stated: dict[str, int]) -> Architecture:
    """A preset with the sizes a line states; with fewer layers it keeps its dense ones."""
    if known.experts:
        wide = stated.pop("ffn", None)
        if wide is not None and not known.ffn:
            stated["expert_ffn"] = wide
    differs = {field for field, value in stated.items() if value != int(getattr(known, field))}
    if differs & {"hidden", "heads"}:
        hidden, heads = (stated.get(field, int(getattr(known, field))) for field in ("hidden", "heads"))
        stated["head_dim"] = _head(hidden, heads)
    if "layers" in differs:
        dense = int(known.layers) - int(known.expert_layers)
        stated["expert_layers"] = max(0, stated["layers"] - dense) if known.experts else 0
    made: dict[str, Any] = dict(stated)
    return replace(known, **made)


def _head(hidden: int, heads: int) -> int:
    """Width of a head. Raises NotExpressed where there are more heads than width."""
    if heads > hidden:
        raise NotExpressed(f"{heads} heads in a width of {hidden}")
    return hidden // heads


def family(name: str) -> dict[str, Any]:
    """What a model's name says of the parts of its decoder."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    found = (row for row in table("row_models")["family"] if re.search(row["match"], plain))
    return {key: value for key, value in next(found, {}).items() if key not in ("match", "source")}


def _from_sizes(name: str, stated: dict[str, int], cells: Cells) -> Architecture:
    """A decoder of stated layers and width; the rest as its family has it."""
    kin = family(name)
    if not kin:
        cells.assume("model: gated feed-forward part, rotary positions, untied head")
    hidden = stated["hidden"]
    heads = stated.get("heads") or max(1, hidden // HEAD)
    if "heads" not in stated:
        cells.assume(f"heads {heads}: {HEAD} wide")
    gated = kin.get("gated", 1)
    ffn = stated.get("ffn") or (math.ceil(hidden * 8 / 3 / 256) * 256 if gated else 4 * hidden)
    if "vocab" not in kin and cells.blank("vocab"):
        cells.assume(f"vocab {table('row_models')['typical']['vocab']}")
    return Architecture(
        name=name,
        vocab=kin.pop("vocab", table("row_models")["typical"]["vocab"]),
        hidden=hidden,
        layers=stated["layers"],
        heads=heads,
        kv_heads=stated.get("kv_heads") or heads,
        head_dim=_head(hidden, heads),
        ffn=ffn,
        **kin,
    )


def _with_experts(model: Architecture, cells: Cells) -> Architecture:
    """A decoder whose feed-forward parts are routed where a line states experts. Raises NotExpressed where only its name
    speaks of them."""
    experts = cells.whole("num_experts")
    if experts is None:
        if re.search(MIXTURE, model.name, re.IGNORECASE):
            raise NotExpressed(f"model: {model.name[:40]} is no preset and its experts are not stated")
        return model
    return replace(
        model,
        experts=experts,
        topk=cells.whole("moe_topk") or 1,
        expert_ffn=cells.whole("moe_ffn") or int(model.ffn),
        expert_layers=int(model.layers),
    )


def parameters_of(cells: Cells) -> float | None:
    """Parameters a line states, in a column of their own or in the model's name ("13B")."""
    if (stated := cells.number("n_params")) is not None:
        return stated
    if (stated := cells.number("params_b")) is not None:
        return stated * 1e9
    found = re.search(r"(\d+(?:\.\d+)?)\s?([bmt])\b", cells.text("model"), re.IGNORECASE)
    return float(found[1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[found[2].lower()] if found else None


def _typical(name: str, cells: Cells) -> Architecture:
    """A decoder of the usual shape with as many parameters as the line or the name states."""
    count = parameters_of(cells)
    if count is None or re.search(MIXTURE, name, re.IGNORECASE) or not 1e7 <= count <= 5e12:
        raise NotExpressed(f"model: {name[:60] or 'blank'} is no preset and its sizes are not stated")
    typical = table("row_models")["typical"]
    _, layers, hidden, heads, kv_heads, ffn = min(typical["shapes"], key=lambda shape: abs(math.log(shape[0] / count)))
    kin = family(name)
    vocab = kin.get("vocab", typical["vocab"])
    layer = hidden * (2 * hidden + 2 * kv_heads * (hidden // heads) + 3 * ffn)
    embedding = vocab * hidden * (2 - kin.get("tied", 0))
    layers = max(1, round((count - embedding) / layer))
    cells.assume(
        f"model of {count / 1e9:.3g} billion parameters: {layers} layers of {hidden}, the usual shape of its size"
    )
    return Architecture(name, vocab, hidden, layers, heads, kv_heads, hidden // heads, ffn, tied=kin.get("tied", 0))
