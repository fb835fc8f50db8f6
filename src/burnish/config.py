"""ModelConfig: the shape of a decoder, read from and written as a Hugging Face `config.json`; no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from burnish.errors import UserError, nearest
from burnish.rope_scaling import RopeScaling
from burnish.section import Section
from burnish.tables.families import FAMILIES, Family, Traits

# Fields that only some families have; the others keep them as they are.
OPTIONAL = ("kv_heads", "head_dim", "rope_scaling", "window", "window_from", "experts", "topk", "norm_topk")


class ModelConfig(Section):
    """Sizes of one decoder. `kv_heads` and `head_dim` default to full attention heads of hidden / heads.

    `ffn` is the width of a feed-forward part, or of one of the `experts`, of which a token passes `topk`, weighted by their
    probabilities or, with `norm_topk`, by their shares of these. Layers from `window_from` on see `window` positions only,
    if it is not 0.
    """

    family: str = "llama"
    vocab: int = Field(gt=0, le=10**8)  # beyond any decoder there has been: no file may ask for endless work
    hidden: int = Field(gt=0, le=10**6)
    ffn: int = Field(gt=0, le=10**8)
    layers: int = Field(gt=0, le=10**4)
    heads: int = Field(gt=0, le=10**5)
    kv_heads: int = Field(default=0, ge=0)
    head_dim: int = Field(default=0, ge=0, le=10**5)
    max_positions: int = Field(default=2048, gt=0, le=10**9)
    norm_eps: float = Field(default=1e-5, gt=0)
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    window: int = Field(default=0, ge=0)
    window_from: int = Field(default=0, ge=0)
    experts: int = Field(default=0, ge=0, le=10**4)
    topk: int = Field(default=0, ge=0)
    norm_topk: bool = True
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
        self._of_family(FAMILIES[self.family])
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

    def _of_family(self, family: Family) -> None:
        """Raises ValueError for what no file of the family could say."""
        plain = {"kv_heads": self.heads, "head_dim": self.hidden // self.heads}
        for name in OPTIONAL:
            usual = plain.get(name, type(self).model_fields[name].default)
            if name not in family.keys and (value := getattr(self, name)) != usual:
                raise ValueError(f"{name} {value}: a {family.model_type} decoder has no such setting, it is {usual}")
        if family.traits.routed and not 1 <= self.topk <= self.experts:
            raise ValueError(f"topk {self.topk} of experts {self.experts}: a token passes 1 to all of the experts")
        if self.window_from > self.layers:
            raise ValueError(f"window_from {self.window_from}: there are {self.layers} layers")

    @property
    def traits(self) -> Traits:
        """What the layers of its family are like."""
        return FAMILIES[self.family].traits

    @property
    def parameters(self) -> int:
        """Number of parameters; a tied head is counted once."""
        traits, hidden, queries, keys = (
            self.traits,
            self.hidden,
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
        )
        norm = hidden * (1 + traits.layer_norm)
        attention = 2 * hidden * (queries + keys) + traits.qkv_bias * (queries + 2 * keys) + traits.bias * hidden
        attention += 2 * self.head_dim * traits.qk_norm
        part = (2 + traits.gated) * hidden * self.ffn + traits.bias * (self.ffn + hidden)
        feed_forward = self.experts * (part + hidden) if traits.routed else part
        layer = attention + feed_forward + 2 * norm
        embeddings = self.vocab * hidden * (1 if self.tied else 2)
        positions = self.max_positions * hidden * traits.learned_positions
        return embeddings + positions + self.layers * layer + norm

    @classmethod
    def from_hf(cls, values: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """Read the content of a Hugging Face `config.json`.

        Raises UserError naming the file and key when the family is unknown, a size is missing, or a setting is one
        this decoder does not have (another activation, a bias, layers of several kinds).
        """
        family = _family(values.get("model_type"), where)
        values = {family.also.get(key, key): value for key, value in _rope_in_place(values).items()}
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
        if family.window_switch and not values.get(family.window_switch, False):
            fields |= {"window": 0, "window_from": 0}
        if family.wide and "ffn" not in fields and isinstance(fields.get("hidden"), int):
            fields["ffn"] = family.wide * fields["hidden"]
        fields["rope_scaling"] = RopeScaling.from_hf(values.get("rope_scaling"), fields.get("max_positions"), where)
        missing = [family.keys[n] for n, f in cls.model_fields.items() if f.is_required() and n not in fields]
        if missing:
            raise UserError(f"{where}: missing {', '.join(missing)}")
        try:
            made = cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            key = family.keys.get(name, name)
            raise UserError(f"{where}: {key}: {first['msg'].removeprefix('Value error, ')}") from None
        _check_layers(values.get("layer_types"), made, where)
        return made

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
        if "rope_scaling" in family.keys:
            content["rope_scaling"] = self.rope_scaling and self.rope_scaling.to_hf()
        if "window" in family.keys:
            content["sliding_window"] = self.window or None
        if family.window_switch:
            content[family.window_switch] = self.window > 0
        return content | family.fixed


def _family(model_type: object, where: str) -> Family:
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UserError(f"{where}: model_type {model_type!r} is not supported; known: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[model_type]


def _check_layers(listed: object, config: ModelConfig, where: str) -> None:
    """Raises UserError where a file lists kinds of layers that are not whole ones followed by windowed ones."""
    windowed = [bool(config.window) and i >= config.window_from for i in range(config.layers)]
    usual = ["sliding_attention" if near else "full_attention" for near in windowed]
    if isinstance(listed, list) and listed != usual:
        raise UserError(f"{where}: layer_types {str(listed)[:60]} does not follow from its window; not supported")


def _rope_in_place(values: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5 nests rotary settings under `rope_parameters`; lift them to the flat keys of earlier files."""
    flat = dict(values)
    rope = flat.get("rope_parameters")
    if isinstance(rope, dict):
        if "rope_theta" in rope:
            flat.setdefault("rope_theta", rope["rope_theta"])
        if rope.get("rope_type", "default") != "default":
            flat["rope_scaling"] = rope
    return flat
