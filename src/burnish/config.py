"""ModelConfig: the shape of a decoder, read from and written as a Hugging Face `config.json`; no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from burnish.errors import UserError, nearest
from burnish.section import Section
from burnish.tables.families import FAMILIES, Family


class ModelConfig(Section):
    """Sizes of one decoder. `kv_heads` and `head_dim` default to full attention heads of hidden / heads."""

    family: str = "llama"
    vocab: int = Field(gt=0)
    hidden: int = Field(gt=0)
    ffn: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(default=0, ge=0)
    head_dim: int = Field(default=0, ge=0)
    max_positions: int = Field(default=2048, gt=0)
    norm_eps: float = Field(default=1e-5, gt=0)
    rope_theta: float = Field(default=10000.0, gt=0)
    tied: bool = True
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    init_std: float = Field(default=0.02, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        """Write the two derived sizes into the record, so that what is saved hides nothing."""
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        heads, hidden = filled.get("heads"), filled.get("hidden")
        if not filled.get("kv_heads") and heads:
            filled["kv_heads"] = heads
        if not filled.get("head_dim") and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            if hidden % heads:
                raise ValueError(f"hidden {hidden} is not divisible by heads {heads}; set head_dim")
            filled["head_dim"] = hidden // heads
        return filled

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family!r}: {nearest(self.family, FAMILIES)}")
        if self.heads % self.kv_heads:
            legal = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}; values that do: {legal}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embedding needs an even one")
        for name in ("bos", "eos", "pad"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocab:
                raise ValueError(f"{name} {token} is outside the vocabulary 0..{self.vocab - 1}")
        return self

    @property
    def parameters(self) -> int:
        """Number of parameters; a tied head is counted once."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * layer + self.hidden

    @classmethod
    def from_hf(cls, values: dict[str, Any], where: str = "config.json") -> ModelConfig:
        """Read the content of a Hugging Face `config.json`.

        Raises UserError naming the file and key when the family is unknown, a size is missing, or a setting is one
        this decoder does not have (a bias, another activation, scaled rotary frequencies).
        """
        family = _family(values.get("model_type"), where)
        values = _rope_in_place(values)
        for key, required in family.fixed.items():
            if (given := values.get(key, required)) != required:
                raise UserError(f"{where}: {key} is {given!r}; this {family.model_type} decoder supports {required!r}")
        fields: dict[str, Any] = {"family": family.model_type}
        for ours, theirs in family.keys.items():
            value = values.get(theirs, family.defaults.get(theirs))
            if isinstance(value, list) and ours in ("bos", "eos", "pad"):
                value = value[0] if value else None  # chat models list several ends of text; the first is the main one
            if value is not None:
                fields[ours] = value
        missing = [family.keys[n] for n, f in cls.model_fields.items() if f.is_required() and n not in fields]
        if missing:
            raise UserError(f"{where}: missing {', '.join(missing)}")
        try:
            return cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            key = family.keys.get(name, name)
            raise UserError(f"{where}: {key}: {first['msg'].removeprefix('Value error, ')}") from None

    @classmethod
    def from_file(cls, path: Path) -> ModelConfig:
        """Read a `config.json` file. Raises UserError when it is missing, not JSON or not a decoder we know."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; a model folder holds config.json and model.safetensors") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(f"{path}: not readable as JSON ({error})") from None
        if not isinstance(values, dict):
            raise UserError(f"{path}: expected a JSON object, found {type(values).__name__}")
        return cls.from_hf(values, str(path))

    def to_hf(self) -> dict[str, Any]:
        """The content of a Hugging Face `config.json` for this shape."""
        family = FAMILIES[self.family]
        content: dict[str, Any] = {"architectures": [family.architecture], "model_type": family.model_type}
        content |= {theirs: getattr(self, ours) for ours, theirs in family.keys.items()}
        return content | family.fixed


def _family(model_type: object, where: str) -> Family:
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UserError(f"{where}: model_type {model_type!r} is not supported; known: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[model_type]


def _rope_in_place(values: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 nests rotary settings under `rope_parameters`; lift them to the flat keys of earlier files."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, dict):
        return values
    flat = dict(values)
    flat.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
    if rope.get("rope_type", "default") != "default":
        flat["rope_scaling"] = rope
    return flat
