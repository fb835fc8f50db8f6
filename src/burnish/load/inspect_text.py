"""What was found in a checkpoint, as lines of text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from burnish.load.inspect_model import TOKENS
from burnish.units import counted, show

WIDE, LABEL = 80, 14
SHOWN = 5  # names of a list before it is cut


def described(found: Mapping[str, Any]) -> Iterator[str]:
    """The table: what it is, parameters, sizes, files, tokenizer, what is wrong with it, what it needs."""
    yield from _line("model", found["where"])
    yield from _line("family", _family(found))
    yield from _line("parameters", _parameters(found["parameters"]))
    yield from _parts(found["parameters"])
    yield from _line("sizes", _sizes(found["sizes"]))
    yield from _line("context", _context(found))
    yield from _line("tied head", _tie(found["tie"]))
    yield from _line("on disk", f"{found['format']}, {counted(len(found['files']), 'file')}, {_bytes(found['bytes'])}")
    yield from _formats(found["formats"])
    yield from _line("tokenizer", _tokenizer(found["tokenizer"], found["ends"]))
    yield from _line("check", _check(found))
    yield from _line("memory", _memory(found["memory"]))


def tensors(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each tensor: name, shape, format, bytes."""
    for name, tensor in found["tensors"].items():
        shape = " x ".join(map(str, tensor["shape"])) or "scalar"
        yield f"  {name:<48} {shape:>15} {tensor['format']}"


def _line(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDE,
        initial_indent=f"{label:<{LABEL}}",
        subsequent_indent=" " * LABEL,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [label]


def _bytes(value: float | None) -> str:
    return show(value, "bytes").replace("\u00a0", " ")


def _short(value: int) -> str:
    return show(value, "short count").replace("\u00a0", " ")


def _family(found: Mapping[str, Any]) -> str:
    name = f"{found['family'] or 'not said'} ({found['architecture'] or 'no architecture named'})"
    code = "; it names code of its own, which is never run" if found["code"] else ""
    return name + ("" if found["known"] else ", which is looked into but cannot be loaded") + code


def _parameters(parameters: Mapping[str, Any]) -> str:
    active = parameters["active"]
    return f"{parameters['total']:,}" + ("" if active is None else f", {active:,} of them for one token")


def _parts(parameters: Mapping[str, Any]) -> Iterator[str]:
    total = parameters["total"] or 1
    for part, count in parameters.items():
        if part not in ("total", "active"):
            yield f"{'':<{LABEL}}{part.replace('_', '-'):<14}{count:>16,}{count / total:>8.1%}"


def _sizes(sizes: Mapping[str, Any]) -> str:
    names = {
        "layers": "layers",
        "hidden": "hidden",
        "ffn": "feed-forward",
        "heads": "heads",
        "kv_heads": "key/value heads",
    }
    names |= {"head_dim": "head size", "vocab": "vocabulary"}
    said = [f"{name} {sizes[key]:,}" for key, name in names.items() if sizes[key]]
    if sizes["experts"]:
        said.append(f"{sizes['experts']} experts, {sizes['topk'] or '?'} a token")
    return ", ".join(said) or "not said"


def _context(found: Mapping[str, Any]) -> str:
    said = [f"{found['context']:,} tokens" if found["context"] else "not said"]
    if rope := found["rope"]:
        scaling = rope["scaling"]
        said.append(f"rotary base {rope['theta']:,.10g}" if isinstance(rope["theta"], int | float) else "rotary")
        if isinstance(scaling, dict):
            kind = scaling.get("rope_type", scaling.get("type"))
            said.append(f"stretched {scaling.get('factor', '?')} times ({kind})")
    if window := found["window"]:
        later = f" from layer {window['from_layer']} on" if window["from_layer"] else ""
        said.append(f"a window of {window['tokens']:,} tokens{later}")
    return ", ".join(said)


def _tie(tie: Mapping[str, Any]) -> str:
    if not tie["written"] and not tie["declared"]:
        return "no head in the files"
    if not tie["written"]:
        return "yes: the head is the embedding"
    fact = {True: "equals the embedding", False: "differs from the embedding", None: "was not compared"}
    declared = {True: "declared", False: "not declared", None: "not said"}[tie["declared"]]
    return f"{declared}; a head is in the files and {fact[tie['equal']]}"


def _formats(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        bits, count = f"{row['bits']:.3g} bits", counted(row["tensors"], "tensor")
        yield f"{'':<{LABEL}}{row['format']:<14}{row['elements']:>16,}{_bytes(row['bytes']):>10}{bits:>10}  {count}"


def _tokenizer(tokenizer: Mapping[str, Any] | None, ends: list[Any]) -> str:
    if tokenizer is None:
        return "none (no tokenizer.json)"
    if tokenizer["refused"]:
        return f"cannot be read: {tokenizer['refused']}"
    special = [f"{name.removesuffix('_token')} {token['text']}" for name, token in tokenizer["special"].items()]
    template = "with a chat template" if tokenizer["chat_template"] else "no chat template"
    end = f"; a text ends at {', '.join(map(str, ends))}" if ends else ""
    named = f"; {', '.join(special)}" if special else ""
    return f"{tokenizer['kind']}, {tokenizer['tokens']:,} tokens, {template}{named}{end}"


def _check(found: Mapping[str, Any]) -> str:
    compared = found["compared"]
    if compared is None:
        refused = found["refused"]
        return f"not loadable: {refused}" if refused else "none without torch: pip install 'burnish[train]'"
    if not any(compared.values()):
        return "every tensor that the family needs is there, and no other"
    return "; ".join(_few(what, names) for what, names in compared.items() if names)


def _few(what: str, names: Any) -> str:
    listed = [f"{n} {tuple(names[n][0])} for {tuple(names[n][1])}" if isinstance(names, dict) else n for n in names]
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return f"{what}: {', '.join(listed[:SHOWN])}{more}"


def _memory(memory: Mapping[str, Any]) -> str:
    said = []
    for name, need in memory.items():
        cache = "" if need["cache"] is None else f" and {_bytes(need['cache'])} for {TOKENS:,} tokens"
        said.append(f"{name}: {_bytes(need['weights'])} of weights{cache}")
    return "; ".join(said)
