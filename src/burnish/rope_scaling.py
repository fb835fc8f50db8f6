"""RopeScaling: how a decoder's rotary frequencies are stretched to texts longer than those it was first trained on."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, ValidationError

from burnish.errors import UserError, nearest
from burnish.section import Section

Kind = Literal["linear", "llama3", "yarn"]
KEYS = {
    "original_max_positions": "original_max_position_embeddings",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
}
USED: dict[str, tuple[str, ...]] = {  # which settings a kind has beside its factor
    "linear": (),
    "llama3": ("original_max_positions", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("original_max_positions", "beta_fast", "beta_slow", "truncate"),
        *("attention_factor", "mscale", "mscale_all_dim"),
    ),
}
NEEDED = {"llama3": ("original_max_positions", "low_freq_factor", "high_freq_factor")}


class RopeScaling(Section):
    """`factor` is how much longer; the others are those of the kinds that have them (see models/rotary.py)."""

    kind: Kind
    factor: float = Field(ge=1)
    original_max_positions: int = Field(default=0, ge=0)
    low_freq_factor: float = Field(default=1.0, gt=0)
    high_freq_factor: float = Field(default=4.0, gt=0)
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    truncate: bool = True
    attention_factor: float | None = Field(default=None, gt=0)
    mscale: float | None = None
    mscale_all_dim: float | None = None

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by: in YaRN the root of its softmax temperature (arXiv 2309.00071, eq. 15)."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor

        def grown(scale: float) -> float:
            return 0.1 * scale * math.log(self.factor) + 1 if self.factor > 1 else 1.0

        return grown(self.mscale) / grown(self.mscale_all_dim) if self.mscale and self.mscale_all_dim else grown(1.0)

    @classmethod
    def from_hf(cls, given: Any, max_positions: int | None, where: str) -> RopeScaling | None:
        """From the `rope_scaling` (or `rope_parameters`) of a `config.json`; None where nothing is stretched.

        Raises UserError naming the key for a kind that is not known here and for values that make no sense.
        """
        if not given:
            return None
        if not isinstance(given, dict):
            raise UserError(f"{where}: rope_scaling is {str(given)[:40]!r}; an object or null is needed")
        kind = given.get("rope_type", given.get("type"))
        if kind == "default":
            return None
        if not isinstance(kind, str) or kind not in USED:
            raise UserError(f"{where}: rope_scaling of kind {kind!r}; {nearest(str(kind), USED)}")
        if given.get("partial_rotary_factor", 1.0) != 1.0:
            raise UserError(f"{where}: rope_scaling.partial_rotary_factor: heads are turned whole here; 1 is needed")
        fields = {ours: given[KEYS[ours]] for ours in USED[kind] if given.get(KEYS[ours]) is not None}
        if missing := [KEYS[name] for name in NEEDED.get(kind, ()) if name not in fields]:
            raise UserError(f"{where}: rope_scaling.{missing[0]} is missing; {kind} needs it")
        if kind == "yarn":
            fields.setdefault("original_max_positions", max_positions)
        try:
            made = cls.model_validate({"kind": kind, "factor": given.get("factor"), **fields})
        except ValidationError as error:
            first = error.errors()[0]
            key = KEYS.get(str(first["loc"][0]), str(first["loc"][0]))
            raise UserError(f"{where}: rope_scaling.{key}: {first['msg']}") from None
        if kind == "llama3" and made.high_freq_factor <= made.low_freq_factor:
            raise UserError(f"{where}: rope_scaling.high_freq_factor must be above low_freq_factor")
        return made

    def to_hf(self) -> dict[str, Any]:
        """As a `config.json` has it."""
        said = {KEYS[name]: getattr(self, name) for name in USED[self.kind]}
        return {"rope_type": self.kind, "factor": self.factor} | {k: v for k, v in said.items() if v is not None}
