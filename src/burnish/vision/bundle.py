"""Bundle: a trained network as a folder that predicts without its recipe: weights, ONNX files, and all that stands around them.

network.json names the network, what was kept of it, the orientation and spacing that its weights expect, how values are
normalised and which steps follow. Nothing in it is evaluated, and no file is a pickle.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import nn

from burnish.errors import UserError
from burnish.section import Section, explain
from burnish.vision.inference import Labeller, of_module, of_onnx
from burnish.vision.kept_channels import Kept, apply
from burnish.vision.sections import Images, Inference, Network

CARD, WEIGHTS, KEPT, ONNX, INT8 = "network.json", "model.safetensors", "kept.json", "model.onnx", "model-int8.onnx"
TRAINED = "trained.safetensors"  # of a run: the whole network, whatever was made of it afterwards
OURS = {CARD, WEIGHTS, KEPT, ONNX, INT8}
ORIENTATION = "RAS+: indices grow to the right, front and top"
ENGINES = {"torch": WEIGHTS, "onnx": ONNX, "int8": INT8}


class Card(Section):
    """What network.json holds."""

    format: str = "burnish-vision-1"
    recipe: str = ""
    orientation: str = ORIENTATION
    network: Network
    images: Images
    inference: Inference = Inference()


@dataclass(frozen=True)
class Bundle:
    """A folder with its card."""

    path: Path
    card: Card

    @property
    def engines(self) -> tuple[str, ...]:
        """What it can be run by."""
        return tuple(name for name, file in ENGINES.items() if (self.path / file).is_file())


def save_card(folder: Path, card: Card) -> None:
    """Write network.json into a folder that exists."""
    (folder / CARD).write_text(json.dumps(card.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")


def save_weights(folder: Path, model: nn.Module, name: str = WEIGHTS) -> None:
    """Write the weights into a folder that exists; what has several names is written under the first."""
    from safetensors.torch import save_file

    save_file({key: tensor.detach().contiguous() for key, tensor in held(model).items()}, folder / name)


def held(model: nn.Module) -> dict[str, Any]:
    """Parameters and stored buffers of a network, each once, by the first of its names."""
    stored = model.state_dict().keys()
    return {name: t for name, t in (*model.named_parameters(), *model.named_buffers()) if name in stored}


def open_bundle(path: Path) -> Bundle:
    """The bundle in a folder, or in the run that wrote it. Raises UserError when there is none."""
    for folder in (path, path / "model"):
        if (folder / CARD).is_file():
            try:
                values = json.loads((folder / CARD).read_text(encoding="utf-8"))
                return Bundle(folder, Card.model_validate(values))
            except ValidationError as error:
                raise explain(error, Card, str(folder / CARD)) from None
            except (OSError, ValueError) as error:
                raise UserError(f"{folder / CARD}: cannot be read ({error})") from None
    raise UserError(f"{path}: holds no {CARD}; `burnish run` of a vision recipe writes the folder model/ with it")


def load_network(bundle: Bundle) -> nn.Module:
    """The network with its weights, rebuilt and cut as the bundle says. Raises UserError where they do not fit."""
    from burnish.vision.networks import build

    model = build(bundle.card.network)
    if (bundle.path / KEPT).is_file():
        model = apply(model, Kept.load(bundle.path / KEPT))
    load_state(model, read_weights(bundle.path / WEIGHTS), bundle.path / WEIGHTS)
    return model


def read_weights(path: Path) -> dict[str, Any]:
    """Tensors of a safetensors file by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error})") from None


def load_state(model: nn.Module, tensors: dict[str, Any], path: Path) -> None:
    """Put all tensors in. Raises UserError naming the first that does not fit."""
    if missing := sorted(held(model).keys() - tensors.keys()):
        raise UserError(f"{path}: holds no {missing[0]}, which its network has")
    try:
        found = model.load_state_dict(tensors, strict=False)
        if found.unexpected_keys:
            raise RuntimeError(f"it has no {found.unexpected_keys[0]}")
    except RuntimeError as error:
        raise UserError(f"{path}: does not fit its network ({' '.join(str(error).split())[:200]})") from None


def labeller_of(bundle: Bundle, engine: str = "", threads: int = 0, **changes: Any) -> Labeller:
    """The bundle ready to label, by `engine` (default: the first it has). Raises UserError for an engine it has not.

    `changes` are settings of the section `inference`.
    """
    engines = bundle.engines
    engine = engine or (engines[0] if engines else "torch")
    if engine not in engines:
        raise UserError(f"{bundle.path}: has nothing for engine {engine!r}; it has {', '.join(engines) or 'none'}")
    card = bundle.card
    given = {key: value for key, value in changes.items() if value is not None}
    inference = Inference.model_validate(card.inference.model_dump() | given)
    file = bundle.path / ENGINES[engine]
    predict = of_module(load_network(bundle)) if engine == "torch" else of_onnx(file, threads)
    return Labeller(predict, card.network, card.images, inference)
