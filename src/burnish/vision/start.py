"""Start: weights that training begins from, out of a bundle, a run, a checkpoint file, a MONAI bundle, or a known backbone.

What has the same name and shape is taken; what does not fit stays as drawn, and is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from burnish.errors import UserError
from burnish.load.backbones import BACKBONES, backbone
from burnish.vision.bundle import CARD, TRAINED, WEIGHTS, read_weights
from burnish.vision.efficientnet_lite import from_published, is_published

PICKLED = (".pt", ".pth", ".ckpt")
EXPORTED = ".onnx"
ORDER = "pruning and training come before the export: name the run that wrote it, whose weights can still be cut"
INSIDE = ("model", "state_dict", "network", "net", "model_state_dict")  # keys that checkpoints keep weights under
LISTED = 4  # layers named in a line


def start_from(model: nn.Module, name: str) -> tuple[str, ...]:
    """Put the weights found at `name` into `model`; lines on what was taken and which layers were not.

    Raises UserError where there are no weights, and where none of them fits.
    """
    theirs = {key.removeprefix("module."): value for key, value in _tensors(Path(name)).items()}
    if is_published(theirs):
        theirs = from_published(theirs)
    ours = model.state_dict()
    fits = {key: value for key, value in theirs.items() if key in ours and ours[key].shape == value.shape}
    learned = {key for key, _ in model.named_parameters()}
    if not learned & fits.keys():
        raise UserError(f"train.init {name}: none of its {len(theirs)} tensors fits the network; is it another kind?")
    model.load_state_dict(fits, strict=False)
    lines = [f"started from {name}: {len(learned & fits.keys())} of {len(learned)} tensors"]
    if other := sorted(key for key in learned - fits.keys() if key in theirs):
        lines.append(f"other shapes, drawn anew: {_some([_both(key, ours, theirs) for key in other])}")
    if absent := sorted(learned - fits.keys() - theirs.keys()):
        lines.append(f"not in it, drawn anew: {_some(absent)}")
    if unused := sorted(key for key in theirs.keys() - ours.keys()):
        lines.append(f"in it and not used: {_some(unused)}")
    return tuple(lines)


def _both(key: str, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    return f"{key} {tuple(theirs[key].shape)} for {tuple(ours[key].shape)}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    if str(path) in BACKBONES and not path.exists():
        return _pickled(backbone(str(path)))
    if path.suffix == EXPORTED:
        raise UserError(f"train.init {path}: is exported already; {ORDER}")
    if (path / TRAINED).is_file():
        return read_weights(path / TRAINED)
    for folder in (path, path / "model"):
        if (folder / CARD).is_file():
            return read_weights(folder / WEIGHTS)
    if (path / "models").is_dir():  # a MONAI bundle
        found = sorted(file for file in (path / "models").iterdir() if file.suffix in PICKLED)
        if not found:
            raise UserError(f"{path}: a MONAI bundle without models/model.pt; download its weights first")
        path = next((file for file in found if file.stem == "model"), found[0])
    if path.suffix == ".safetensors" and path.is_file():
        return read_weights(path)
    if path.suffix in PICKLED and path.is_file():
        return _pickled(path)
    raise UserError(
        f"train.init {path}: no weights there; name a run or its model folder, a .safetensors or .pt file, "
        f"a MONAI bundle, or {', '.join(BACKBONES)}"
    )


def _pickled(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a file of torch.save, without running anything that it holds."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler raises whatever it likes
        raise UserError(f"{path}: not read: {' '.join(str(error).split())[:160]}; save the state_dict alone") from None
    for key in INSIDE:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    tensors = {key: value for key, value in content.items() if isinstance(value, torch.Tensor)} if content else {}
    if not tensors:
        raise UserError(f"{path}: holds no tensors by name")
    return tensors
