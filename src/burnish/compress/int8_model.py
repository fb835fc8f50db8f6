"""Calibrate a model for 8-bit integers, and put them in the place of its matrices as the table says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from burnish.compress.calibrators import CALIBRATORS
from burnish.compress.fingerprint import model_fingerprint, unsound
from burnish.compress.fold import Fold, apply_fold, widened
from burnish.compress.int8_choice import choose, kind_of
from burnish.compress.int8_table import FoldRow, InputRow, Table, TriedRow
from burnish.compress.ranges import ROWS, Seen, channels, inputs_of, ranges
from burnish.compress.samples import Samples
from burnish.compress.smooth import best, folds_in
from burnish.compress.table_key import Key
from burnish.errors import UserError
from burnish.ops.int8_linear import of_weight
from burnish.weight_format import IntWeights, fits


def calibrate(
    model: Any,
    samples: Samples,
    settings: Mapping[str, Any],
    strengths: Sequence[float],
    told: Callable[[int, int], None] = lambda done, total: None,
    rows: int = ROWS,
) -> Table:
    """The thresholds of every tensor that matrices read, once the folds with their `strengths` are in; `model` stays as it is.

    `settings` is the whole of a Config as data; `told` hears stages done, and in all. Raises UserError for a weight or an
    activation that is not finite.
    """
    if (name := unsound(model)) is not None:
        raise UserError(f"{name}: holds a value that is not finite; a model is compressed when its weights are sound")
    folds = _folds(model, samples, strengths, rows) if strengths else []
    told(1, 2)
    inputs, tried = _inputs(model, samples, settings, _divided(model, folds), rows)
    told(2, 2)
    return Table(
        key=Key(model=model_fingerprint(model), samples=samples.fingerprint, config=dict(settings)),
        tokens=samples.tokens,
        folds=tuple(folds),
        tried=tried,
        inputs=inputs,
    )


def _divided(model: Any, folds: Sequence[FoldRow]) -> dict[str, Tensor]:
    """Tensor -> what its inputs [I] are divided by once the folds are in."""
    found = {}
    for row in folds:
        layer, fold = model.layers[row.layer], _fold_of(model, row.source)
        if row.strength is not None:
            found[f"layers.{row.layer}.{fold.matrices[0]}"] = widened(torch.tensor(row.scale), layer, fold)
    return found


def _inputs(
    model: Any, samples: Samples, settings: Mapping[str, Any], divided: Mapping[str, Tensor], rows: int
) -> tuple[tuple[InputRow, ...], tuple[TriedRow, ...]]:
    """The threshold of every tensor, and which calibrators were tried; nothing where each token has its own scale."""
    if settings["activations"] != "static":
        return (), ()
    seen, own = ranges(model, samples, divided, rows), inputs_of(model)
    check_reached(own, seen)
    percent, calibrator = settings["percent"], settings["calibrator"]
    chosen, tried = dict.fromkeys(map(kind_of, seen), calibrator), tuple[TriedRow, ...]()
    if calibrator == "search":
        chosen, tried = choose(model, samples, seen, percent, divided)
    return tuple(_input(name, own[name], one, chosen[kind_of(name)], percent) for name, one in seen.items()), tried


def check_reached(wanted: Iterable[str], seen: Mapping[str, Seen]) -> None:
    """Raises UserError naming the tensors that no sample reached: what has no range gets no scale."""
    if unseen := [name for name in wanted if name not in seen or not seen[name].histogram.seen]:
        more = f" and {len(unseen) - 1} more tensors" if len(unseen) > 1 else ""
        raise UserError(
            f"{unseen[0]}{more}: no sample reached what it reads, so that no range is known; leave it as it is with keep, or "
            "use activations=dynamic"
        )


def _input(name: str, matrices: tuple[str, ...], seen: Seen, calibrator: str, percent: float) -> InputRow:
    threshold = CALIBRATORS[calibrator](seen.histogram, percent)
    counts, edges = seen.histogram.used()
    first = int(np.searchsorted(edges, threshold))  # bins from here on lie beyond it as a whole
    return InputRow(
        name=name,
        matrices=matrices,
        calibrator=calibrator,
        low=seen.low,
        high=seen.high,
        threshold=threshold,
        clipped=float(counts[first:].sum() / max(counts.sum(), 1)),
    )


def _folds(model: Any, samples: Samples, strengths: Sequence[float], rows: int) -> list[FoldRow]:
    """The best strength of every fold, each looked at with the others as they are."""
    known, found = channels(model, samples, rows), []
    for number, layer in enumerate(model.layers):
        for fold in folds_in(model):
            own = known[f"layers.{number}.{fold.matrices[0]}"]
            strength, scale, error, plain = best(layer, fold, own, strengths)
            found.append(
                FoldRow(
                    layer=number,
                    source=fold.source,
                    strength=strength,
                    plain=plain,
                    smooth=error,
                    scale=tuple(scale.tolist()),
                )
            )
    return found


def _fold_of(model: Any, source: str) -> Fold:
    return next(fold for fold in folds_in(model) if fold.source == source)


@torch.no_grad()
def compress_model(model: Any, scheme: IntWeights, keep: tuple[str, ...], table: Table | None) -> None:
    """Replace every matrix of the layers but those of `keep`, in place.

    Raises UserError naming a matrix for whose input a static scale is asked and the table has none.
    """
    thresholds: dict[str, float] = {}
    if table is not None:
        for row in table.folds:
            if row.strength is not None:
                apply_fold(model.layers[row.layer], _fold_of(model, row.source), _like(row.scale, model))
        thresholds = {matrix: row.threshold for row in table.inputs for matrix in row.matrices}
    for names in inputs_of(model).values():
        for name in names:
            if not fits(name, keep):
                if scheme.inputs == "tensor" and name not in thresholds:
                    raise UserError(f"{name}: the table of scales has no range of what it reads; calibrate again")
                module = model.get_submodule(name)
                assert isinstance(module, nn.Linear)
                model.set_submodule(name, of_weight(scheme, module.weight, thresholds.get(name), module.bias))


def _like(scale: tuple[float, ...], model: nn.Module) -> Tensor:
    return torch.tensor(scale, device=next(model.parameters()).device)
