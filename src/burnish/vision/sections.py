"""Sections of a vision recipe: network, images, augmentation, what is done with the output, pruning and 8 bits; no torch.

Every name is out of a closed list: a recipe is data, and nothing in it is evaluated.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from burnish.section import Section

DETECTORS = ("centernet", "efficientnet-lite0")  # kinds of network that find boxes
AXES = {"sagittal": 0, "coronal": 1, "axial": 2}  # of a volume whose indices grow to the right, front and top


class Network(Section):
    """A network of MONAI, or a detector. `channels` by level, the finest first; 0 channels in or out are taken from the data.

    A detector's first level has half of the picture's size, and its channels out are classes. An efficientnet-lite0 has
    channels of its own: `channels` are those that its maps of a quarter, an eighth and a sixteenth are brought to.
    Batch norm and ReLU by default: of the norms and activations they are the ones that pruning and 8 bits keep well.
    """

    kind: Literal["unet", "basic-unet", "segresnet", "dynunet", "attention-unet", "centernet", "efficientnet-lite0"] = (
        "unet"
    )
    dimensions: Literal[2, 3] = 2
    in_channels: int = Field(default=0, ge=0)
    out_channels: int = Field(default=0, ge=0)
    channels: tuple[int, ...] = (16, 32, 64, 128)
    residual: int = Field(default=0, ge=0)  # residual units of each level of a unet
    head: int = Field(default=64, ge=1)  # channels before the last layer of a detector
    norm: Literal["batch", "instance", "group"] = "batch"
    act: Literal["relu", "leaky-relu", "prelu"] = "relu"

    @field_validator("channels")
    @classmethod
    def _levels(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(value) < 2 or any(width < 1 for width in value):
            raise ValueError("name the channels of two levels or more, each at least 1, such as [16, 32, 64]")
        return value

    @model_validator(mode="after")
    def _of_kind(self) -> Network:
        first = self.channels[0]
        if self.kind == "segresnet" and self.channels != tuple(first * 2**k for k in range(len(self.channels))):
            raise ValueError(f"channels: a segresnet doubles them each level: {[first * 2**k for k in range(3)]}, ...")
        if self.kind == "basic-unet" and len(self.channels) != 5:
            raise ValueError("channels: a basic-unet has 5 levels")
        if self.detects and (self.dimensions, self.norm, self.act, self.residual) != (2, "batch", "relu", 0):
            raise ValueError(
                f"kind: a {self.kind} has dimensions=2, norm=batch, act=relu and residual=0; leave them so"
            )
        if self.kind == "efficientnet-lite0" and len(self.channels) != 3:
            raise ValueError("channels: an efficientnet-lite0 has 3 levels behind it, such as [48, 48, 48]")
        return self

    @property
    def detects(self) -> bool:
        """Whether it finds boxes."""
        return self.kind in DETECTORS

    @property
    def divisor(self) -> int:
        """Each side of a patch is a multiple of this: what the levels halve."""
        halved = {"centernet": len(self.channels), "efficientnet-lite0": 4}
        return int(2 ** halved.get(self.kind, len(self.channels) - 1))


class Images(Section):
    """Where pictures and labels lie and how they come to the network.

    A source is a folder (`images/` and `labels/` with files of the same names, or a MONAI bundle's imagesTr and labelsTr), a
    datalist (.json), or the name of a set that `burnish fetch` knows. `classes`: name -> values in the label files, none for
    every value above 0; without it each value above 0 that occurs is a class. What is None is derived from the data.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    validation_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)  # of the patients
    validation_slices: float = Field(default=0.0, ge=0.0, le=0.5)  # of each training volume
    train_slices: int = Field(default=0, ge=0)  # of each training volume, evenly chosen; 0: all
    classes: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    patient: str = ""  # a pattern whose first group of a file's name is the patient; else every file is one
    slice_axis: Literal["sagittal", "coronal", "axial"] = "axial"
    spacing: tuple[float, ...] | None = None  # millimetres, right, front, top
    patch: tuple[int, ...] | None = None
    normalise: Literal["zscore", "percentile", "window", "unit"] | None = None
    window: tuple[float, float] | None = None  # of `window`: values that become 0 and 1
    foreground: float = Field(default=0.33, ge=0.0, le=1.0)  # share of patches around a labelled voxel, as in nnU-Net

    @field_validator("train", "validation", "test", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("patient")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            if value and re.compile(value).groups != 1:
                raise ValueError("write one group around the patient, such as (sub-[0-9]+)_.*")
        except re.error as error:
            raise ValueError(f"no pattern ({error})") from None
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Images:
        if self.normalise == "window" and (self.window is None or self.window[0] >= self.window[1]):
            raise ValueError("window: normalise=window needs the lower and the upper value, such as [-160, 240]")
        if self.spacing is not None and (len(self.spacing) != 3 or min(self.spacing) <= 0):
            raise ValueError("spacing: three sizes above 0, in millimetres")
        both = {one for one in self.train if not one.endswith(".json")} & {*self.validation, *self.test}
        if both:  # a datalist has parts of its own
            raise ValueError(f"{sorted(both)[0]!r} is in train and in validation or test; a scan cannot be both")
        return self


class Augment(Section):
    """How training patches are varied; each is a largest amount, 0 for none. All are done to a batch at once.

    Degrees, shares of the size, and shares of the range of values; `bias` is a field that varies slowly over the picture.
    """

    enabled: bool = True
    flip: tuple[bool, ...] = ()  # by axis of a patch
    rotate: float = Field(default=15.0, ge=0, le=180)
    scale: float = Field(default=0.15, ge=0, lt=1)
    shift: float = Field(default=0.05, ge=0, lt=1)
    brightness: float = Field(default=0.1, ge=0)
    contrast: float = Field(default=0.2, ge=0, lt=1)
    gamma: float = Field(default=0.3, ge=0, lt=1)
    noise: float = Field(default=0.05, ge=0)
    blur: float = Field(default=0.5, ge=0, le=1)  # share of patches that are smoothed
    bias: float = Field(default=0.2, ge=0, lt=1)


class Inference(Section):
    """How whole volumes are labelled: windows of the patch's size, blended with Gaussian weights (Isensee et al. 2021)."""

    overlap: float = Field(default=0.25, ge=0, lt=1)
    batch: int = Field(default=8, ge=1)
    memory_gib: float = Field(default=1.0, gt=0)
    keep_largest: bool = False  # of each class only the largest connected piece
    most_boxes: int = Field(default=100, ge=1)  # of one picture
    least_score: float = Field(default=0.3, ge=0, lt=1)  # of boxes that are written and drawn; all are judged


class Prune(Section):
    """Structured pruning after training, then training on beside the unpruned network; off while `target` is 0."""

    target: float = Field(default=0.0, ge=0, lt=1)
    kind: Literal["ratio", "flops", "bytes", "latency"] = "ratio"
    importance: Literal["magnitude", "taylor"] = "magnitude"
    round_to: int = Field(default=4, ge=1)
    reestimate: int = Field(default=12, ge=0)  # batches that normalisation is measured again on
    retrain_steps: int = Field(default=0, ge=0)
    max_drop: float = Field(default=0.01, ge=0)  # of the metric, against the control

    @property
    def used(self) -> bool:
        return self.target > 0


class Int8(Section):
    """8-bit integers in the ONNX file, calibrated on training images."""

    used: bool = False
    samples: int = Field(default=32, ge=1)
    method: Literal["minmax", "entropy", "percentile", "mse"] = "minmax"
    max_drop: float = Field(default=0.003, ge=0)


class Output(Section):
    """What is written at the end beside the weights."""

    onnx: bool = True
    overlays: int = Field(default=4, ge=0)  # pictures in the report
