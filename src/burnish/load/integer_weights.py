"""Integer weights of a folder in the format of compressed-tensors: several tensors of a file seen as the one matrix they are.

`config.json` says how, under `quantization_config`; `burnish.weight_format` has the tensors' names and shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.load.checkpoint import IntegerTensor, StoredTensor
from burnish.load.torch_needed import torch_here
from burnish.tables.families import Link
from burnish.weight_format import TYPES, IntWeights, stored

if TYPE_CHECKING:
    from torch import Tensor, nn

METHOD, FORMATS = "compressed-tensors", ("pack-quantized", "int-quantized")
WORKS = "4 bits in groups and 8 bits a row work"


def with_integers(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor], where: str
) -> dict[str, StoredTensor]:
    """The tensors of a folder, each matrix of integers under the name of its weight; what is of no known format stays.

    Raises UserError naming the setting that is not read, or the tensor that is missing or of a wrong shape or type.
    """
    told = config.get("quantization_config")
    if not isinstance(told, dict) or told.get("quant_method") != METHOD or told.get("format") not in FORMATS:
        return dict(tensors)
    dtype = next((tensor.format for name, tensor in tensors.items() if name.endswith(".weight_scale")), "float16")
    scheme = _scheme(told, dtype, f"{where}/config.json: quantization_config")
    found: dict[str, StoredTensor] = {}
    used: set[str] = set()
    for name in tensors:
        if name.endswith(".weight_scale"):
            base = name.removesuffix(".weight_scale")
            found[f"{base}.weight"] = _matrix(scheme, base, tensors, used)
    return {name: tensor for name, tensor in tensors.items() if name not in used} | found


def _scheme(told: Mapping[str, Any], dtype: str, where: str) -> IntWeights:
    groups = told.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise UserError(f"{where}: config_groups has no single group; one for all matrices works")
    (group,) = groups.values()
    weights: Any = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise UserError(f"{where}: config_groups says nothing of weights")
    bits = 4 if told["format"] == "pack-quantized" else 8
    size: Any = weights.get("group_size") if weights.get("strategy") == "group" else -1
    given = (weights.get("type", "int"), weights.get("num_bits"), weights.get("strategy"), weights.get("actorder"))
    known = given[1:] in ((bits, "group", None), (bits, "channel", None)) and type(size) is int and size != 0
    if given[0] != "int" or not known or (bits == 8 and (size != -1 or not weights.get("symmetric", True))):
        raise UserError(f"{where}: weights are {', '.join(map(str, given))} in {told['format']}; {WORKS}")
    inputs = group.get("input_activations")
    how = "" if inputs is None else str(inputs.get("strategy")) if isinstance(inputs, dict) else "?"
    if how not in ("", "token", "tensor"):
        raise UserError(f"{where}: input_activations are rounded by {how}; none, token and tensor work")
    return IntWeights(bits, size, bool(weights.get("symmetric", True)), dtype, how)


def _matrix(scheme: IntWeights, base: str, tensors: Mapping[str, StoredTensor], used: set[str]) -> StoredTensor:
    """One matrix of its tensors, each held against what the scheme says."""
    first = f"{base}.{'weight_packed' if scheme.packed else 'weight'}"
    if first not in tensors:
        raise UserError(f"{tensors[f'{base}.weight_scale'].file}: {first} is missing, though its scale is here")
    shape = _shape(scheme, base, tensors, first)
    parts = {}
    for name, (dtype, wanted) in stored(scheme, base, shape).items():
        if name not in tensors:
            raise UserError(f"{tensors[first].file}: {name} is missing, though {first} is here")
        own = tensors[name]
        if own.shape != wanted or own.format != dtype or dtype not in TYPES:
            raise UserError(
                f"{own.file}: {name} is {own.format} {own.shape}, quantization_config says {dtype} {wanted}"
            )
        parts[name.removeprefix(f"{base}.")] = own
    used |= {f"{base}.{name}" for name in parts}
    kept = replace(tensors[first], shape=shape, format=scheme.label, bytes=sum(part.bytes for part in parts.values()))
    whole = IntegerTensor(scheme, parts)
    return replace(kept, read=lambda: floats(whole, shape, first), raw=None, integers=whole)


def _shape(scheme: IntWeights, base: str, tensors: Mapping[str, StoredTensor], first: str) -> tuple[int, int]:
    """[out, in] of a matrix; the inputs in the last word that is not full are told by a tensor, which needs torch."""
    own = tensors[first].shape
    if len(own) != 2 or len(tensors[f"{base}.weight_scale"].shape) != 2:
        raise UserError(f"{tensors[first].file}: {first} has shape {own}; a matrix has two sizes")
    if not scheme.packed:
        return own[0], own[1]
    if scheme.group > 0:
        return own[0], tensors[f"{base}.weight_scale"].shape[1] * scheme.group
    told = tensors.get(f"{base}.weight_shape")
    if told is None or told.raw is None or told.shape != (2,) or not torch_here():
        return own[0], own[1] * 8
    return own[0], int(told.raw()[1])


def _raw(integers: IntegerTensor) -> dict[str, Tensor]:
    return {name: part.raw() for name, part in integers.parts.items() if part.raw is not None}


def _sound(integers: IntegerTensor, shape: tuple[int, ...], name: str) -> dict[str, Tensor]:
    """The tensors of a matrix, once what they say of its shape is what is wanted."""
    parts = _raw(integers)
    told = parts.get("weight_shape")
    if told is not None and tuple(told.tolist()) != shape:
        file = integers.parts["weight_shape"].file
        raise UserError(f"{file}: weight_shape of {name} is {tuple(told.tolist())}, its integers are of {shape}")
    return parts


def floats(integers: IntegerTensor, shape: tuple[int, ...], name: str) -> Tensor:
    """What the integers stand for: float32 [out, in]."""
    parts = _sound(integers, shape, name)
    if not integers.scheme.packed:
        scale = parts["weight_scale"]
        return (parts["weight"].float() * scale.float()).to(scale.dtype).float()
    from burnish.ops.int4_linear import from_file

    return from_file(integers.scheme, [parts], None, False).dequantized()


def integer_module(link: Link, found: Mapping[str, StoredTensor], biased: bool) -> nn.Module:
    """The module that multiplies by a matrix kept as integers, or by those of all experts; its bias is yet to be read."""
    import torch

    own = [(found[name], found[name].integers) for name in link.theirs]
    parts = [_sound(integers, tensor.shape, tensor.file.name) for tensor, integers in own if integers is not None]
    scheme = next(integers.scheme for _, integers in own if integers is not None)
    bias = torch.empty(sum(tensor.shape[0] for tensor, _ in own)) if biased else None
    if not scheme.packed:
        from burnish.ops import int8_linear

        return int8_linear.from_file(scheme, parts, bias)
    from burnish.ops.int4_linear import from_file

    return from_file(scheme, parts, bias, len(own) > 1)
