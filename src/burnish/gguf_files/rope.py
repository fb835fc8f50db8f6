"""Rotary positions for longer texts: as config.json has them, as GGUF's keys and factors have them, and back.

Kinds: linear (Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"), yarn
(Peng et al. 2023, "YaRN"), llama3 (the Llama 3.1 release: factors by wavelength), which GGUF keeps as a tensor of factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.errors import UserError

PREFIX = "rope.scaling."
# What llama.cpp does where a file leaves the key out; another value would change what the model computes.
_USUAL = {
    "attn_factor": (1.0,),
    "yarn_attn_factor": (1.0,),
    "yarn_ext_factor": (1.0, -1.0),
    "yarn_beta_fast": (32.0,),
    "yarn_beta_slow": (1.0,),
    "yarn_log_multiplier": (0.0,),
    "alpha": (0.0, 1.0),
}
_YARN_ONLY = {"beta_fast": 32, "beta_slow": 1, "attention_factor": None, "mscale": None, "mscale_all_dim": None}
_PUBLISHED = (1.0, 4.0, 8192)  # low_freq_factor, high_freq_factor, original length of every Llama 3.1 to 3.3
_SAME = 1e-5  # relative; factors are stored in float32


def of_config(config: Mapping[str, Any]) -> tuple[float | None, dict[str, Any] | None]:
    """(theta, scaling) of a config.json in either spelling: rope_theta with rope_scaling, or rope_parameters.

    Scaling of the kind "default" is None, and the kind is called `rope_type`.
    """
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = {key: value for key, value in said.items() if key not in ("rope_theta", "type") and value is not None}
    scaling.setdefault("rope_type", said.get("type") or "default")
    theta = config.get("rope_theta") or said.get("rope_theta")
    return theta, None if scaling["rope_type"] == "default" else scaling


def to_settings(scaling: Mapping[str, Any] | None, kinds: Sequence[str], positions: int, where: str) -> dict[str, Any]:
    """Keys of the metadata, after the architecture's prefix. Raises UserError for what llama.cpp has no key for."""
    if scaling is None:
        return {}
    kind = scaling["rope_type"]
    if kind not in kinds:
        raise UserError(
            f"{where}: rope_scaling of the type {kind!r}; GGUF files have {', '.join(kinds) or 'none'} here"
        )
    factor = positive(scaling, "factor", f"{where}: rope_scaling")
    known = {"original_max_position_embeddings": positions} | dict(scaling)
    original = int(positive(known, "original_max_position_embeddings", f"{where}: rope_scaling"))
    if kind == "llama3":
        _llama3(scaling, where)
        return {PREFIX + "original_context_length": original}
    found = {PREFIX + "type": kind, PREFIX + "factor": factor}
    if kind == "linear":
        return found
    odd = [key for key, usual in _YARN_ONLY.items() if scaling.get(key) not in (None, usual)]
    odd += ["truncate"] if scaling.get("truncate") is False else []
    if odd:
        raise UserError(f"{where}: rope_scaling.{odd[0]} is {scaling[odd[0]]!r}, for which GGUF files have no key")
    return found | {PREFIX + "original_context_length": original}


def positive(settings: Mapping[str, Any], key: str, where: str) -> float:
    """A number above 0 that float32 holds. Raises UserError naming the key."""
    value = settings.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.finfo(np.float32).max:
        raise UserError(f"{where}: {key} is {str(value)[:40]}; a number above 0 is needed")
    return float(value)


def _llama3(scaling: Mapping[str, Any], where: str) -> tuple[float, float, float, float]:
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, original = (positive(scaling, key, f"{where}: rope_scaling") for key in keys)
    if low >= high:
        raise UserError(
            f"{where}: rope_scaling.low_freq_factor is {low}; less than high_freq_factor ({high}) is needed"
        )
    return factor, low, high, original


def factors(scaling: Mapping[str, Any], theta: float, head_dim: int, where: str) -> np.ndarray:
    """By what each frequency of a head is divided, [head_dim / 2] in float32.

    1 for wavelengths under original / high_freq_factor, `factor` for those over original / low_freq_factor, and a blend
    of the two frequencies between. Raises UserError for a setting that is missing.
    """
    return _factors(*_llama3(scaling, where), _wavelengths(theta, head_dim)).astype(np.float32)


def _wavelengths(theta: float, head_dim: int) -> np.ndarray:
    return np.asarray(2 * math.pi * float(theta) ** (np.arange(0, head_dim, 2) / head_dim))


def _factors(factor: float, low: float, high: float, original: float, lengths: np.ndarray) -> np.ndarray:
    smooth = np.clip((original / lengths - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def of_factors(given: np.ndarray, theta: float, head_dim: int, original: int | None) -> dict[str, Any] | None:
    """The llama3 scaling that gives these factors, or None where there is none.

    Only original / low_freq_factor and original / high_freq_factor can be told from factors: where the file does not
    say `original`, the published one is taken. The blend is linear in original / wavelength, so two factors between
    the ends give both; the published settings are tried first.
    """
    lengths, given = _wavelengths(theta, head_dim), given.astype(np.float64)
    factor = float(np.float32(given.max()))
    if not (np.isfinite(given).all() and given.min() > 0):
        return None
    low, high, published = _PUBLISHED
    tries = [(factor, low, high, float(original or published))]
    smooth = (1 / given - 1 / factor) / (1 - 1 / factor) if factor > 1 else np.ones_like(given)
    between = (smooth > _SAME) & (smooth < 1 - _SAME)
    reached = between | (np.arange(len(given)) == given.argmax())  # where the wavelengths end before the blend does
    for fitted in (between, reached):
        if fitted.sum() > 1:
            slope, start = np.polyfit(1 / lengths[fitted], smooth[fitted], 1)
            width = (original or published) / slope if slope > 0 > start else 0.0
            low, high = (float(f"{share * width:.9g}") for share in (-start, 1 - start))  # as people write numbers
            tries.append((factor, low, high, float(original or published)))
    for one in tries:
        if one[2] > one[1] > 0 and np.allclose(_factors(*one, lengths), given, rtol=_SAME, atol=0):
            keys = ("factor", "low_freq_factor", "high_freq_factor")
            return {
                "rope_type": "llama3",
                **dict(zip(keys, one[:3], strict=True)),
                "original_max_position_embeddings": int(one[3]),
            }
    return None


def of_settings(settings: Mapping[str, Any], positions: int) -> dict[str, Any] | str | None:
    """Scaling that keys of the metadata (without prefix) say: none, one, or a sentence why it cannot be had."""
    kind = settings.get(PREFIX + "type", "none")
    for key, usual in _USUAL.items():
        value = settings.get(PREFIX + key)
        if value is not None and value not in usual:
            return f"{PREFIX}{key} is {value!r}, which is not read; {usual[0]} works"
    old = settings.get("rope.scale_linear", 1.0)  # what the key was called at first
    factor = settings.get(PREFIX + "factor", old)
    if kind == "none" and "rope.scale_linear" in settings and old not in (0.0, 1.0):
        kind = "linear"
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if kind not in ("linear", "yarn"):
        return f"{PREFIX}type is {str(kind)[:40]!r}, which is not read; none, linear and yarn work"
    if type(factor) is not float or not 0 < factor < math.inf:
        return f"{PREFIX}factor is {factor!r}; a number above 0 is needed"
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    original = settings.get(PREFIX + "original_context_length", positions)
    if type(original) is not int or original < 1:
        return f"{PREFIX}original_context_length is {str(original)[:40]}; a whole number above 0 is needed"
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
