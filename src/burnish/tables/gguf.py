"""GGUF as data: the format's limits, and what elements of tensors are stored as.

Sources: the format's specification (ggml's docs/gguf.md) and llama.cpp's converter and quantizer.
"""

from __future__ import annotations

from dataclasses import dataclass

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # the first had 32-bit counts
ALIGNMENT = 32
MOST_DIMENSIONS = 4
LONGEST_NAME = 64  # bytes of a tensor's name
LONGEST_KEY = 65535


@dataclass(frozen=True)
class Storage:
    """`number` in a tensor's entry; `block` elements of a row take `bytes`; `readable` where it can be dequantized here."""

    number: int
    block: int
    bytes: int
    readable: bool = True


STORAGES = {
    "F32": Storage(0, 1, 4),
    "F16": Storage(1, 1, 2),
    "Q4_0": Storage(2, 32, 18),
    "Q4_1": Storage(3, 32, 20),
    "Q5_0": Storage(6, 32, 22),
    "Q5_1": Storage(7, 32, 24),
    "Q8_0": Storage(8, 32, 34),
    "Q8_1": Storage(9, 32, 40, False),
    "Q2_K": Storage(10, 256, 84),
    "Q3_K": Storage(11, 256, 110),
    "Q4_K": Storage(12, 256, 144),
    "Q5_K": Storage(13, 256, 176),
    "Q6_K": Storage(14, 256, 210),
    "Q8_K": Storage(15, 256, 292, False),
    "IQ2_XXS": Storage(16, 256, 66, False),
    "IQ2_XS": Storage(17, 256, 74, False),
    "IQ3_XXS": Storage(18, 256, 98, False),
    "IQ1_S": Storage(19, 256, 50, False),
    "IQ4_NL": Storage(20, 32, 18),
    "IQ3_S": Storage(21, 256, 110, False),
    "IQ2_S": Storage(22, 256, 82, False),
    "IQ4_XS": Storage(23, 256, 136),
    "I8": Storage(24, 1, 1, False),
    "I16": Storage(25, 1, 2, False),
    "I32": Storage(26, 1, 4, False),
    "I64": Storage(27, 1, 8, False),
    "F64": Storage(28, 1, 8, False),
    "IQ1_M": Storage(29, 256, 56, False),
    "BF16": Storage(30, 1, 2),
    "TQ1_0": Storage(34, 256, 54, False),
    "TQ2_0": Storage(35, 256, 66, False),
    "MXFP4": Storage(39, 32, 17, False),
}
READABLE = tuple(name for name, storage in STORAGES.items() if storage.readable)
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Written:
    """A format that files are written in: `file_type` is general.file_type, `output` what the output matrix is stored as.

    llama.cpp stores the output matrix (tied: the embedding) of 4-bit files in Q6_K, and in Q8_0 where its rows are no
    multiple of that block. Q8_0 is the nearest above it that the gguf package can write.
    """

    file_type: int
    output: str


WRITTEN = {
    "F32": Written(0, "F32"),
    "F16": Written(1, "F16"),
    "BF16": Written(32, "BF16"),
    "Q8_0": Written(7, "Q8_0"),
    "Q4_0": Written(2, "Q8_0"),
    "Q4_1": Written(3, "Q8_0"),
}
UNFIT = "F16"  # what llama.cpp stores a matrix as whose rows are no multiple of the format's block
QUANTIZATION_VERSION = 2
