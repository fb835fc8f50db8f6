"""Passes of compression: what is asked for, one technique after another, on a copy of the model.

The techniques in their order are `burnish.compressions.COMPRESSIONS`.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from burnish.compress.fingerprint import model_fingerprint
from burnish.compress.samples import Samples
from burnish.compress.sensitivity import Exchange
from burnish.compress.subject import Subject
from burnish.compressions import COMPRESSIONS as COMPRESSIONS
from burnish.compressions import Compression
from burnish.config import ModelConfig
from burnish.data.cache import cache_folder
from burnish.describe import Shapes, describe
from burnish.encoders.config import EncoderConfig
from burnish.encoders.describe import describe_encoder
from burnish.mesh import Mesh
from burnish.weight_format import IntWeights, fits
from burnish.work import Work

Task = Callable[[str], AbstractContextManager[Callable[..., None]]]  # opens a bar by its name


@dataclass(frozen=True, eq=False)
class Compressed:
    """`own` is the model before parts of it could be exchanged, `model` after all; both have the sizes of `config`, and hold
    what a file does.

    `tables` are what was searched for, by technique, and `searched` the folders from which such a search goes on, for whoever
    has written the model to remove. `dtype` is what a file's float numbers are stored as. `kept` parts of the model are as in
    `own`.
    """

    model: nn.Module
    own: nn.Module
    config: ModelConfig | EncoderConfig
    tables: dict[str, Any]
    scheme: IntWeights | None
    keep: tuple[str, ...]
    dtype: str
    work: Work
    kept: tuple[Exchange, ...] = ()
    searched: tuple[Path, ...] = ()


def run_passes(
    chosen: Sequence[tuple[Compression, Any]], subject: Subject, samples: Samples, task: Task, state: Path | None = None
) -> Compressed:
    """Check, search and apply each technique in turn. The subject's model stays as it is.

    A search goes on from `state`, or from the cache, where it was killed or its model was not written. Raises UserError and
    BudgetNotMet as the techniques do.
    """
    mesh, work = Mesh(), described(subject.config, samples.ids.shape[1])
    own = model = subject.model
    tables: dict[str, Any] = {}
    places: list[Path] = []
    scheme, keep, dtype = None, (), subject.stored
    for technique, config in chosen:
        technique.module.check(config, work, mesh)
    for technique, config in chosen:
        places.append(place := (state or searches()) / _key(technique.name, config, model, samples))
        with task(f"{technique.name}: search") as watch:
            table = technique.module.search(config, model, samples, state=place, told=watch)
        if table is not None:
            tables[technique.name] = table
        before, model = model, copy.deepcopy(model)
        model = technique.module.apply(config, model, mesh, table)
        work = technique.module.predict(config, work, mesh, table)
        own = before if technique.exchanged else model
        scheme, keep = getattr(config, "scheme", None), getattr(config, "keep", ())
        dtype = getattr(config, "dtype", dtype)
    own = own if own is subject.model and dtype == subject.stored else as_stored(copy.deepcopy(own), dtype)
    sizes = getattr(model, "shape", subject.config)
    return Compressed(as_stored(model, dtype), own, sizes, tables, scheme, keep, dtype, work, searched=tuple(places))


def searches() -> Path:
    """Where unfinished searches are kept."""
    return cache_folder() / "searches"


def _key(name: str, config: Any, model: nn.Module, samples: Samples) -> str:
    said = json.dumps([name, config.model_dump(mode="json"), model_fingerprint(model), samples.fingerprint])
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def described(config: ModelConfig | EncoderConfig, length: int) -> Work:
    """The work of one row."""
    shapes = Shapes(rows=1, seq=length)
    return describe(config, shapes) if isinstance(config, ModelConfig) else describe_encoder(config, shapes)


@torch.no_grad()
def as_stored(model: nn.Module, dtype: str) -> nn.Module:
    """Round every float number of a model, in place, to what a file of `dtype` holds, so that what is judged is what is
    written."""
    kind = getattr(torch, dtype)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(kind))
    return model.eval()


def kept_by_pattern(model: nn.Module, keep: Sequence[str]) -> frozenset[str]:
    """The modules that a technique's `keep` leaves alone."""
    return frozenset(name for name, _ in model.named_modules() if keep and fits(name, tuple(keep)))
