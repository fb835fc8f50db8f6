"""What a person chooses of an ONNX file: for which runtime, and what is rounded further."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.errors import UserError, nearest

ONNX = ".onnx"
PORTABLE, FUSED = "onnx", "onnxruntime"
FORMATS = (PORTABLE, FUSED)
HEADS = ("float32", "int8", "int4")
LEVELS = (1, 4)


@dataclass(frozen=True)
class Choices:
    """What a person chooses. `format`: "onnx", standard operators for any runtime, or "onnxruntime", its own fused ones.

    `head`: what a decoder's vocabulary is stored as. `accuracy_level`: 4 rounds the inputs of 4-bit products to 8 bits.
    `force`: integers of 8 bits are kept where they are slower here.
    """

    format: str = PORTABLE
    head: str = "float32"
    accuracy_level: int = 1
    force: bool = False

    def check(self) -> None:
        """Raises UserError for a value that is none of those there are, or that the format does not have."""
        for option, value, known in (("format", self.format, FORMATS), ("head", self.head, HEADS)):
            if value not in known:
                raise UserError(f"--{option} {value}: {nearest(value, known)}")
        if self.accuracy_level not in LEVELS:
            raise UserError(
                f"--accuracy-level {self.accuracy_level}: 1 keeps inputs in float32, 4 rounds them to 8 bits"
            )
        if self.format != FUSED and (self.head != "float32" or self.accuracy_level != 1):
            raise UserError(f"--head and --accuracy-level: only --format {FUSED} has these")
