"""Which tensors a GGUF file of a configuration holds, in what shapes, stored as what, and how many bytes the file takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from burnish.errors import UserError
from burnish.tables.gguf import ALIGNMENT, STORAGES, UNFIT, WRITTEN
from burnish.tables.gguf_families import FAMILIES, Architecture, Matrix

FACTORS = "rope_freqs.weight"
_OUTPUTS = ("output.weight", "token_embd.weight")  # the first of them that a file has makes the scores
_MOST = 2**31


@dataclass(frozen=True)
class Entry:
    """A tensor of the file and the checkpoint's tensors that it is made of: one, or one an expert, each of `shape`.

    No names: a tensor that follows from the configuration.
    """

    name: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    order: str = ""
    whole: bool = False

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in the file, with the rows' length last."""
        one = self.shape[::-1] if self.order == "transposed" else self.shape
        return (len(self.names), *one) if self.stacked else one

    @property
    def stacked(self) -> bool:
        """Whether the experts' matrices lie in this tensor one after another."""
        return self.name.endswith("_exps.weight")

    def bytes(self, storage: str) -> int:
        """What its elements take, stored so."""
        kind = STORAGES[storage]
        return prod(self.stored) // kind.block * kind.bytes


def family_of(config: Mapping[str, Any], where: str) -> Architecture:
    """The row of a config.json. Raises UserError naming those that GGUF files are read and written for."""
    kind = config.get("model_type")
    for family in FAMILIES:
        if family.model_type == kind:
            return family
    known = ", ".join(family.model_type for family in FAMILIES)
    raise UserError(f"{where}: model_type {kind!r} has no GGUF file here; these have: {known}")


def complete(family: Architecture, config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with the family's defaults for what it leaves out, each setting under its first key."""
    full = family.defaults | {key: value for key, value in config.items() if value is not None}
    for setting in family.settings:
        if setting.also in full:
            full.setdefault(setting.config, full[setting.also])
    return full


def whole_number(value: Any, key: str, where: str) -> int:
    """`value` as a size. Raises UserError naming the key."""
    if type(value) is not int or not 0 < value < _MOST:
        said = repr(value)[:40]
        raise UserError(f"{where}: {key} is {said}; a whole number from 1 to {_MOST - 1} is needed")
    return value


def sizes(family: Architecture, config: Mapping[str, Any], where: str) -> dict[str, int]:
    """Sizes by the names that the tables use. Raises UserError naming the key that is missing or no size."""
    full = complete(family, config)
    found = {"vocab": whole_number(full.get("vocab_size"), "vocab_size", where)}
    for setting in family.settings:
        if setting.size and (setting.required or full.get(setting.config) is not None):
            if setting.config == "n_inner" and full.get("n_inner") is None:
                found["ffn"] = 4 * found["hidden"]  # as GPT2Config defines it
            else:
                found[setting.size] = whole_number(full.get(setting.config), setting.config, where)
    hidden, heads = found["hidden"], found["heads"]
    if "head_dim" not in found and hidden % heads:
        raise UserError(f"{where}: a width of {hidden} cannot be split into {heads} heads")
    found.setdefault("head_dim", hidden // heads)
    found.setdefault("kv_heads", heads)
    if heads % found["kv_heads"] or (family.rotary and found["head_dim"] % 2):
        raise UserError(
            f"{where}: {heads} heads, {found['kv_heads']} of keys, {found['head_dim']} wide each: the second must divide "
            "the first, the third be even"
        )
    found["q"], found["kv"] = heads * found["head_dim"], found["kv_heads"] * found["head_dim"]
    found["qkv"] = 3 * hidden
    return found


def entries(family: Architecture, config: Mapping[str, Any], where: str, factors: bool) -> list[Entry]:
    """Every tensor that a file of this configuration holds. `factors`: whether with those of the rope scaling.

    Raises UserError as `sizes` does.
    """
    full = family.defaults | dict(config)
    have = {flag for flag in family.flags if full.get(flag)}
    if not full["tie_word_embeddings"]:
        have.add("untied")
    found = sizes(family, config, where)
    kept = [matrix for matrix in family.tensors if not matrix.only_if or matrix.only_if in have]
    made = [_entry(matrix, found, None) for matrix in kept if "{i}" not in matrix.gguf]
    if factors:
        made.append(Entry(FACTORS, (), (found["head_dim"] // 2,), whole=True))
    layered = [matrix for matrix in kept if "{i}" in matrix.gguf]
    return made + [_entry(matrix, found, layer) for layer in range(found["layers"]) for matrix in layered]


def _entry(matrix: Matrix, found: Mapping[str, int], layer: int | None) -> Entry:
    here, there = (name.replace("{i}", str(layer)) for name in (matrix.gguf, matrix.name))
    experts = range(found["experts"]) if "{e}" in there else range(1)
    names = tuple(there.replace("{e}", str(expert)) for expert in experts)
    return Entry(here, names, tuple(found[size] for size in matrix.shape), matrix.order, matrix.whole)


def storages(made: Iterable[Entry], form: str) -> dict[str, str]:
    """What each tensor is stored as in a file of that format, as llama.cpp does it.

    Vectors, routers and learned positions in float32; the matrix that makes the scores as `WRITTEN` says; a matrix
    whose rows are no multiple of the block in `UNFIT`.
    """
    made = list(made)
    output = next(name for name in _OUTPUTS if any(entry.name == name for entry in made))
    found: dict[str, str] = {}
    for entry in made:
        if entry.whole or len(entry.stored) == 1:
            found[entry.name] = "F32"
            continue
        wanted = WRITTEN[form].output if entry.name == output else form
        found[entry.name] = UNFIT if entry.stored[-1] % STORAGES[wanted].block else wanted
    return found


def unfit(made: Iterable[Entry], form: str) -> list[str]:
    """Names of the tensors that a file of that format stores as something wider, for their rows fit no block."""
    chosen = storages(made, form)
    return [name for name, storage in chosen.items() if storage == UNFIT != form]


def padded(count: int) -> int:
    """Bytes up to the next place where a tensor may begin."""
    return -(-count // ALIGNMENT) * ALIGNMENT
