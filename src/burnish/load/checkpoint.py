"""Checkpoint: a model as somebody wrote it, whatever the format: settings, tensors by name, tokenizer; read on demand.

A format is one reader that makes this record from a folder or file and one writer that takes it. Names, shapes and settings
are those of the family's Hugging Face checkpoints, so that what builds a module from them knows one spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.weight_format import IntWeights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. `format` is what an element is stored as: "float32", "bfloat16", "Q4_1", ...

    `read` gives it on the CPU, in that format where it is one of floating point, else in float32; a new copy each time.
    `raw` gives what the file holds, integers too, where the format tells. `integers`: what the tensor is made of, if it is.
    """

    shape: tuple[int, ...]
    format: str
    bytes: int
    file: Path
    read: Callable[[], Tensor]
    raw: Callable[[], Tensor] | None = None
    integers: IntegerTensor | None = None


@dataclass(frozen=True)
class IntegerTensor:
    """A matrix that a file keeps as integers: how, and the tensors of the file by their endings (`weight_scale`, ...)."""

    scheme: IntWeights
    parts: Mapping[str, StoredTensor]


@dataclass(frozen=True)
class TokenizerFiles:
    """The content of `tokenizer.json` and of `tokenizer_config.json`, and the chat template wherever it was found."""

    tokenizer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """`config` is the content of `config.json`, `generation` that of `generation_config.json` (empty where there is none).

    `where` names the folder or file in messages, `format` what kind of checkpoint it is.
    """

    where: str
    format: str
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    tokenizer: TokenizerFiles | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
