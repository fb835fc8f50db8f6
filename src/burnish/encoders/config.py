"""EncoderConfig: the shape of an encoder and of its head, read from and written as a Hugging Face `config.json`; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from burnish.errors import UserError, nearest
from burnish.section import Section
from burnish.tables.encoders import ACTIVATIONS, ENCODERS, FIXED, KEYS, NONE, ONE_CLASS, SEQUENCE, TOKENS, EncoderFamily

MOST_HEADS = 1024  # that are tried for one that would do; a file may say any number


class EncoderConfig(Section):
    """Sizes of one encoder. `table` is the rows of the position table, `types` those of the token types.

    `labels` names the classes of a `head`: one class a text ("sequence", which needs the `pooler`) or one a token
    ("tokens"). Dropout is no part of it: training here uses none.
    """

    family: str = "bert"
    vocab: int = Field(gt=0)
    hidden: int = Field(gt=0)
    ffn: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    table: int = Field(default=512, gt=0)
    types: int = Field(default=2, gt=0)
    norm_eps: float = Field(default=1e-12, gt=0)
    activation: str = "gelu"
    pad: int = Field(default=0, ge=0)
    init_std: float = Field(default=0.02, gt=0)
    pooler: bool = True
    head: Literal["none", "sequence", "tokens"] = "none"
    labels: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> EncoderConfig:
        if self.family not in ENCODERS:
            raise ValueError(f"family {self.family!r}: {nearest(self.family, ENCODERS)}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r} is not known; known: {', '.join(ACTIVATIONS)}")
        if self.hidden % self.heads:
            legal = next(n for n in range(min(self.heads, MOST_HEADS), 0, -1) if self.hidden % n == 0)
            raise ValueError(f"heads {self.heads} does not divide hidden {self.hidden}; {legal} does")
        if self.pad >= self.vocab:
            raise ValueError(f"pad {self.pad} is outside the vocabulary 0..{self.vocab - 1}")
        if self.table <= self.offset:
            raise ValueError(f"table {self.table}: positions are counted from row {self.offset}; give it more rows")
        if (self.head == NONE) != (not self.labels) or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels {self.labels} of head {self.head!r}: a head has classes of different names")
        if (self.pooler and self.head == TOKENS) or (not self.pooler and self.head == SEQUENCE):
            raise ValueError(f"pooler {self.pooler}: a head of kind {self.head!r} is read off the other kind of body")
        return self

    @property
    def offset(self) -> int:
        """The row of the position table that the first position has."""
        return self.pad + 1 if ENCODERS[self.family].after_pad else 0

    @property
    def max_positions(self) -> int:
        """The longest text in tokens."""
        return self.table - self.offset

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.hidden // self.heads

    @property
    def act(self) -> str:
        """Which of our activations the feed-forward part has."""
        return ACTIVATIONS[self.activation]

    @property
    def parameters(self) -> int:
        """Number of parameters, head and pooler included."""
        hidden, ffn, classes = self.hidden, self.ffn, len(self.labels)
        tables = (self.vocab + self.table + self.types + 2) * hidden
        layer = 4 * (hidden + 1) * hidden + (hidden + 1) * ffn + (ffn + 1) * hidden + 4 * hidden
        return tables + self.layers * layer + (hidden + 1) * (hidden * self.pooler + classes)

    @classmethod
    def from_hf(cls, values: Mapping[str, Any], where: str = "config.json", pooler: bool = True) -> EncoderConfig:
        """Read the content of a Hugging Face `config.json`; `pooler`: whether the weights have one, which no key says.

        Raises UserError naming the file and key for an unknown family, a missing size, and a setting that this encoder
        does not have (relative positions, causal or cross attention, several labels a text).
        """
        family = _family(values.get("model_type"), where)
        for key, required in FIXED.items():
            if (given := values.get(key, required)) != required:
                raise UserError(f"{where}: {key} is {given!r}; this encoder supports {required!r}")
        filled = {name: values.get(key, family.defaults.get(key)) for name, key in KEYS.items()}
        fields: dict[str, Any] = {name: value for name, value in filled.items() if value is not None}
        if missing := [KEYS[n] for n, f in cls.model_fields.items() if f.is_required() and n not in fields]:
            raise UserError(f"{where}: missing {', '.join(missing)}")
        head = _head(family, values.get("architectures"), where)
        labels = () if head == NONE else _labels(values, where)
        has_pooler = {NONE: pooler, SEQUENCE: True, TOKENS: False}[head]
        fields |= {"family": family.model_type, "head": head, "labels": labels, "pooler": has_pooler}
        try:
            return cls(**fields)
        except ValidationError as error:
            raise UserError(f"{where}: {_said(error)}") from None

    def to_hf(self) -> dict[str, Any]:
        """The content of a Hugging Face `config.json` for this shape."""
        family = ENCODERS[self.family]
        content: dict[str, Any] = {
            "architectures": [family.heads[self.head].architecture],
            "model_type": family.model_type,
        }
        content |= {theirs: getattr(self, ours) for ours, theirs in KEYS.items()}
        if self.labels:
            content["id2label"] = {str(number): name for number, name in enumerate(self.labels)}
            content["label2id"] = {name: number for number, name in enumerate(self.labels)}
        return content | FIXED


def _said(error: ValidationError) -> str:
    """The first thing that is wrong, under its name in a file."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    name, _, rest = message.partition(" ")
    if first["loc"]:
        name, rest = str(first["loc"][0]), f"is {first['input']!r}: {message}"
    return f"{KEYS.get(name, name)} {rest}"


def _family(model_type: object, where: str) -> EncoderFamily:
    if not isinstance(model_type, str) or model_type not in ENCODERS:
        raise UserError(
            f"{where}: model_type {model_type!r} is no encoder known here; known: {', '.join(sorted(ENCODERS))}"
        )
    return ENCODERS[model_type]


def _head(family: EncoderFamily, architectures: object, where: str) -> str:
    """The kind of head that a file's `architectures` names; a file without it holds a bare body."""
    if architectures is None:
        return NONE
    known = {head.architecture: kind for kind, head in family.heads.items()} | dict.fromkeys(family.bodies, NONE)
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else architectures
    if not isinstance(name, str) or name not in known:
        raise UserError(f"{where}: architectures {architectures!r} is not supported; known: {', '.join(sorted(known))}")
    return known[name]


def _labels(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Class names in their order; a file that gives neither names nor a number has two, as upstream assumes."""
    if (problem := values.get("problem_type")) not in ONE_CLASS:
        raise UserError(f"{where}: problem_type is {problem!r}; this encoder supports {ONE_CLASS[1]!r}")
    named, count = values.get("id2label"), values.get("num_labels")
    if named is None:
        if not isinstance(count, int | None) or (count is not None and count < 1):
            raise UserError(f"{where}: num_labels is {count!r}; it is the number of classes, at least 1")
        return tuple(f"LABEL_{number}" for number in range(2 if count is None else count))
    try:
        numbered = {int(number): name for number, name in named.items()}
    except (AttributeError, ValueError):
        numbered = {}
    if sorted(numbered) != list(range(len(numbered))) or not all(isinstance(n, str) for n in numbered.values()):
        raise UserError(f"{where}: id2label is {str(named)[:60]}; it names each class from 0 on, such as {{'0': 'no'}}")
    if not numbered:
        raise UserError(f"{where}: id2label names no class; give one at least")
    return tuple(numbered[number] for number in range(len(numbered)))
