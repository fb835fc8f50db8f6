"""pytorch_model.bin: a pickle, opened only by the reader of torch that builds plain tensors and refuses anything else."""

from __future__ import annotations

import re
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.load.checkpoint import StoredTensor
from burnish.load.regular_file import changed, version_of
from burnish.load.safetensors_file import check_name, check_readable
from burnish.load.torch_needed import need_torch

if TYPE_CHECKING:
    from torch import Tensor

# How torch words its refusals: the class or function that the pickle asks for, or an instruction it does not follow.
_WANTED = re.compile(
    r"Unsupported (?:global|class|operand)[: ]+(?:GLOBAL )?([A-Za-z_][\w.]*)|GLOBAL ([A-Za-z_][\w.]*)"
    r"|[Tt]rying to (?:load unsupported GLOBAL|call reduce for unrecognized function) (\S+)"
)
_REASON = "WeightsUnpickler error: "  # what goes before is advice to run the pickle anyway


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Name -> tensor of one file, mapped where the file allows it, so that weights are read when they are asked for.

    Raises UserError naming the file and what it asks for when it is more than a dictionary of plain tensors.
    """
    need_torch(f"{file}: reading a pickle")
    from torch import Tensor

    content, version = _load(file), version_of(file)
    if not isinstance(content, dict):
        raise UserError(f"{file}: the pickle holds a {type(content).__name__}, not names with their tensors")
    made = {}
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UserError(
                f"{file}: {str(name)[:80]!a} is a {type(tensor).__name__}, not a tensor; save the state_dict alone"
            )
        check_name(file, name)
        made[name] = _stored(file, version, name, tensor)
    return made


def _load(file: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # about protocols, which the reader then refuses or follows
            return _read(file)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except MemoryError:
        raise UserError(f"{file}: asks for more memory than there is") from None
    except Exception as error:  # bytes can be wrong in as many ways as the pickle machine has instructions
        said = str(error)
        if found := _WANTED.search(said):
            what = next(filter(None, found.groups()))
            raise UserError(
                f"{file}: the pickle asks for {what}, which could run code, and is not read; convert it to safetensors"
            ) from None
        reason = said.partition(_REASON)[2] or said
        why = reason.strip().splitlines()[0].split(". ")[0][:160] if reason.strip() else type(error).__name__
        raise UserError(f"{file}: not a whole pickle file of tensors ({why})") from None


def _read(file: Path) -> Any:
    import torch

    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap can only be used" not in str(error):
            raise
    return torch.load(file, map_location="cpu", weights_only=True)  # the format before zip archives


def _stored(file: Path, version: tuple[int, ...], name: str, tensor: Tensor) -> StoredTensor:
    import torch

    kind, size = str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not plain or size > version[0]:
        raise UserError(f"{file}: {name} is no plain tensor that the file holds; convert it to safetensors")
    return StoredTensor(tuple(tensor.shape), kind, size, file, partial(_copy, file, version, name, kind, tensor))


def _copy(file: Path, version: tuple[int, ...], name: str, kind: str, tensor: Tensor) -> Tensor:
    """A copy that hangs on no mapped file; a mapped file that was cut short would end the process."""
    import torch

    check_readable(file, name, kind)
    try:
        if version_of(file) != version:
            raise changed(file)
    except OSError:
        raise changed(file) from None
    return tensor.detach().clone(memory_format=torch.contiguous_format)
